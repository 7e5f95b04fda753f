//! Finding locks whose names are not known.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use crate::{
    Error,
    backend::{
        Failure, Inspection,
        find::{Cursor, FindPage},
    },
    engine::core::{ClientRef, Core},
    error::Invalid,
    kind::LockKind,
    name::{LockId, NAME_MAX, Name},
    status::Status,
};

/// The locks of a server whose names match a pattern, page by page. Made by [`Client::find`](crate::Client::find).
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let guard = client.mutex("order:42").lock().await?;
/// let mut find = client.find("order:*");
/// let mut found = Vec::new();
/// while let Some(page) = find.next().await? {
///     println!("{:.0} % of the keys", 100.0 * find.progress());
///     found.extend(page);
/// }
/// assert_eq!(found.len(), 1);
/// assert_eq!(found[0].name, "order:42");
/// assert_eq!(find.keys(), Some(1)); // locks and data
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "it asks the server when `next` is called"]
pub struct Find {
    core: ClientRef,
    pattern: Result<Arc<str>, Error>,
    /// Where the next page begins; `None`: there is no other.
    cursor: Option<Cursor>,
    /// A server that resizes its table of keys shows some of them twice.
    seen: HashSet<LockId>,
    keys: Option<u64>,
}

impl Find {
    pub(crate) fn new(core: &Arc<Core>, pattern: &str) -> Find {
        Find {
            core: ClientRef::new(core),
            pattern: on_server(&core.config.name_prefix, pattern),
            cursor: Some(Cursor::default()),
            seen: HashSet::new(),
            keys: None,
        }
    }

    /// The locks of the next page: often none. `None` when all keys have been looked at.
    ///
    /// A lock that is there all the while is found, and found once. A lock that is taken or given back meanwhile may be found or not.
    ///
    /// Where the primaries of a cluster change between two pages, the next page is the first of the first one again, and
    /// [`progress`](Find::progress) with it. A lock whose slot is moved to another primary meanwhile may be found or not.
    ///
    /// # Errors
    /// The pattern is not valid, or the server does not answer, or refuses a command. It only reads. The next call asks for the same page.
    ///
    /// In a cluster it is the error of a single node, which it names, and whose locks are missing, all or some of them: the next call goes on with the
    /// next node, and says `None` behind the last. So each node has one error at most, and [`progress`](Find::progress) has grown; where the next call
    /// asks for the same page it stays.
    ///
    /// # Cancel safety
    /// Cancel safe. The next call asks for the same page.
    pub async fn next(&mut self) -> Result<Option<Vec<Status>>, Error> {
        let pattern = self.pattern.clone()?;
        let Some(cursor) = self.cursor else {
            return Ok(None);
        };
        let failed = |failure: Failure| {
            failure.into_read_error(format!("find locks with keys like {pattern:?}"))
        };
        let step = FindPage {
            pattern: Arc::clone(&pattern),
            cursor,
        };
        let backend = &self.core.backend;
        let page = backend.find(step).await.map_err(failed)?;
        if let Some(failure) = page.failed {
            self.go_on_at(page.cursor);
            return Err(failed(failure));
        }
        let prefix = &self.core.config.name_prefix;
        let ids = page.locks.iter();
        let ids = ids.filter_map(|(kind, key)| id(prefix, *kind, key));
        let mut new: Vec<LockId> = ids.filter(|id| !self.seen.contains(id)).collect();
        // SCAN may return a key twice.
        new.sort_unstable();
        new.dedup();
        let mut found = Vec::new();
        if !new.is_empty() {
            found = match backend.inspect_all(new.clone()).await {
                Ok(found) => found,
                Err(failure) => {
                    let begun = if page.cursor.servers == cursor.servers {
                        cursor
                    } else {
                        Cursor::default()
                    };
                    let here = Cursor {
                        keys: begun.keys,
                        server: begun.server,
                        ..page.cursor
                    };
                    if here.others > 0 {
                        self.go_on_at(here.behind_server());
                    }
                    return Err(failed(failure));
                }
            };
        }
        let found = statuses(&self.core, found).collect();
        // Only now, as the cursor: a page that failed, or whose call was dropped, is asked for again by the next call.
        self.seen.extend(new);
        self.go_on_at(page.cursor);
        self.keys = page
            .keys
            .map(|keys| self.keys.unwrap_or(0) + keys)
            .or(self.keys);
        Ok(Some(found))
    }

    fn go_on_at(&mut self, cursor: Cursor) {
        // The servers are others, and are read from the first on.
        if self.cursor.is_some_and(|it| it.servers != cursor.servers) {
            self.keys = None;
        }
        self.cursor = Some(cursor).filter(|cursor| !cursor.is_end());
    }

