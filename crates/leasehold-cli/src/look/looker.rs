//! Knows the locks of a server, and goes on knowing them, at little cost to the server.
//!
//! A round reads all keys of the server, a page at a time. The locks that are on a screen are looked at each second, and which clients are connected
//! each two. Each of these costs the server some time, as measured below, and a look may cost two hundredths of the time until the next.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Client, Error, Find, Status};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::{board::Board, stories::Stories};
use crate::{
    exit::Failure,
    kinds::{self, Kind},
    life,
    output::redact,
};

/// The time between two looks.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// The server may spend so much on a look: two hundredths of a core.
const SPEND: Duration = Duration::from_millis(10);
/// A page of its keys costs the server so much; so does a lock, be it found or looked at again, and each of its holders.
const A_PAGE: Duration = Duration::from_micros(500);
const A_LOCK: Duration = Duration::from_micros(60);
const A_HOLDER: Duration = Duration::from_micros(5);
/// A lock on a screen is looked at no more often.
const AGAIN: Duration = Duration::from_millis(900);
/// At once they cost no more than a half of a look; those first that were looked at longest ago.
const AGAIN_SPEND: Duration = Duration::from_millis(5);
/// Of those that are on no screen, and whose holders seem to be gone; and of those that are looked at by themselves.
const MARKED_MOST: usize = 16;
const ALONE_MOST: usize = 16;
/// Connections are listed no more often; and where the list takes the server long, that much less often.
const CONNECTIONS: Duration = Duration::from_secs(2);
const SHARE: u32 = 50;

pub(crate) struct Looker {
    client: Client,
    pattern: String,
    find: Find,
    /// By name.
    locks: HashMap<String, Seen>,
    /// Locks that a screen shows by themselves, and that were in no page: free, or not reached yet, or outside of the pattern.
    alone: HashMap<String, Alone>,
    stories: Arc<Mutex<Stories>>,
    round: Round,
    connections_next: Option<Instant>,
}

struct Seen {
    status: Arc<Status>,
    at: Instant,
    /// The round that has seen it last.
    round: u64,
}

struct Alone {
    at: Instant,
    /// `None`: free.
    found: Result<Option<Arc<Status>>, String>,
}

/// The cost of a look at it for the server.
fn cost_of(lock: &Status) -> Duration {
    let entries = lock.holders.len() + lock.queue.len();
    A_LOCK + A_HOLDER * u32::try_from(entries).unwrap_or(u32::MAX)
}

impl Seen {
    /// Whether all its leases have ended by now that the last look showed.
    fn is_over(&self) -> bool {
        let left = self.status.holders.iter().map(|holder| holder.remaining);
        let left = left.collect::<Option<Vec<_>>>();
        left.is_some_and(|left| left.into_iter().all(|left| self.at.elapsed() > left))
    }
}

/// A lock that is on a screen.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) name: String,
    /// It is looked at by itself, also while it is free; as a lock of this kind, if that is known.
    pub(crate) is_alone: bool,
    pub(crate) kind: Option<Kind>,
}

impl Shown {
    pub(crate) fn in_list(name: &str) -> Shown {
        Shown {
            name: name.to_owned(),
            is_alone: false,
            kind: None,
        }
    }

    pub(crate) fn alone(name: &str, kind: Option<Kind>) -> Shown {
        Shown {
            is_alone: true,
            kind,
            ..Shown::in_list(name)
        }
    }
}

struct Round {
    number: u64,
    began: Instant,
    /// How long the last whole one took, and among how many keys.
    last: Option<(Duration, Option<u64>)>,
    /// Why a part is missing, of this round and of the last.
    missing: Option<String>,
    missed: Option<String>,
}

impl Round {
    fn new(number: u64) -> Round {
        Round {
            number,
            began: Instant::now(),
            last: None,
            missing: None,
            missed: None,
        }
    }
}

fn told(error: &Error) -> String {
    redact(&error.to_string())
}

impl Looker {
    pub(crate) fn new(client: Client, pattern: &str) -> Looker {
        Looker {
            find: client.find(pattern),
            client,
            pattern: pattern.to_owned(),
            locks: HashMap::new(),
            alone: HashMap::new(),
            stories: Arc::default(),
            round: Round::new(0),
            connections_next: None,
        }
    }

    /// Looks once: at what is shown, and at the next pages of the keys. An error stands on the board, beside what was known before.
    pub(crate) async fn look(&mut self, shown: &[Shown]) -> Board {
        match self.spend(shown, SPEND).await {
            Ok(part) => self.board(None, part),
            Err(error) => self.board(Some(error), None),
        }
    }

    /// Looks at all keys, at once.
    pub(crate) async fn look_at_all(&mut self) -> Result<Board, Error> {
        let number = self.round.number;
        while self.round.number == number {
            self.spend(&[], Duration::from_millis(100)).await?;
        }
        // Also of the locks that were found since the last list.
        self.connections_next = None;
        self.connections().await?;
        Ok(self.board(None, None))
    }

