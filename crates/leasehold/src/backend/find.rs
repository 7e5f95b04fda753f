//! Finding locks: the keys of a server, page by page.

use std::sync::Arc;

use futures_util::future::join_all;

use super::{Failure, Inspection, Reply};
use crate::{kind::LockKind, name::LockId};

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

/// What looks at these locks give, those left out under whose names another kind of lock stands by now, or data. Connections are not
/// looked at: a server with many takes milliseconds to list them.
pub(crate) async fn all_of(
    ids: &[LockId],
    looks: impl IntoIterator<Item = Reply<Inspection>>,
) -> Result<Vec<(LockId, Inspection)>, Failure> {
    let mut found = Vec::with_capacity(ids.len());
    for (id, looked) in ids.iter().zip(join_all(looks).await) {
        match looked {
            Err(Failure::Rejected(cause)) if cause.to_string().contains("WRONGTYPE") => {}
            looked => {
                let mut looked = looked?;
                let owners = looked.owners.iter_mut().map(|held| &mut held.client);
                let queue = looked.queue.iter_mut().map(|place| &mut place.client);
                owners
                    .chain(queue)
                    .for_each(|client| client.connected = None);
                found.push((id.clone(), looked));
            }
        }
    }
    Ok(found)
}