    /// How many keys the servers have whose first pages were asked for, locks or not; `None` if they do not tell (to a user without `DBSIZE`).
    pub fn keys(&self) -> Option<u64> {
        self.keys
    }

    /// About how much of the server's keys has been looked at, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "it is for eyes")]
    pub fn progress(&self) -> f64 {
        // A server goes through its table in the order of the reversed bits, so that a table that grows stays in order.
        self.cursor.map_or(1.0, |cursor| {
            let of_server = cursor.keys.reverse_bits() as f64 / u64::MAX as f64;
            (f64::from(cursor.server) + of_server) / (f64::from(cursor.others) + 1.0)
        })
    }
}

/// Looks at locks again that were found before; leaves out those that are none any more.
pub(crate) async fn look_again(core: &Arc<Core>, found: &mut Vec<Status>) -> Result<(), Error> {
    let prefix = &core.config.name_prefix;
    let ids = found.iter();
    let ids = ids.filter_map(|it| Some(LockId::new(it.kind, Name::under(prefix, &it.name).ok()?)));
    let failed = |failure: Failure| failure.into_read_error("look at locks again".to_owned());
    let looked = core.backend.inspect_all(ids.collect()).await;
    let mut looks: Vec<Status> = statuses(core, looked.map_err(failed)?)
        .filter(is_found)
        .collect();
    // By name, since a look at each of the others for each of them takes seconds where there are tens of thousands.
    let before: HashMap<_, _> = found
        .iter()
        .map(|it| ((it.kind, it.name.as_str()), &it.holders))
        .collect();
    // The word about connections stays: they are not asked for anew.
    for look in &mut looks {
        let Some(before) = before.get(&(look.kind, look.name.as_str())) else {
            continue;
        };
        let before: HashMap<_, _> = before.iter().map(|it| (it.owner.as_str(), it)).collect();
        for holder in &mut look.holders {
            if let Some(same) = before.get(holder.owner.as_str()) {
                (holder.connected, holder.idle) = (same.connected, same.idle);
            }
        }
    }
    *found = looks;
    Ok(())
}

/// Whether a lock would be found, too: a number by itself says nothing, and is none.
fn is_found(look: &Status) -> bool {
    let is_number = matches!(
        look.kind,
        LockKind::Latch | LockKind::Semaphore | LockKind::LeasedSemaphore
    );
    let is_waited_for = look.waiting_clients > 0 || look.waiting_here > 0;
    !is_number || !look.holders.is_empty() || is_waited_for
}

/// The inspected locks that are there.
fn statuses(
    core: &Core,
    inspected: Vec<(LockId, Inspection)>,
) -> impl Iterator<Item = Status> + '_ {
    let inspected = inspected
        .into_iter()
        .filter(|(id, found)| is_there(id, found));
    inspected.map(|(id, found)| {
        let waiting_here = core.queues.waiting(&id) + core.latch_waiters.waiting(&id);
        Status::new(&id, core.looked_at(found), waiting_here)
    })
}

/// The pattern for the keys of the server, where the prefix stands for itself.
fn on_server(prefix: &str, pattern: &str) -> Result<Arc<str>, Error> {
    if !(1..=NAME_MAX).contains(&pattern.len()) {
        let bytes = format!("{} bytes", pattern.len());
        let invalid = Invalid::new("pattern", bytes, "between 1 and 1024 bytes");
        return Err(invalid.remedy("say \"*\" for all locks").into());
    }
    let mut on_server = String::with_capacity(prefix.len() + pattern.len());
    for letter in prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            on_server.push('\\');
        }
        on_server.push(letter);
    }
    on_server.push_str(pattern);
    Ok(on_server.into())
}

/// The lock at a key; `None`: no lock of a client with this prefix can have that key.
fn id(prefix: &str, kind: LockKind, key: &str) -> Option<LockId> {
    let name = key.strip_prefix(prefix)?;
    // A key that is no valid name is of no lock: no client of ours could have taken it.
    Some(LockId::new(kind, Name::under(prefix, name).ok()?))
}

/// Whether a lock is still one when it is looked at.
fn is_there(id: &LockId, found: &Inspection) -> bool {
    match id.kind {
        LockKind::Latch => found.available != Some(0),
        // Without holders it is there for those that wait.
        LockKind::Semaphore | LockKind::LeasedSemaphore => true,
        _ => !found.owners.is_empty(),
    }
}

impl fmt::Debug for Find {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Find")
            .field("pattern", &self.pattern)
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}