    /// Forgets the locks, after a time in which nothing was looked at: the next look begins the first round.
    fn begin_anew(&mut self) {
        let now = SystemTime::now();
        for (name, _) in std::mem::take(&mut self.locks) {
            self.stories_mut().end(&name, now);
        }
        self.round = Round::new(self.round.number + 1);
        self.find = self.client.find(&self.pattern);
        self.connections_next = None;
    }

    /// Fails if no page can be read; else why a part has failed, as of a cluster with a dead node. The next look goes on.
    async fn spend(&mut self, shown: &[Shown], spend: Duration) -> Result<Option<Error>, Error> {
        // Each of the three is tried: of a cluster only a part may be away.
        let again = self.again(shown).await;
        let mut cost = *again.as_ref().unwrap_or(&Duration::ZERO) + self.alone(shown).await;
        // A page is read in any case, or a screen that is large would stand still.
        loop {
            let before = self.find.progress();
            let page = match self.find.next().await {
                Ok(Some(page)) => page,
                Ok(None) => {
                    self.end_round();
                    break;
                }
                // Of a node of a cluster; the next page is of another one.
                Err(error) if self.find.progress() > before => {
                    self.round.missing = Some(told(&error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            cost += A_PAGE;
            for lock in page {
                cost += cost_of(&lock);
                self.note(lock);
            }
            if cost >= spend {
                break;
            }
        }
        let connections = self.connections().await;
        Ok(again.map(drop).and(connections).err())
    }

    /// Looks again at the locks that are shown, and at those whose holders seem to be gone: they may just have let go and ended. The cost.
    async fn again(&mut self, shown: &[Shown]) -> Result<Duration, Error> {
        let old = |seen: &&Seen| seen.at.elapsed() >= AGAIN;
        let by_age = |of: &mut Vec<&Seen>| of.sort_by_key(|seen| seen.at);
        let known = shown.iter().filter_map(|it| self.locks.get(&it.name));
        let mut known: Vec<&Seen> = known.filter(old).collect();
        by_age(&mut known);
        let marked = self.locks.values().filter(old);
        let mut marked: Vec<&Seen> = marked
            .filter(|seen| life::of_lock(&seen.status).mark().is_some())
            .collect();
        by_age(&mut marked);
        let (mut cost, mut asked) = (Duration::ZERO, HashSet::new());
        let mut again: Vec<Status> = Vec::new();
        for seen in known
            .into_iter()
            .chain(marked.into_iter().take(MARKED_MOST))
        {
            if cost < AGAIN_SPEND && asked.insert(seen.status.name.clone()) {
                cost += cost_of(&seen.status);
                again.push(Status::clone(&seen.status));
            }
        }
        if again.is_empty() {
            return Ok(cost);
        }
        self.client.look_again(&mut again).await?;
        for lock in again {
            asked.remove(&lock.name);
            self.note(lock);
        }
        let now = SystemTime::now();
        for name in &asked {
            self.locks.remove(name);
            self.stories_mut().end(name, now);
        }
        Ok(cost)
    }

    /// Looks at those that are looked at by themselves and stand in no page. An error is of that lock alone. The cost.
    async fn alone(&mut self, shown: &[Shown]) -> Duration {
        let shown = shown.iter().filter(|it| it.is_alone);
        let missing: Vec<&Shown> = shown
            .filter(|it| !self.locks.contains_key(&it.name))
            .collect();
        self.alone
            .retain(|name, _| missing.iter().any(|it| it.name == *name));
        let age = |it: &&Shown| self.alone.get(&it.name).map(|alone| alone.at);
        let mut old: Vec<&Shown> = missing
            .into_iter()
            .filter(|it| age(it).is_none_or(|at| at.elapsed() >= AGAIN))
            .collect();
        old.sort_by_key(age);
        let mut cost = Duration::ZERO;
        for one in old.into_iter().take(ALONE_MOST) {
            let mut looked = kinds::look(&self.client, one.kind, &one.name).await;
            if looked.as_ref().is_err_and(kinds::is_of_another_kind) && one.kind.is_some() {
                looked = kinds::find(&self.client, &one.name).await;
            }
            cost += A_LOCK * 3;
            let now = SystemTime::now();
            let found = match looked {
                Ok((_, lock)) if !lock.holders.is_empty() && !kinds::may_be_data(&lock) => {
                    self.stories_mut().add(&lock, now);
                    Ok(Some(Arc::new(lock)))
                }
                Ok(_) => {
                    self.stories_mut().end(&one.name, now);
                    Ok(None)
                }
                Err(error) => Err(told(&error)),
            };
            let at = Instant::now();
            self.alone.insert(one.name.clone(), Alone { at, found });
        }
        cost
    }

    fn note(&mut self, mut lock: Status) {
        if let Some(before) = self.locks.get(&lock.name) {
            // A page tells of no connections: the last list does.
            for holder in lock.holders.iter_mut().filter(|it| it.connected.is_none()) {
                let all = before.status.holders.iter();
                if let Some(same) = { all }.find(|it| it.owner == holder.owner) {
                    (holder.connected, holder.idle) = (same.connected, same.idle);
                }
            }
        }
        self.stories_mut().add(&lock, SystemTime::now());
        let seen = Seen {
            at: Instant::now(),
            round: self.round.number,
            status: Arc::new(lock),
        };
        self.locks.insert(seen.status.name.clone(), seen);
    }

    /// A lock that a whole round has not seen is none any more; where a part was missing, if its lease is over.
    fn end_round(&mut self) {
        let now = SystemTime::now();
        let (number, is_whole) = (self.round.number, self.round.missing.is_none());
        let is_none = |seen: &Seen| seen.round != number && (is_whole || seen.is_over());
        let gone = self.locks.extract_if(|_, seen| is_none(seen));
        let gone: Vec<String> = gone.map(|(name, _)| name).collect();
        for name in &gone {
            self.stories_mut().end(name, now);
        }
        let ended = std::mem::replace(&mut self.round, Round::new(number + 1));
        self.round.last = Some((ended.began.elapsed(), self.find.keys()));
        self.round.missed = ended.missing;
        self.find = self.client.find(&self.pattern);
    }

    async fn connections(&mut self) -> Result<(), Error> {
        let asked = Instant::now();
        if self.locks.is_empty() || self.connections_next.is_some_and(|next| asked < next) {
            return Ok(());
        }
        let mut all: Vec<Status> = self
            .locks
            .values()
            .map(|seen| Status::clone(&seen.status))
            .collect();
        // The word of the last list must not outlive it.
        for holder in all.iter_mut().flat_map(|lock| &mut lock.holders) {
            (holder.connected, holder.idle) = (None, None);
        }
        self.client.fill_connected(&mut all).await?;
        for lock in all {
            if let Some(seen) = self.locks.get_mut(&lock.name) {
                seen.status = Arc::new(lock);
            }
        }
        self.connections_next = Some(Instant::now() + CONNECTIONS.max(asked.elapsed() * SHARE));
        Ok(())
    }

    fn stories_mut(&self) -> std::sync::MutexGuard<'_, Stories> {
        self.stories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `trouble` is of the server, `part` of a part of it.
    fn board(&self, trouble: Option<Error>, part: Option<Error>) -> Board {
        let alone = self
            .alone
            .iter()
            .map(|(name, it)| (name.clone(), it.found.clone()));
        let missing = self.round.missing.as_ref().or(self.round.missed.as_ref());
        let part = part.map(|error| told(&error)).or(missing.cloned());
        let (round, keys) = self.round.last.unzip();
        let mut locks: Vec<_> = self
            .locks
            .values()
            .map(|it| Arc::clone(&it.status))
            .collect();
        locks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Board {
            at: SystemTime::now(),
            locks,
            stories: Arc::clone(&self.stories),
            keys: keys.flatten(),
            round,
            progress: self.find.progress(),
            is_part: trouble.is_none() && part.is_some(),
            trouble: trouble.map(|error| told(&error)).or(part),
            alone: alone.collect(),
        }
    }
}

/// Refuses what could never be shown: a pattern that is none, a majority, a user who may not look.
pub(crate) async fn try_out(client: &Client, pattern: &str) -> Result<(), Failure> {
    match client.find(pattern).next().await {
        Err(error @ (Error::Invalid { .. } | Error::Rejected { .. })) => Err(error.into()),
        // Who is away may come back.
        _ => Ok(()),
    }
}

/// A page that is opened once more, or a scrape that is late, goes on where the last one was.
const PAUSE: Duration = Duration::from_secs(10);

/// Looks again and again while there is a screen: `shown` says what is on it, or `None` where there is none; then it waits for `wake`. It ends
/// when no receiver of the boards is left.
pub(crate) async fn keep_looking(
    mut looker: Looker,
    shown: impl Fn() -> Option<Vec<Shown>>,
    wake: Arc<Notify>,
    boards: watch::Sender<Option<Arc<Board>>>,
) {
    while !boards.is_closed() {
        let Some(shown) = shown() else {
            let since = Instant::now();
            tokio::select! {
                () = wake.notified() => {}
                () = boards.closed() => {}
            }
            if since.elapsed() > PAUSE {
                looker.begin_anew();
            }
            continue;
        };
        let board = looker.look(&shown).await;
        boards.send_replace(Some(Arc::new(board)));
        tokio::select! {
            () = sleep(TICK) => {}
            () = boards.closed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock that was given back meanwhile would be shown for up to two rounds, and its hold grow older.
    #[tokio::test]
    async fn after_a_pause_no_lock_is_known_until_it_is_seen_again() {
        let client = Client::connect("memory:").await.unwrap();
        let kept = client.mutex("kept").lock().await.unwrap();
        let freed = client.mutex("freed").lock().await.unwrap();
        let mut looker = Looker::new(client, "*");
        assert_eq!(looker.look(&[]).await.locks.len(), 2);
        freed.release().await.unwrap();
        looker.begin_anew();
        let board = looker.board(None, None);
        assert!(board.locks.is_empty() && board.round.is_none());
        let board = looker.look(&[]).await;
        let ends = |name| {
            let story = board.story(name);
            story
                .iter()
                .map(|past| past.until.is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!((ends("kept"), ends("freed")), (vec![false], vec![true]));
        drop(kept);
    }
}
