//! Finding locks: the keys of a server, page by page.

use std::sync::Arc;

use futures_util::future::join_all;

use super::{Failure, Inspection, Reply};
use crate::{kind::LockKind, name::LockId};

/// Where a page begins. The default: where the first does, or behind the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// As the server says it.
    pub(crate) keys: u64,
    /// The number of the server, of several.
    pub(crate) server: u16,
    /// How many there are, less one.
    pub(crate) others: u16,
    /// Tells whether they are the same servers still; another value: the pages begin anew.
    pub(crate) servers: u64,
}

impl Cursor {
    pub(crate) fn of(keys: u64) -> Cursor {
        Cursor {
            keys,
            ..Cursor::default()
        }
    }

    /// Where the first page of the next server begins; behind the last server, the end.
    pub(crate) fn behind_server(self) -> Cursor {
        let server = if self.server >= self.others {
            0
        } else {
            self.server + 1
        };
        Cursor {
            keys: 0,
            server,
            ..self
        }
    }

    /// Behind the last page.
    pub(crate) fn is_end(self) -> bool {
        (self.keys, self.server) == (0, 0)
    }
}

/// Asks which locks are on one page of the keys.
#[derive(Clone, Debug)]
pub(crate) struct FindPage {
    /// As `SCAN` reads it.
    pub(crate) pattern: Arc<str>,
    /// The default, then what the page before said.
    pub(crate) cursor: Cursor,
}

/// The names on one page that look like locks.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundPage {
    /// Where the next page begins, if this was not the last.
    pub(crate) cursor: Cursor,
    /// The names as the server has them. A page may repeat those of another.
    pub(crate) locks: Vec<(LockKind, String)>,
    /// With the first page of a server: how many keys it has, if it tells.
    pub(crate) keys: Option<u64>,
    /// Why a server of several has not answered. The cursor is behind that server.
    pub(crate) failed: Option<Failure>,
}

/// Inspects these locks, and leaves out those under whose names another kind of lock stands by now, or data. It reads no connections: a
/// server with many takes milliseconds to list them.
pub(crate) async fn all_of(
    ids: &[LockId],
    inspections: impl IntoIterator<Item = Reply<Inspection>>,
) -> Result<Vec<(LockId, Inspection)>, Failure> {
    let mut found = Vec::with_capacity(ids.len());
    // Side by side, since each inspection is a round trip.
    for (id, inspected) in ids.iter().zip(join_all(inspections).await) {
        match inspected {
            // Both backends put this word into the refusal of a name of another kind.
            Err(Failure::Rejected(cause)) if cause.to_string().contains("WRONGTYPE") => {}
            inspected => {
                let mut inspected = inspected?;
                let owners = inspected.owners.iter_mut().map(|held| &mut held.client);
                let queue = inspected.queue.iter_mut().map(|entry| &mut entry.client);
                owners
                    .chain(queue)
                    .for_each(|client| client.connected = None);
                found.push((id.clone(), inspected));
            }
        }
    }
    Ok(found)
}
