//! The clients that wait for a lock, in order, and how it is passed on to them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Store, StoredHold, rules};
use crate::{
    backend::{Acquire, Acquired, Grant, Place, WakeUp},
    kind::Access,
    name::LockId,
    owner::LeaseId,
};

/// The clients that wait for a name, next first.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) places: VecDeque<Queued>,
    pub(super) ends: Duration,
}

/// A client that waits looks after so long at the latest, as far as the server knows; `waiting.lua` says the same.
const ASKS_WITHIN: Duration = Duration::from_secs(12);

/// One of them, and the ask that a grant to it answers (B3).
pub(super) struct Queued {
    pub(super) client: Arc<str>,
    pub(super) grant: Grant,
    /// Of a kind that is served in turn: until when its client has kept it, and since when that is over or it is not heard.
    pub(super) kept_until: Duration,
    pub(super) silent_since: Option<Duration>,
}

impl Queued {
    pub(super) fn is(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.client == *client && self.grant.lease == lease
    }
}

impl Store {
    /// Whether a client waits that goes first. The places before it of such that hear nothing go: those are gone, and who stands behind them
    /// has been waiting in vain. `may_join` of `rw_lock/queue.lua` does the same.
    pub(super) fn gives_way(&mut self, id: &LockId, wants: Access) -> bool {
        let subscribers = self.subscribers(id);
        let Some(waiting) = self.queues.get_mut(id) else {
            return false;
        };
        let (before, mut gives_way) = (waiting.places.len(), false);
        waiting.places.retain(|queued| {
            if gives_way || !rules(id.kind).gives_way(wants, queued.grant.access) {
                return true;
            }
            gives_way = subscribers.iter().any(|s| s.client == queued.client);
            gives_way
        });
        let is_shorter = waiting.places.len() < before;
        if waiting.places.is_empty() {
            self.queues.remove(id);
        }
        if is_shorter {
            self.tell_all(id);
        }
        gives_way
    }

    /// Whether another client that hears it is the first in the queue.
    pub(super) fn is_behind_another(&self, client: &Arc<str>, id: &LockId) -> bool {
        let places = self.queues.get(id).and_then(|all| all.places.front());
        places.is_some_and(|first| first.client != *client && self.hears(id, &first.client))
    }

    pub(super) fn held_by_others(&self, id: &LockId) -> Acquired {
        let ends = rules(id.kind).ends(self.held_by(id));
        Acquired::Held {
            given_up: false,
            unsettled: false,
            ttl: ends.map(|ends| ends.saturating_sub(self.clock)),
            silent: self.held_by(id).iter().any(StoredHold::is_foreign),
        }
    }

    fn hears(&self, id: &LockId, client: &Arc<str>) -> bool {
        self.subscribers(id).iter().any(|s| s.client == *client)
    }

    /// Gives a place to a lease id. One that has a place keeps it, with the latest ask (B3).
    pub(super) fn queue(&mut self, client: &Arc<str>, id: &LockId, mut grant: Grant, place: Place) {
        grant.ask = place.ask;
        let ends = self.clock + Duration::from_millis(place.keep_ms);
        let kept_until = self.kept_until(place.keep_ms);
        let waiting = self.queues.entry(id.clone()).or_default();
        waiting.ends = waiting.ends.max(ends);
        let mut places = waiting.places.iter_mut();
        match places.find(|queued| queued.is(client, grant.lease)) {
            Some(queued) => {
                queued.grant.ask = queued.grant.ask.max(grant.ask);
                queued.kept_until = queued.kept_until.max(kept_until);
            }
            None => waiting.places.push_back(Queued {
                client: Arc::clone(client),
                grant,
                kept_until,
                silent_since: None,
            }),
        }
    }

    /// Whether it had a place.
    pub(super) fn leave_queue(&mut self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        let Some(waiting) = self.queues.get_mut(id) else {
            return false;
        };
        let before = waiting.places.len();
        waiting.places.retain(|queued| !queued.is(client, lease));
        let left = waiting.places.len() < before;
        if waiting.places.is_empty() {
            self.queues.remove(id);
        }
        left
    }

    pub(super) fn is_queued(&self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        self.queues
            .get(id)
            .is_some_and(|waiting| waiting.places.iter().any(|q| q.is(client, lease)))
    }

    pub(super) fn waiting(&self, id: &LockId) -> usize {
        self.queues
            .get(id)
            .map_or(0, |waiting| waiting.places.len())
    }

    pub(super) fn is_given_up(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.gone.contains_key(&(Arc::clone(client), lease))
    }

    /// Gives the lock to the first in the queue that hears it, and to those behind it that can have it too. Returns how long the first has
    /// it; `None` if there is none.
    pub(super) fn give_to_next(&mut self, id: &LockId) -> Option<Duration> {
        let given = self.pass_on(id);
        if given.is_some() {
            self.tell_first(id);
        }
        given
    }

