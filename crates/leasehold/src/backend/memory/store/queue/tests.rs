//! Who stands in the queue of a read-write lock when a client hears nothing: as in `scripts/rw_lock/`.

use super::*;
use crate::{
    backend::{Count, Counted, Downgrade, Release, Restarted, Sink, memory::store::Subscriber},
    kind::LockKind,
    name::Name,
};

#[derive(Debug)]
struct Untold;

impl Sink for Untold {
    fn wake(&self, _id: &LockId, _wake_up: WakeUp) {}
    fn restarted(&self, _change: Restarted) {}
}

/// A read-write lock, and its clients by their names.
struct Game {
    store: Store,
    id: LockId,
    listeners: Vec<Arc<Subscriber>>,
    leases: Vec<(&'static str, LeaseId)>,
}

impl Game {
    fn new() -> Game {
        let name = Name::new("x").unwrap();
        Game {
            store: Store::default(),
            id: LockId::new(LockKind::RwLock, name),
            listeners: Vec::new(),
            leases: Vec::new(),
        }
    }

    fn lease(&mut self, client: &'static str) -> LeaseId {
        let known = self.leases.iter().find(|(of, _)| *of == client);
        let lease = known.map_or_else(LeaseId::next, |(_, lease)| *lease);
        self.leases.push((client, lease));
        lease
    }

    fn listens(&mut self, client: &'static str) {
        let client: Arc<str> = client.into();
        let listener = Arc::new(Subscriber::new(&client, Arc::new(Untold)));
        self.store.listen(&client, &self.id, &listener);
        self.listeners.push(listener);
    }

    fn is_cut_off(&mut self, client: &'static str) {
        self.store.unlisten(&client.into(), &self.id);
    }

    /// Whether it has the lock then. If not, it has an entry.
    fn asks(&mut self, client: &'static str, access: Access) -> bool {
        let step = Acquire {
            id: self.id.clone(),
            access,
            lease: self.lease(client),
            lease_ms: 10_000,
            entry: Some(QueueEntry {
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
        let entries = self.store.queues.get(&self.id);
        let entries = entries.into_iter().flat_map(|all| &all.entries);
        entries.map(|queued| &*queued.client).collect()
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
