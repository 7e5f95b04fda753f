//! The places where the library's public API is about to change, all of them.

use std::{error::Error as _, time::Duration};

use futures_util::FutureExt as _;
use leasehold::{Client, Error, ErrorKind, Guard, Mutex};

/// A lease of this length that the watchdog renews.
pub(crate) fn renewed(mutex: &Mutex, lease: Duration) -> Mutex {
    mutex.lease(lease)
}

/// A fixed lease of this length, which is not renewed.
pub(crate) fn fixed(mutex: &Mutex, lease: Duration) -> Mutex {
    mutex.fixed_lease(lease)
}

/// Gives the name back. Whether the server has confirmed it.
pub(crate) async fn release(guard: Guard) -> bool {
    guard.release().await.is_ok()
}

/// Why a guard is lost, if it knows.
pub(crate) fn lost_reason(guard: &Guard) -> Option<String> {
    let reason = guard.lost().now_or_never()?;
    Some(format!("{reason:?}"))
}

/// The kind of an error, as a word; for a refusal with the server's reason, since none is expected.
pub(crate) fn kind(error: &Error) -> String {
    match (error.kind(), error.source()) {
        (ErrorKind::Rejected | ErrorKind::Invalid, Some(source)) => {
            format!("{:?} ({source})", error.kind())
        }
        (kind, _) => format!("{kind:?}"),
    }
}

/// The entries that a client still has in memory: queues, watched holds, tasks.
pub(crate) fn footprint(client: &Client) -> [usize; 3] {
    let left = client.footprint();
    [left.queues, left.watched, left.tasks]
}
