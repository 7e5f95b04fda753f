//! Whether the server that connections lead to is the one of before, and still knows what it was told.
//!
//! A server is known by its run id and its replication id. At least one id changes whenever it may have forgotten: it was restarted, another
//! has its place, or it was a replica meanwhile. (The replication id changes, too, when the first replica comes: then nothing was
//! forgotten, and a look finds so.) A connection that broke is no reason by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{replicas::Replicas, silence::Silence};
use crate::{
    backend::{Restarted, Sink, report::field},
    user_callback,
};

/// The ids that a server has told of itself: at least one changes when the server may have forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerIds {
    run_id: String,
    replication_id: String,
}

impl ServerIds {
    /// From the answers to `INFO server` and `INFO replication`. `None`: it does not say, as where the user may not ask.
    pub(super) fn of(server: &str, replication: &str) -> Option<ServerIds> {
        let text = |info, name| field(info, name).unwrap_or_default().to_owned();
        let run_id = field(server, "run_id")?.to_owned();
        Some(ServerIds {
            run_id,
            replication_id: text(replication, "master_replid"),
        })
    }
}

/// How often the server has changed, as this client knows it: where its connections are to lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Generation {
    /// Another server was named the primary.
    pub(super) switches: u64,
    /// A server has answered a handshake that was restarted, or is another than the one before.
    pub(super) restarts: u64,
    /// A server has answered a handshake that does not say whether it was restarted.
    doubts: u64,
}

impl Generation {
    /// Grows whenever a command may meet another server than before, or the same one without its data.
    pub(super) fn changes(self) -> u64 {
        self.switches + self.restarts + self.doubts
    }
}

/// Compares what servers say in the handshake, and tells what follows.
pub(super) struct RestartLog {
    sink: Arc<dyn Sink>,
    known: Mutex<Option<ServerIds>>,
    /// A connection has ended since the last handshake.
    has_ended: AtomicBool,
    generation: watch::Sender<Generation>,
    pub(super) replicas: Replicas,
    pub(super) silence: Silence,
}

impl RestartLog {
    pub(super) fn new(sink: Arc<dyn Sink>, silence: Silence) -> Arc<RestartLog> {
        Arc::new(RestartLog {
            sink,
            known: Mutex::default(),
            has_ended: AtomicBool::new(false),
            generation: watch::Sender::default(),
            replicas: Replicas::default(),
            silence,
        })
    }

    pub(super) fn generation(&self) -> Generation {
        *self.generation.borrow()
    }

    /// Hears of each change of the generation. The present one counts as heard.
    pub(super) fn changes(&self) -> watch::Receiver<Generation> {
        self.generation.subscribe()
    }

    /// A server has answered a handshake, and has been up for so long. `again`: the connection takes the place of one that has ended, so where the
    /// server does not say its ids, it may have been restarted meanwhile. Returns the generation that the connection stands on.
    pub(super) fn after_handshake(
        &self,
        ids: Option<ServerIds>,
        up: Option<Duration>,
        again: bool,
    ) -> Generation {
        // To the end: the generation that one server stands on must not be counted for another.
        let mut known = self.known.lock();
        let changed = match ids {
            Some(ids) => {
                // The first server that this client meets takes the place of none.
                let is_new = known.as_ref().is_some_and(|known| *known != ids);
                *known = Some(ids);
                is_new.then_some((1, 0))
            }
            // The ids that are known stay: a server that says its own again later is compared with them.
            None => again.then_some((0, 1)),
        };
        if let Some((restarts, doubts)) = changed {
            // The engine first: then it knows before any answer comes.
            self.sink.restarted(Restarted::Whole);
            self.generation.send_modify(|generation| {
                generation.restarts += restarts;
                generation.doubts += doubts;
            });
        }
        let generation = self.generation();
        // A subscriber of `tracing` is the user's code, and is not called under the lock.
        drop(known);
        if changed.is_some() {
            user_callback::catch_panic(|| {
                tracing::debug!(target: "leasehold", ?up, "the server was restarted, or another has its place: verifying what is held");
            });
        }
        generation
    }

    /// A connection to the server of before was there until now.
    pub(super) fn begins_again(&self) {
        self.sink.restarted(Restarted::Whole);
        // A release that was confirmed on that connection is given back at the present server, too (bug 324).
        self.generation
            .send_modify(|generation| generation.doubts += 1);
    }

    /// Whether a connection has ended, of any connection, since this was asked last.
    pub(super) fn take_ended(&self) -> bool {
        self.has_ended.swap(false, Ordering::AcqRel)
    }

    /// A connection has ended, of any connection.
    pub(super) fn ended(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Another server was named the primary.
    pub(super) fn switched(&self) {
        self.generation
            .send_modify(|generation| generation.switches += 1);
    }

    /// Completes when another server is named the primary than when that had happened so often.
    pub(super) async fn switched_since(&self, switches: u64) {
        let mut changes = self.changes();
        // The sender is here, so this does not fail.
        let _ = changes.wait_for(|now| now.switches != switches).await;
    }

    /// Whether this client holds a lock, or waits for one.
    pub(super) fn is_busy(&self) -> bool {
        self.sink.is_busy()
    }

    /// A connection has ended that no request waits for.
    pub(super) fn cut_off(&self) {
        self.sink.cut_off();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::{backend::WakeUp, name::LockId};

    #[derive(Debug, Default)]
    struct Reported(AtomicUsize);

    impl Sink for Reported {
        fn wake(&self, _id: &LockId, _wake_up: WakeUp) {}

        fn restarted(&self, _change: Restarted) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ids(run_id: &str, replication_id: &str) -> Option<ServerIds> {
        let server = format!("# Server\r\nrun_id:{run_id}\r\n");
        let replication = format!("role:master\r\nmaster_replid:{replication_id}\r\n");
        ServerIds::of(&server, &replication)
    }

    #[test]
    fn a_restart_is_noted_of_each_server_that_may_have_forgotten() {
        let told = Arc::<Reported>::default();
        let restarts = RestartLog::new(Arc::clone(&told) as _, Silence::default());
        for (handshake, again, begun) in [
            (ids("a", "1"), false, 0),
            // Broken, and the same as before.
            (ids("a", "1"), true, 0),
            // Restarted; a replica meanwhile.
            (ids("b", "1"), true, 1),
            (ids("b", "2"), true, 2),
            // It does not say: the first connection of a runtime is no reason.
            (None, false, 2),
            (None, true, 3),
            (ids("b", "2"), true, 3),
        ] {
            restarts.after_handshake(handshake, None, again);
            assert_eq!(told.0.load(Ordering::Relaxed), begun);
        }
        assert_eq!(restarts.generation().restarts, 2);
    }
    /// Bug 324: else what the server of before has confirmed on that connection counts as the present one's word.
    #[test]
    fn a_connection_to_the_server_of_before_that_ends_is_a_change() {
        let told = Arc::<Reported>::default();
        let restarts = RestartLog::new(Arc::clone(&told) as _, Silence::default());
        let (before, changes) = (restarts.generation(), restarts.changes());
        restarts.begins_again();
        assert!(changes.has_changed().unwrap());
        // No connection is left behind for it.
        assert_eq!(restarts.generation().restarts, before.restarts);
        assert_eq!(told.0.load(Ordering::Relaxed), 1);
    }
}
