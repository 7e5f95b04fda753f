//! Where a backend tells what it hears.

use std::fmt;

use super::WakeUp;
use crate::name::LockId;

/// The receiver of a backend's wake-ups. The backend is given one, and knows nothing of the layers behind it.
pub(crate) trait Sink: fmt::Debug + Send + Sync {
    /// A hint: it may be lost, late, or for a lease that is no more.
    fn wake(&self, id: &LockId, wake_up: WakeUp);

    /// The server may have forgotten what it was told. Told before any answer from it.
    fn restarted(&self, change: Restarted);

    /// A connection has ended that no request waits for, so nothing else would have another made yet.
    fn cut_off(&self) {}

    /// Whether this client holds a lock, or waits for one. True from before its first request for that lock.
    fn is_busy(&self) -> bool {
        false
    }
}

/// A server was restarted, or another has taken its place: it may have forgotten what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restarted {
    /// The server of a lock: what was granted before counts no more.
    Whole,
    /// A server of a quorum: its majority may stand all the same, and the quorum judges that by itself (QB6).
    OneVote,
}
