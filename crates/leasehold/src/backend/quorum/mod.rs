//! Leases on several servers that know nothing of each other, of which a majority decides (Redlock). A backend over backends.
//!
//! The rules for what it may believe (QB1 to QB7, docs/rules.md) stand in these files:
//!
//! ```text
//! acquire  release  renew  inspect   the steps: each asks all servers at once, and is decided as soon as it can be
//! coordinator                            where the waiters of a name stand in line
//! pending                            what servers are still to be told
//! ballots                         what each server may have of a lease id: its vote, and what it must be told
//! round                           one ask of several servers, and their words in the order in which they come
//! servers                         which of them can be asked, and whose votes count
//! ```

mod acquire;
mod ballots;
mod coordinator;
mod inspect;
mod pending;
mod release;
mod renew;
mod round;
mod servers;
mod state;

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, MaybeDone, join_all, maybe_done},
    stream::FuturesUnordered,
};

use crate::{
    backend::{
        Acquire, Acquired, Backend, Count, Counted, Downgrade, Extend, Failure, FencedSteps,
        ForceUnlock, Inspection, Keep, KeptEntries, LockSteps, NumberSteps, Once, Permits, Release,
        ReleaseReply, Renew, Renewal, Reply, ServerLink, Sink, Voted, WakeUpSteps,
        fenced::{FencedRead, FencedWrite, Written},
        find::{FindPage, FoundPage},
        report::ServerReport,
    },
    background::BackgroundRuntime,
    clock::Clock,
    config::{Config, millis},
    error::{Cause, Error, Invalid},
    kind::{Access, LockKind},
    name::LockId,
    outage::Outage,
    owner::LeaseId,
};
use ballots::Ballots;
use coordinator::{CoordinatorListener, CoordinatorListeners};
use pending::PendingReleases;
use round::{Failures, ServerReply};
use servers::{ServerPatience, Servers};
use state::QuorumState;

/// With a majority connected, the others are waited for so long.
const SLOWER: Duration = Duration::from_millis(300);

/// A client of several servers.
pub(crate) struct Quorum {
    state: QuorumState,
    longest: Duration,
    /// The servers are said to forget nothing.
    is_persistent: bool,
    outage: Outage,
    shown: String,
}

/// Makes the sinks of the servers, before there are any.
pub(crate) struct Sinks(Arc<CoordinatorListeners>);

impl Sinks {
    pub(crate) fn new(sink: Arc<dyn Sink>) -> Sinks {
        Sinks(CoordinatorListeners::new(sink))
    }

    /// The sink of the server with this number.
    pub(crate) fn of(&self, at: usize) -> Arc<dyn Sink> {
        let listeners = Arc::clone(&self.0);
        Arc::new(CoordinatorListener { listeners, at })
    }
}

impl Quorum {
    /// A majority of these decides. `sinks`: those that they were given, in their order.
    pub(crate) fn new(
        backends: Vec<Box<dyn Backend>>,
        sinks: Sinks,
        clock: Clock,
        config: &Config,
        background: &BackgroundRuntime,
    ) -> Quorum {
        let longest = config.longest_lease();
        let quarantine = if config.persistent_servers {
            Duration::ZERO
        } else {
            longest
        };
        let (of, outage_clock) = (backends.len(), clock.clone());
        let servers = Servers::new(
            backends,
            clock,
            background.clone(),
            quarantine,
            ServerPatience::of(config),
        );
        let names: Vec<&str> = servers.iter().map(|it| &*it.name).collect();
        let shown = names.join(", ");
        let servers = Arc::new(servers);
        let ballots = Arc::new(Ballots::new(of, config.may_duplicate));
        // As long as on one server (`engine/env`).
        let tombstone = config.lease.max(Duration::from_secs(30));
        Quorum {
            outage: Outage::new(shown.clone(), outage_clock),
            state: QuorumState {
                pending_releases: PendingReleases::new(
                    &servers,
                    &ballots,
                    millis(tombstone),
                    longest,
                ),
                listeners: sinks.0,
                servers,
                ballots,
            },
            longest,
            is_persistent: config.persistent_servers,
            shown,
        }
    }

