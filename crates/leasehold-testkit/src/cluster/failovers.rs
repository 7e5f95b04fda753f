//! Nodes that are lost, and replicas that take the place of primaries.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{CLUSTER_DEADLINE, Cluster, NODES, partner};
use crate::look::{pause, replication};
use crate::server::Flavor;
use crate::wait::wait_until;

/// A replica gives up a failover after 5 s; after that it is asked for again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(6);

/// A node of Redis that has been elected takes the same votes for another election until then, which the others do not accept. Twice the
/// time that a vote may take, which is 2 s at least.
const VOTES_COUNT_FOR: Duration = Duration::from_millis(4_200);

/// How a replica takes the place of its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failover {
    /// It has all that the primary has, which takes no writes meanwhile (`CLUSTER FAILOVER`).
    Planned,
    /// By a vote of the others, without a word to the primary, which may be dead (`FORCE`).
    Force,
    /// Without a vote (`TAKEOVER`).
    Takeover,
}

impl Failover {
    fn command(self) -> &'static [&'static str] {
        match self {
            Failover::Planned => &["CLUSTER", "FAILOVER"],
            Failover::Force => &["CLUSTER", "FAILOVER", "FORCE"],
            Failover::Takeover => &["CLUSTER", "FAILOVER", "TAKEOVER"],
        }
    }
}

impl Cluster {
    /// Kills a node (`SIGKILL`). Its port refuses connections; its proxy takes them and closes them.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Stops a node from running; see [`Server::freeze`](crate::Server::freeze).
    pub fn freeze(&self, node: usize) {
        self.nodes[node].freeze();
    }

    /// Lets a frozen node run again; see [`Server::thaw`](crate::Server::thaw).
    pub fn thaw(&self, node: usize) {
        self.nodes[node].thaw();
    }

    /// Kills a node if it runs, and starts it on its ports. It knows the others, but has no data until a primary sends it some.
    ///
    /// # Panics
    /// As [`Server::restart`](crate::Server::restart).
    #[track_caller]
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].restart_empty();
    }

    /// Freezes the replica of this primary, and says which it is. Once [thawed](Cluster::thaw) it finds in its socket what was
    /// written meanwhile, also if the primary is dead by then.
    #[track_caller]
    pub fn lag(&self, primary: usize) -> usize {
        let replica = partner(primary);
        self.freeze(replica);
        replica
    }

    /// [`lag`](Cluster::lag), and breaks what leads from the primary to the replica: none of what is written from now on reaches it, unless
    /// the primary lives when it is thawed.
    #[track_caller]
    pub fn cut_off(&self, primary: usize) -> usize {
        let replica = self.lag(primary);
        let primary = &self.nodes[primary];
        primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        wait_until(CLUSTER_DEADLINE, "the primary has no replica", || {
            replication(primary).contains("connected_slaves:0")
        });
        replica
    }

    /// Has the replica of this primary take its place as planned, blocks until it has, and says which node it is.
    ///
    /// The others learn of it some milliseconds later. On Redis it waits until the replica's own last election is 4 s ago: before that, such
    /// a server counts the votes of that one again, takes writes, and is then put right by the others.
    ///
    /// # Panics
    /// When it is no primary, or the replica does not do it.
    #[track_caller]
    pub fn fail_over(&self, primary: usize) -> usize {
        self.fail_over_by(primary, Failover::Planned)
    }

    /// [`fail_over`](Cluster::fail_over) in another way.
    ///
    /// # Panics
    /// As [`fail_over`](Cluster::fail_over).
    #[track_caller]
    pub fn fail_over_by(&self, primary: usize, how: Failover) -> usize {
        let primaries = self.primaries();
        assert!(
            primaries.contains(&primary),
            "node {primary} has no slots; these have: {primaries:?}"
        );
        let replica = &self.nodes[partner(primary)];
        let elected = self.elected()[partner(primary)];
        let elected =
            elected.filter(|_| replica.flavor() == Flavor::Redis && how != Failover::Takeover);
        wait_until(CLUSTER_DEADLINE, "votes of the last time are void", || {
            elected.is_none_or(|at| at.elapsed() > VOTES_COUNT_FOR)
        });
        let mut asked: Option<Instant> = None;
        self.wait_for(partner(primary), || {
            if asked.is_none_or(|at| at.elapsed() > ASK_AGAIN_AFTER) {
                asked = replica.ask(how.command()).is_ok().then(Instant::now);
            }
        })
    }

    /// Blocks until the replica of this primary has taken its place, unasked, and says which node it is.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn wait_for_successor(&self, primary: usize) -> usize {
        self.wait_for(partner(primary), || {})
    }

    #[track_caller]
    fn wait_for(&self, new: usize, mut ask: impl FnMut()) -> usize {
        wait_until(CLUSTER_DEADLINE, "the replica is a primary", || {
            ask();
            self.is_primary(new) || pause()
        });
        self.elected()[new] = Some(Instant::now());
        new
    }

    fn elected(&self) -> MutexGuard<'_, [Option<Instant>; NODES]> {
        self.elected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
