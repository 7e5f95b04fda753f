//! The servers of a quorum: which of them can be asked, and whose votes count.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    backend::{Backend, Failure},
    clock::{Clock, Tick, margin},
    durations::about,
    error::Cause,
    home::Home,
};

/// How long one server may take to answer, and that part of a lease at most.
const SERVER_TIMEOUT: Duration = Duration::from_millis(200);
const PART_OF_LEASE: u32 = 10;

/// A server without a connection is asked once in this time all the same: one that has refused this client may take it by now.
const TRY_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Servers {
    members: Vec<Member>,
    pub(super) clock: Clock,
    pub(super) home: Home,
    /// The longest lease of all clients; zero: no server of these forgets.
    quarantine: Duration,
    /// All have said which they are, and no two are one.
    all_differ: AtomicBool,
}

/// One of them.
pub(super) struct Member {
    pub(super) backend: Box<dyn Backend>,
    /// As it was given, without secrets.
    pub(super) name: String,
    /// It has not answered a request in its time, nor any since.
    silent: AtomicBool,
    /// When it was last asked without a connection.
    tried: AtomicU64,
}

impl Servers {
    pub(super) fn new(
        backends: Vec<Box<dyn Backend>>,
        clock: Clock,
        home: Home,
        quarantine: Duration,
    ) -> Servers {
        let member = |backend: Box<dyn Backend>| Member {
            name: backend.server(),
            backend,
            silent: AtomicBool::new(false),
            tried: AtomicU64::new(0),
        };
        Servers {
            members: backends.into_iter().map(member).collect(),
            clock,
            home,
            quarantine,
            all_differ: AtomicBool::new(false),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// So many votes make a hold.
    pub(super) fn need(&self) -> usize {
        self.len() / 2 + 1
    }

    /// So many servers may say no, or nothing, beside a hold.
    pub(super) fn spare(&self) -> usize {
        self.len() - self.need()
    }

    pub(super) fn at(&self, at: usize) -> &Member {
        &self.members[at]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// How long each may take to answer a request about a lease of this length.
    pub(super) fn timeout(lease: Duration) -> Duration {
        let part = (lease / PART_OF_LEASE).max(Duration::from_millis(1));
        SERVER_TIMEOUT.min(part)
    }

    /// For how long the vote of a server does not count still, since it may have forgotten locks (QB6).
    pub(super) fn quarantine(&self, at: usize) -> Option<Duration> {
        let started = self.at(at).backend.said().started;
        if started == Tick::default() || self.quarantine.is_zero() {
            return None;
        }
        let over = started.after(self.quarantine + margin(self.quarantine));
        let left = over.since(self.clock.now());
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn may_vote(&self, at: usize) -> bool {
        self.quarantine(at).is_none()
    }

    /// Whether a request to it leaves at once.
    pub(super) fn is_reachable(&self, at: usize) -> bool {
        let member = self.at(at);
        if member.backend.trouble().is_none() {
            return true;
        }
        let now = self.clock.now();
        let tried = Tick::from_nanos(member.tried.load(Ordering::Relaxed));
        let again = now.since(tried) >= TRY_EVERY;
        if again {
            member.tried.store(now.nanos(), Ordering::Relaxed);
        }
        again
    }

    /// Whether it has a connection, and may vote.
    pub(super) fn can_vote(&self, at: usize) -> bool {
        self.at(at).backend.trouble().is_none() && self.may_vote(at)
    }

    /// Whether it answers, too.
    pub(super) fn is_well(&self, at: usize) -> bool {
        !self.at(at).silent.load(Ordering::Relaxed) && self.can_vote(at)
    }

    pub(super) fn note_silent(&self, at: usize, is_silent: bool) {
        let silent = &self.at(at).silent;
        // Most often nothing changes.
        if silent.load(Ordering::Relaxed) != is_silent {
            silent.store(is_silent, Ordering::Relaxed);
        }
    }

    /// An error if the servers cannot make a quorum: one was given twice, or is a replica. Told as soon as both have said so.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.all_differ.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ids: Vec<_> = self.iter().map(|it| it.backend.identity()).collect();
        let ids: Vec<Option<&str>> = ids
            .iter()
            // Two databases of one server are one server. One that does not say its run id has its whole address for an identity.
            .map(|id| match id.as_deref()? {
                address if address.contains("://") => Some(address),
                run_id => run_id.split('/').next(),
            })
            .collect();
        for (at, id) in ids.iter().enumerate() {
            if self.at(at).backend.said().is_replica {
                let name = self.at(at).name.clone();
                return Err(Failure::Rejected(Arc::new(Unfit::Replica { name })));
            }
            let twin = ids[..at]
                .iter()
                .position(|other| other.is_some() && other == id);
            if let Some(twin) = twin.filter(|_| id.is_some()) {
                let [one, other] = [twin, at].map(|at| self.at(at).name.clone());
                return Err(Failure::Rejected(Arc::new(Unfit::Twice { one, other })));
            }
        }
        if ids.iter().all(Option::is_some) {
            self.all_differ.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Why there is no majority: each server that has no vote now, with what it says.
    pub(super) fn no_majority(&self, said: impl Fn(usize) -> Option<Cause>) -> Cause {
        let missing = (0..self.len()).filter_map(|at| {
            let member = self.at(at);
            let why = if let Some(left) = self.quarantine(at) {
                format!("has restarted, and has no vote for {}", about(left))
            } else {
                said(at).or_else(|| member.backend.trouble())?.to_string()
            };
            Some(format!("{} {why}", member.name))
        });
        Arc::new(NoMajority {
            need: self.need(),
            all: self.len(),
            missing: missing.collect(),
        })
    }

    /// Why there is no majority, if too many servers cannot vote before they are asked.
    pub(super) fn trouble(&self) -> Option<Cause> {
        let able = (0..self.len()).filter(|at| self.can_vote(*at)).count();
        (able < self.need()).then(|| self.no_majority(|_| None))
    }
}

#[derive(Debug)]
struct NoMajority {
    need: usize,
    all: usize,
    missing: Vec<String>,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoMajority { need, all, missing } = self;
        let votes = missing.len();
        if votes == 0 {
            return write!(
                f,
                "{need} of {all} servers must vote, and too few answer in time"
            );
        }
        write!(
            f,
            "{need} of {all} servers must vote, and {votes} do not: {}",
            missing.join("; ")
        )
    }
}

impl std::error::Error for NoMajority {}

/// Why servers make no quorum.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(
        "{one} and {other} are the same server (run_id), whose vote would count twice; give each server once"
    )]
    Twice { one: String, other: String },
    #[error(
        "{name} is a replica, which forgets what its primary forgets; give servers that know nothing of each other"
    )]
    Replica { name: String },
}