    /// This step has taken a lock that was free, or not. If it reads, the holder before has died, and no release lets in the readers that
    /// wait.
    pub(super) fn let_in_behind(&mut self, id: &LockId, step: &Acquire, was_free: bool) {
        if was_free && !step.access.is_exclusive() && rules(id.kind).has_queue() {
            self.give_to_next(id);
        }
    }

    /// The first in the queue that hears it watches the holder, for all: it would be the next to have the lock (L1). It is told when the
    /// lease ends, if it does not look before by itself; or that no client holds it.
    pub(super) fn tell_first(&mut self, id: &LockId) {
        let held = self.held_by(id).iter().map(|held| held.ends);
        let wake_up = match held.min().map(|ends| ends.saturating_sub(self.clock)) {
            Some(left) if left >= ASKS_WITHIN => return,
            Some(left) => WakeUp::Watch(left),
            None => WakeUp::TryAgain,
        };
        let mut places = self.queues.get(id).into_iter().flat_map(|all| &all.places);
        let subscribers = self.subscribers(id);
        let first =
            places.find_map(|queued| subscribers.iter().find(|s| s.client == queued.client));
        if let Some(first) = first.filter(|_| !self.cut) {
            let told = (Arc::clone(first), id.clone(), wake_up);
            self.outbox.push(told);
        }
    }

    fn pass_on(&mut self, id: &LockId) -> Option<Duration> {
        let (mut given, mut at) = (None, 0);
        if rules(id.kind).is_in_turn() {
            self.forget_dead(id, &[]);
        }
        loop {
            let queued = self.queues.get(id).and_then(|all| all.places.get(at));
            let Some(queued) = queued else {
                return given;
            };
            if queued.silent_since.is_some() {
                at += 1; // it keeps its place for a while, and is passed over
                continue;
            }
            let access = queued.grant.access;
            // Beside readers, a writer that hears nothing keeps none out.
            let is_gone = self.fits(id, Access::Shared) && !self.hears(id, &queued.client);
            if !self.fits(id, access) && !is_gone {
                return given;
            }
            let Some(Queued {
                client, mut grant, ..
            }) = self.take_place(id, at)
            else {
                return given;
            };
            // B4, and a client that hears nothing is gone.
            let subscriber = self.subscribers(id);
            let subscriber = subscriber
                .into_iter()
                .find(|subscriber| subscriber.client == client);
            let given_up = self.is_given_up(&client, grant.lease);
            let holds = self.ours(&client, id, grant.lease).is_some();
            let (false, Some(subscriber)) = (given_up || holds, subscriber) else {
                continue;
            };
            self.hold(&client, id, access, (grant.lease, grant.lease_ms));
            grant.tokens = self.tokens(id);
            if !self.cut {
                self.outbox
                    .push((subscriber, id.clone(), WakeUp::Granted(grant)));
            }
            given = given.or(Some(Duration::from_millis(grant.lease_ms)));
        }
    }

