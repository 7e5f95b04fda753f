//! How many turns a release leaves to Redisson's waiters.

use std::fmt;

/// So many holds in a row, for which turns are left; zero: none are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InARow {
    pub(crate) holds: u32,
    /// A waiter of Redisson's may listen at a replica, where the server does not count it. It has the turns of a counted waiter.
    pub(crate) beside_unseen: bool,
}

impl InARow {
    pub(crate) const ONE: InARow = InARow {
        holds: 1,
        beside_unseen: false,
    };
}

/// As the scripts read it: negative if one may be unseen.
impl fmt::Display for InARow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.beside_unseen { "-" } else { "" };
        write!(f, "{sign}{}", self.holds)
    }
}
