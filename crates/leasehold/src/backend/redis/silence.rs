//! Connections that take what is sent and say nothing, as behind a load balancer that has lost track of them: all connections of a client to
//! one server, or to one cluster, learn of each.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// A connection that was found silent is replaced. Others that have heard something meanwhile stay. An idle one may be as dead, and would need
/// a whole timeout of its own to find out.
#[derive(Clone, Default)]
pub(crate) struct Silence(Arc<Listeners>);

/// Connections for commands.
pub(super) trait Silenced: Send + Sync {
    /// Connections that have said nothing either since then are used for no other command.
    fn let_go(&self, since: Instant);
}

#[derive(Default)]
struct Listeners {
    connections: Mutex<Vec<Weak<dyn Silenced>>>,
    /// For subscriptions.
    last: watch::Sender<Option<Instant>>,
}

impl Silence {
    /// A connection was asked, and has said nothing for a whole timeout, from then on. The next command goes on none that is as silent.
    pub(super) fn since(&self, since: Instant) {
        // The list is copied: the end of a connection wakes callers, and their wakers must not run under this lock (bug 48).
        let connections = self.0.connections.lock().clone();
        for connections in connections.iter().filter_map(Weak::upgrade) {
            connections.let_go(since);
        }
        // Not `send`, which keeps nothing while no receiver is there: the next attempt to connect may only begin to look.
        self.0.last.send_replace(Some(since));
    }

    pub(super) fn tell(&self, connections: Weak<dyn Silenced>) {
        let mut told = self.0.connections.lock();
        // Nodes of a cluster come and go, and all of them tell one list.
        told.retain(|connections| connections.strong_count() > 0);
        told.push(connections);
    }

    /// Completes when a connection was found silent that was asked after `heard`. A connection that has said nothing since may be as dead, and so may
    /// an attempt to connect that began before.
    pub(super) async fn after(&self, heard: Instant) {
        let mut last = self.0.last.subscribe();
        // The sender is here, so this does not fail.
        let _ = last
            .wait_for(|since| since.is_some_and(|since| heard < since))
            .await;
    }
}
