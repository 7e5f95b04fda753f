//! The library, as the witness and the reports want it.

use futures_util::FutureExt as _;
use leasehold::{Client, Error, Guard};

/// Gives the name back. Whether the server has confirmed it.
pub(crate) async fn release<K>(guard: Guard<K>) -> bool {
    guard.release().await.is_ok()
}

/// Why a guard is lost, if it knows.
pub(crate) fn lost_reason<K>(guard: &Guard<K>) -> Option<String> {
    let reason = guard.lost().now_or_never()?;
    Some(format!("{reason:?}"))
}

/// The kind of an error, as a word; for a refusal with the server's reason, since none is expected.
pub(crate) fn kind(error: &Error) -> String {
    match error {
        Error::Rejected { source, .. } => format!("Rejected ({source})"),
        other => format!("{:?}", other.kind()),
    }
}

/// The entries that a client still has in memory: queues, watched holds, tasks.
pub(crate) fn footprint(client: &Client) -> [usize; 3] {
    let left = client.footprint();
    [left.queues, left.watched, left.tasks]
}