    /// Connects to a majority now, and to the others if they are as quick.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        let connected = self.dial_all().await;
        connected.map_err(|failure| {
            failure.into_error(format!("connect to {}", self.shown), Duration::ZERO)
        })
    }

    async fn dial_all(&self) -> Result<(), Failure> {
        let servers = &self.state.servers;
        let (mut up, mut failures) = (0, Failures::default());
        let dials =
            (0..servers.len()).map(|at| async move { (at, servers.at(at).backend.dial().await) });
        let mut dials: FuturesUnordered<_> = dials.collect();
        // Not polled before it is set: the branch below has a majority for its condition.
        let mut others = pin!(MaybeDone::Gone);
        loop {
            tokio::select! {
                // In this order, so that a server that was as quick is counted before the time of the others ends.
                biased;
                next = dials.next() => match next {
                    Some((_, Ok(()))) => {
                        up += 1;
                        if up == servers.need() {
                            others.set(maybe_done(servers.background.sleep(SLOWER)));
                        }
                    }
                    Some((at, Err(failure))) => failures.note(at, &ServerReply::<()>::Failed(failure)),
                    None => break,
                },
                () = &mut others, if up >= servers.need() => break,
            }
        }
        // Also with a majority: a server that was given twice must be told before its two votes make a hold.
        servers.check()?;
        if up < servers.need() {
            return Err(failures.failure(servers));
        }
        Ok(())
    }

    fn all<T: Send + 'static>(&self, ask: impl Fn(&dyn Backend) -> Reply<T>) -> Vec<Reply<T>> {
        let servers = self.state.servers.iter();
        servers.map(|member| ask(&*member.backend)).collect()
    }
}

impl LockSteps for Quorum {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        Box::pin(acquire::acquire(self.state.clone(), step))
    }

    fn release(&self, step: Release) -> Reply<ReleaseReply> {
        Box::pin(release::release(self.state.clone(), step))
    }

    fn renew(&self, batch: Arc<[Renew]>) -> Reply<Vec<Renewal>> {
        renew::renew(self.state.clone(), &batch)
    }

    fn extend(&self, step: Extend) -> Reply<Option<Duration>> {
        Box::pin(renew::extend(self.state.clone(), step))
    }

    fn count(&self, step: Count) -> Reply<Counted> {
        Box::pin(inspect::count(self.state.clone(), step))
    }

    fn downgrade(&self, _step: Downgrade) -> Reply<bool> {
        refused(NotHere)
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        Box::pin(inspect::inspect(self.state.clone(), id))
    }

    fn find(&self, _step: FindPage) -> Reply<FoundPage> {
        refused(NoList)
    }

    fn force_unlock(&self, step: ForceUnlock) -> Reply<Vec<String>> {
        Box::pin(inspect::force_unlock(self.state.clone(), step))
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        // The same at each server: it is made of the client's uuid and the lease id.
        self.state.servers.at(0).backend.owner(kind, access, lease)
    }

    fn keep(&self, _step: Keep) -> Reply<KeptEntries> {
        refused(NotHere)
    }

    fn supports(&self, id: &LockId) -> Result<(), Invalid> {
        let why = match id.kind {
            LockKind::Mutex | LockKind::SpinMutex | LockKind::PlainMutex => return Ok(()),
            LockKind::LeasedSemaphore | LockKind::Semaphore => {
                "where no server sees all permits, and a majority would give out more than there are"
            }
            LockKind::FencedMutex => {
                "where the largest token of one majority need not be larger than that of the one before"
            }
            LockKind::RwLock | LockKind::FairMutex => {
                "where no server sees all readers or waiters, and several steps change one state"
            }
            LockKind::Latch => "where servers would count apart: a count is no vote",
        };
        let limit = format!("none on a quorum of servers, {why}");
        Err(Invalid::new("the kind of lock", id.kind.to_string(), limit)
            .remedy("take a mutex, spin mutex or plain mutex, or a client of one server"))
    }

    fn confirms(&self) -> Result<(), &'static str> {
        Err("a majority of the quorum's servers has each lock, and no replica has a vote")
    }

    fn longest_lease(&self) -> Option<Duration> {
        Some(self.longest)
    }

    fn voted(&self, lease: LeaseId) -> Option<Voted> {
        // QB4: a round that failed may have left votes at a minority, under a lease id that is not asked for again.
        Some(if self.state.ballots.is_open(lease) {
            Voted::Open
        } else {
            Voted::GivenUp
        })
    }
}