    fn take_place(&mut self, id: &LockId, at: usize) -> Option<Queued> {
        let waiting = self.queues.get_mut(id)?;
        let place = waiting.places.remove(at);
        if waiting.places.is_empty() {
            self.queues.remove(id);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::{
            Count, Counted, Downgrade, EpochChange, Release, Sink, memory::store::Subscriber,
        },
        kind::LockKind,
        name::Name,
    };

    #[derive(Debug)]
    struct Untold;

    impl Sink for Untold {
        fn wake(&self, _id: &LockId, _wake_up: WakeUp) {}
        fn epoch(&self, _change: EpochChange) {}
    }

    /// A read-write lock, and its clients by their names.
    struct Game {
        store: Store,
        id: LockId,
        ears: Vec<Arc<Subscriber>>,
        leases: Vec<(&'static str, LeaseId)>,
    }

    impl Game {
        fn new() -> Game {
            let name = Name::new("x").unwrap();
            Game {
                store: Store::default(),
                id: LockId::new(LockKind::RwLock, name),
                ears: Vec::new(),
                leases: Vec::new(),
            }
        }

        fn lease(&mut self, client: &'static str) -> LeaseId {
            match self.leases.iter().find(|(of, _)| *of == client) {
                Some((_, lease)) => *lease,
                None => {
                    self.leases.push((client, LeaseId::next()));
                    self.lease(client)
                }
            }
        }

        fn listens(&mut self, client: &'static str) {
            let client: Arc<str> = client.into();
            let ear = Arc::new(Subscriber::new(&client, Arc::new(Untold)));
            self.store.listen(&client, &self.id, &ear);
            self.ears.push(ear);
        }

        fn is_cut_off(&mut self, client: &'static str) {
            self.store.unlisten(&client.into(), &self.id);
        }

        /// Whether it has the lock then. If not, it has a place.
        fn asks(&mut self, client: &'static str, access: Access) -> bool {
            let step = Acquire {
                id: self.id.clone(),
                access,
                lease: self.lease(client),
                lease_ms: 10_000,
                place: Some(Place {
                    ask: 1,
                    keep_ms: 600,
                }),
                permits: None,
            };
            let answer = self.store.acquire(&client.into(), &step);
            matches!(answer, Acquired::Granted { .. })
        }

        fn reads(&mut self, client: &'static str) -> bool {
            self.asks(client, Access::Shared)
        }

        fn writes(&mut self, client: &'static str) -> bool {
            self.asks(client, Access::Exclusive)
        }

        fn releases(&mut self, client: &'static str, access: Access) {
            let step = Release {
                id: self.id.clone(),
                access,
                lease: self.lease(client),
                next: None,
                held: true,
                tombstone_ms: None,
                listening: false,
                holds: None,
            };
            self.store.release(&client.into(), &step);
        }

        fn downgrades(&mut self, client: &'static str) {
            let (id, lease) = (self.id.clone(), self.lease(client));
            let step = Downgrade {
                id,
                lease,
                holds: 1,
            };
            assert!(self.store.downgrade(&client.into(), &step));
        }

        fn counts(&mut self, client: &'static str) -> Counted {
            let step = Count {
                id: self.id.clone(),
                access: Access::Shared,
                lease: self.lease(client),
                holds: 2,
                reads: 0,
                listening: false,
            };
            self.store.count(&client.into(), &step)
        }

        fn queue(&self) -> Vec<&str> {
            let places = self.store.queues.get(&self.id);
            let places = places.into_iter().flat_map(|all| &all.places);
            places.map(|queued| &*queued.client).collect()
        }

        fn holders(&self) -> Vec<&str> {
            let held = self.store.held_by(&self.id).iter();
            held.map(|held| &*held.client).collect()
        }
    }

    /// `may_join` of `rw_lock/queue.lua`: it need not join for that.
    #[test]
    fn a_reader_that_asks_takes_out_the_unheard_writers_before_the_first_heard_one() {
        let mut game = Game::new();
        for client in ["cut", "writer", "cut too", "reader"] {
            game.listens(client);
        }
        assert!(game.reads("holder"));
        assert!(!game.writes("cut"));
        assert!(!game.writes("writer"));
        assert!(!game.writes("cut too"));
        game.is_cut_off("cut");
        game.is_cut_off("cut too");
        assert!(!game.reads("reader"));
        assert_eq!(game.queue(), ["writer", "cut too", "reader"]);
        game.listens("cut");
        assert!(!game.writes("cut"));
        assert_eq!(game.queue(), ["writer", "cut too", "reader", "cut"]);
        game.releases("holder", Access::Shared);
        assert_eq!(game.holders(), ["writer"]);
    }

    #[test]
    fn a_reader_that_counts_takes_them_out_too() {
        let mut game = Game::new();
        game.listens("cut");
        game.listens("writer");
        assert!(game.reads("holder"));
        assert!(!game.writes("cut"));
        assert!(!game.writes("writer"));
        game.is_cut_off("cut");
        assert_eq!(game.counts("holder"), Counted::OthersWait);
        assert_eq!(game.queue(), ["writer"]);
        game.is_cut_off("writer");
        assert_eq!(game.counts("holder"), Counted::Written);
        assert!(game.queue().is_empty());
    }

    /// `may_join` says so before it looks at the queue.
    #[test]
    fn a_reader_that_asks_while_another_writes_takes_none_out() {
        let mut game = Game::new();
        game.listens("cut");
        assert!(game.writes("holder"));
        assert!(!game.writes("cut"));
        game.is_cut_off("cut");
        assert!(!game.reads("reader"));
        assert_eq!(game.queue(), ["cut", "reader"]);
    }

    /// `give_to_next` of `rw_lock/hand_over.lua`.
    #[test]
    fn a_hand_over_beside_readers_passes_over_a_writer_that_hears_nothing() {
        let mut game = Game::new();
        for client in ["cut", "reader", "writer", "cut too"] {
            game.listens(client);
        }
        assert!(game.writes("holder"));
        assert!(!game.writes("cut"));
        assert!(!game.reads("reader"));
        assert!(!game.writes("writer"));
        assert!(!game.writes("cut too"));
        game.is_cut_off("cut");
        game.is_cut_off("cut too");
        game.downgrades("holder");
        assert_eq!(game.holders(), ["holder", "reader"]);
        assert_eq!(game.queue(), ["writer", "cut too"]);
    }

    /// It is no release that lets in the readers behind: the holder before has died.
    #[test]
    fn a_reader_that_takes_a_free_name_keeps_the_places_behind_a_heard_writer() {
        let mut game = Game::new();
        for client in ["first", "cut", "reader", "writer", "cut too"] {
            game.listens(client);
        }
        assert!(game.writes("holder"));
        assert!(!game.reads("first"));
        assert!(!game.writes("cut"));
        assert!(!game.reads("reader"));
        assert!(!game.writes("writer"));
        assert!(!game.writes("cut too"));
        game.is_cut_off("cut");
        game.is_cut_off("cut too");
        game.store.held.clear();
        assert!(game.reads("first"));
        assert_eq!(game.holders(), ["first", "reader"]);
        assert_eq!(game.queue(), ["writer", "cut too"]);
    }
}
