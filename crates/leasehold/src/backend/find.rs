//! Finding locks: the keys of a server, page by page.

use std::sync::Arc;

use crate::kind::LockKind;

/// Asks which locks are on one page of the keys.
#[derive(Clone, Debug)]
pub(crate) struct FindPage {
    /// As `SCAN` reads it.
    pub(crate) pattern: Arc<str>,
    /// Zero, then what the page before said.
    pub(crate) cursor: u64,
}

/// What looks like a lock on one page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundPage {
    /// Where the next page begins; zero: this was the last.
    pub(crate) cursor: u64,
    /// Their names as the server has them. A page may repeat those of another.
    pub(crate) locks: Vec<(LockKind, String)>,
}