impl WakeUpSteps for Quorum {
    fn listen(&self, id: LockId) -> Reply<()> {
        let QuorumState {
            servers, listeners, ..
        } = &self.state;
        match servers.coordinator_or_why(&id) {
            Ok(coordinator) => listeners.listen(servers, &id, coordinator),
            Err(failure) => Box::pin(std::future::ready(Err(failure))),
        }
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        self.state.listeners.unlisten(&self.state.servers, id)
    }

    fn heard(&self) -> Reply<()> {
        let all = self.all(|backend| backend.heard());
        Box::pin(join_all(all).map(|_| Ok(())))
    }
}

impl NumberSteps for Quorum {
    fn permits(&self, _id: LockId, _step: Permits, _once: Once) -> Reply<i64> {
        refused(NotHere)
    }
}

impl FencedSteps for Quorum {
    fn write(&self, _step: FencedWrite) -> Reply<Written> {
        refused(NotHere)
    }

    fn read(&self, _step: FencedRead) -> Reply<Option<Vec<u8>>> {
        refused(NotHere)
    }
}

impl ServerLink for Quorum {
    fn show(&self, lasts_ms: u64) -> Reply<()> {
        let all = self.all(|backend| backend.show(lasts_ms));
        // Never a failure: the watchdog would write no label any more, for the refusal of a single server (`Label::refused`).
        Box::pin(join_all(all).map(|_| Ok(())))
    }

    fn reports(&self) -> Vec<BoxFuture<'static, ServerReport>> {
        let votes = Some(self.is_persistent);
        let reports = self.state.servers.iter();
        let reports = reports.flat_map(|it| it.backend.reports());
        reports
            .map(|report| report.map(move |it| ServerReport { votes, ..it }).boxed())
            .collect()
    }

    fn can_fail_over(&self) -> Result<(), &'static str> {
        Err("a majority, where no replica has a vote")
    }

    fn has_reached(&self) -> bool {
        // A single server is enough: it may have carried a request out, and an answer that is missing is then `Ambiguous`.
        self.state.servers.iter().any(|it| it.backend.has_reached())
    }

    fn trouble(&self) -> Option<Cause> {
        self.state.servers.trouble()
    }

    fn outage(&self) -> &Outage {
        &self.outage
    }

    fn server(&self) -> String {
        self.shown.clone()
    }

    /// By address: one of the servers may be away, and has another identity after each restart.
    fn identity(&self) -> Option<String> {
        let mut names: Vec<&str> = self.state.servers.iter().map(|it| &*it.name).collect();
        names.sort_unstable();
        Some(names.join(","))
    }

    fn prepare(&self) {
        self.state
            .servers
            .iter()
            .for_each(|it| it.backend.prepare());
    }

    fn move_to_background(&self) {
        self.state
            .servers
            .iter()
            .for_each(|it| it.backend.move_to_background());
    }

    fn shut(&self) {
        self.state.servers.iter().for_each(|it| it.backend.shut());
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a majority of {}", self.shown)
    }
}

fn refused<T: Send + 'static>(why: impl std::error::Error + Send + Sync + 'static) -> Reply<T> {
    Box::pin(std::future::ready(Err(Failure::Rejected(Arc::new(why)))))
}

/// No handle gets here: it asks what a quorum has.
#[derive(Debug, thiserror::Error)]
#[error("a quorum of servers has mutexes, spin mutexes and plain mutexes only")]
struct NotHere;

#[derive(Debug, thiserror::Error)]
#[error(
    "a quorum of servers has no list of its locks; ask one of its servers, by the URL of that server"
)]
struct NoList;
