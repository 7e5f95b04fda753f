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
    background::BackgroundRuntime,
    clock::{Clock, Tick, margin},
    config::{Config, millis},
    durations::{about, humane},
    error::Cause,
};

/// A server has at most this part of a lease to answer: the holder has what is left of the lease when a round is over.
/// Where the user says a longer time, a third: a renewal begins when two thirds are left, and must be over before the end.
const PART_OF_LEASE: u32 = 10;
const PART_THAT_MAY_BE_SET: u32 = 3;

/// A request that has no answer within the operation timeout is told to have none, and the next goes on another connection: a server that may
/// take so long is waited for until that is so.
const SAYS_SO: Duration = Duration::from_millis(100);

/// A server without a connection is asked once in this time all the same: one that has refused this client may take it by now.
const TRY_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Servers {
    members: Vec<Member>,
    pub(super) clock: Clock,
    pub(super) background: BackgroundRuntime,
    /// The longest lease of all clients; zero: no server of these forgets.
    quarantine: Duration,
    pub(super) patience: ServerPatience,
    /// All have said which they are, and no two are one.
    all_differ: AtomicBool,
}

/// How long one server may take to answer.
#[derive(Clone, Copy)]
pub(super) struct ServerPatience {
    operation_timeout: Duration,
    /// `server_timeout`, if the user has set it.
    set: Option<Duration>,
}

impl ServerPatience {
    pub(super) fn of(config: &Config) -> ServerPatience {
        ServerPatience {
            operation_timeout: config.operation_timeout,
            set: config.server_timeout,
        }
    }

    /// A request about a lease of this length.
    fn within(self, lease: Duration) -> Duration {
        let time = match self.set {
            Some(time) => time.min(lease / PART_THAT_MAY_BE_SET),
            None => self.operation_timeout.min(lease / PART_OF_LEASE),
        };
        if time >= self.operation_timeout {
            return time + SAYS_SO;
        }
        // Of a lease of some milliseconds a tenth is less than any answer takes.
        time.max(Duration::from_millis(1))
    }
}

/// A server of the majority.
pub(super) struct Member {
    pub(super) backend: Box<dyn Backend>,
    /// As it was given, without secrets.
    pub(super) name: String,
    /// It has not answered a request in its time, nor any since.
    silent: AtomicBool,
    /// How long its last answer took that came too late; zero: none did.
    late: AtomicU64,
    /// When it was last asked without a connection.
    tried: AtomicU64,
}

impl Servers {
    pub(super) fn new(
        backends: Vec<Box<dyn Backend>>,
        clock: Clock,
        background: BackgroundRuntime,
        quarantine: Duration,
        patience: ServerPatience,
    ) -> Servers {
        let member = |backend: Box<dyn Backend>| Member {
            name: backend.server(),
            backend,
            silent: AtomicBool::new(false),
            late: AtomicU64::new(0),
            tried: AtomicU64::new(0),
        };
        Servers {
            members: backends.into_iter().map(member).collect(),
            clock,
            background,
            quarantine,
            patience,
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
    pub(super) fn timeout(&self, lease: Duration) -> Duration {
        self.patience.within(lease)
    }

    /// For how long the vote of a server does not count still, since it may have forgotten locks (QB6).
    pub(super) fn quarantine(&self, at: usize) -> Option<Duration> {
        let started = self.at(at).backend.said().started;
        // Zero: memory that was never restarted, or a server that was not reached yet, whose handshake says it before any answer (QB6).
        if started == Tick::default() || self.quarantine.is_zero() {
            return None;
        }
        // With the margin, as clocks may differ by a percent: a lease from before the restart must have ended by then (S1).
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
        // Two calls may both find it due: the server gets one request more, which does no harm.
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

    /// It has answered after this time, for which it was not waited.
    pub(super) fn note_late(&self, at: usize, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.at(at).late.store(took, Ordering::Relaxed);
    }

    /// It was waited for so long, in vain.
    pub(super) fn no_answer(&self, at: usize, waited: Duration, timeout: Duration) -> Cause {
        let whole = |time: Duration| Duration::from_millis(millis(time));
        let late = Duration::from_nanos(self.at(at).late.load(Ordering::Relaxed));
        Arc::new(NoAnswerInTime {
            waited: whole(waited.min(timeout)),
            is_all: waited >= timeout,
            took: (late > waited).then(|| whole(late)),
        })
    }

    /// An error if the servers cannot make a quorum: one was given twice, or is a replica. Told as soon as both have said so.
    pub(super) fn check(&self) -> Result<(), Failure> {
        // Once is enough: two servers that differ do not become one by a restart.
        if self.all_differ.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Asked anew until all have said it: a server that is away now may be the twin of another.
        let ids: Vec<_> = self.iter().map(|it| it.backend.identity()).collect();
        let ids: Vec<Option<&str>> = ids
            .iter()
            // Two databases of one server are one server. A server that does not say its run id has its whole address for an identity.
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
            if let Some(twin) = twin {
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
        let mut is_slow = false;
        let missing = (0..self.len()).filter_map(|at| {
            let member = self.at(at);
            let why = if let Some(left) = self.quarantine(at) {
                format!("has restarted, and has no vote for {}", about(left))
            } else {
                let cause = said(at).or_else(|| member.backend.trouble())?;
                is_slow |= cause.is::<NoAnswerInTime>();
                cause.to_string()
            };
            Some(format!("{} {why}", member.name))
        });
        let missing: Vec<String> = missing.collect();
        Arc::new(NoMajority {
            need: self.need(),
            all: self.len(),
            missing,
            is_slow,
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
    /// A server may only be far away.
    is_slow: bool,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoMajority {
            need, all, missing, ..
        } = self;
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
        )?;
        if self.is_slow {
            f.write_str(
                "; if they are farther away, set a longer server_timeout, or take a longer lease",
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for NoMajority {}

#[derive(Debug)]
struct NoAnswerInTime {
    waited: Duration,
    /// It had all the time that a server may take.
    is_all: bool,
    /// An earlier answer, which came too late.
    took: Option<Duration>,
}

impl fmt::Display for NoAnswerInTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited = humane(self.waited);
        let which = if self.is_all {
            " (server_timeout)"
        } else {
            ", as a majority had"
        };
        write!(f, "has not answered within {waited}{which}")?;
        match self.took {
            Some(took) => write!(f, ", and took {} before", humane(took)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NoAnswerInTime {}

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
