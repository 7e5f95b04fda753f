//! Renews leases that others than the server are to have too, and waits until these have acknowledged that.
//!
//! `WAIT` speaks of what its own connection wrote last, and of all that the server wrote before that. It blocks that connection. So it
//! travels on a connection of its own, behind a renewal in the same write, and one is for all leases that wait at that moment. On Valkey 9.1
//! only a write makes it look at later data: behind a read it answers at once, with all replicas frozen.
//!
//! Each policy has a connection, made when it is first asked for, so that one that is not met delays no other.

mod lease;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::{
    caller::Caller,
    commands::Commands,
    epoch::EpochLog,
    failure::in_words,
    greeting::text,
    kinds::{renewals, wire},
    script::{Call, unexpected},
};
use crate::{
    backend::{Confirmation, Failure, Renew, Renewal, Reply},
    config::millis,
    durability::{Durability, Missed},
    error::Cause,
    home::{Home, ThreadGone},
    kind::LockKind,
};

use lease::Unconfirmed;

/// So many leases are renewed by one script at most: the server does nothing else meanwhile.
const SCRIPT_MOST: usize = 200;

/// The lanes of a client that confirm.
pub(super) struct DurableLanes {
    caller: Caller,
    epochs: Arc<EpochLog>,
    home: Home,
    timeout: Duration,
    /// Makes connections of their own.
    commands: Box<dyn Fn() -> Commands + Send + Sync>,
    lanes: Mutex<Vec<Arc<DurableLane>>>,
}

/// The lane of one policy.
struct DurableLane {
    policy: Durability,
    caller: Caller,
    epochs: Arc<EpochLog>,
    commands: Commands,
    home: Home,
    timeout: Duration,
    state: Mutex<LaneWork>,
}

#[derive(Default)]
struct LaneWork {
    /// What joins the next batch.
    waiting: Vec<BatchEntry>,
    /// A task sends the present one.
    is_at_work: bool,
    /// The server has said that it can do it.
    is_able: bool,
}

/// Leases that are confirmed together, for one caller.
struct BatchEntry {
    leases: Vec<Unconfirmed>,
    answer: oneshot::Sender<Result<Confirmation, Failure>>,
}

impl DurableLanes {
    /// Makes no connection yet.
    pub(super) fn new(
        caller: &Caller,
        epochs: &Arc<EpochLog>,
        home: &Home,
        timeout: Duration,
        commands: impl Fn() -> Commands + Send + Sync + 'static,
    ) -> DurableLanes {
        DurableLanes {
            caller: caller.clone(),
            epochs: Arc::clone(epochs),
            home: home.clone(),
            timeout,
            commands: Box::new(commands),
            lanes: Mutex::default(),
        }
    }

    fn lane(&self, policy: Durability) -> Arc<DurableLane> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.iter().find(|lane| lane.policy == policy) {
            return Arc::clone(lane);
        }
        let lane = Arc::new(DurableLane {
            policy,
            caller: self.caller.clone(),
            epochs: Arc::clone(&self.epochs),
            commands: (self.commands)(),
            home: self.home.clone(),
            timeout: self.timeout,
            state: Mutex::default(),
        });
        lane.commands.lanes().follow();
        lanes.push(Arc::clone(&lane));
        lane
    }

    /// See [`LockSteps::confirm`](crate::backend::LockSteps::confirm).
    pub(super) fn confirm(&self, batch: &[Renew<'_>], policy: Durability) -> Reply<Confirmation> {
        let leases = batch.iter().map(Unconfirmed::of);
        let (answer, answered) = oneshot::channel();
        let leases = leases.collect();
        self.lane(policy).join(BatchEntry { leases, answer });
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(gone())) })
    }

    /// See [`LockSteps::can_confirm`](crate::backend::LockSteps::can_confirm).
    pub(super) fn can_confirm(&self, policy: Durability) -> Reply<()> {
        let lane = self.lane(policy);
        if lane.state.lock().is_able {
            return Box::pin(std::future::ready(Ok(())));
        }
        // Its connection lives at home.
        let asked = self
            .home
            .handle()
            .spawn(async move { lane.ask_whether_able().await });
        Box::pin(async move { asked.await.unwrap_or_else(|_| Err(gone())) })
    }

    /// From here on a connection is made only while a request waits for it.
    pub(super) fn shut(&self) {
        for lane in &*self.lanes.lock() {
            lane.commands.shut();
        }
    }
}

fn gone() -> Failure {
    Failure::Rejected(Arc::new(ThreadGone))
}

impl DurableLane {
    fn join(self: &Arc<Self>, entry: BatchEntry) {
        let mut state = self.state.lock();
        state.waiting.push(entry);
        if !std::mem::replace(&mut state.is_at_work, true) {
            drop(state);
            // Dropped with the home, if that has ended.
            let at_work = AtWork {
                lane: Arc::clone(self),
                has_ended: false,
            };
            self.home.handle().spawn(at_work.run());
        }
    }

    /// Asks for what was there before: the server answers at once, or says that it cannot.
    async fn ask_whether_able(&self) -> Result<(), Failure> {
        let question = self.wait_for(0, Duration::from_millis(1));
        match self.commands.command(&question).await {
            Ok(_) => {
                self.state.lock().is_able = true;
                Ok(())
            }
            // It is about to be replaced, or was: the next one may be asked.
            Err(Failure::Rejected(cause)) if cause.to_string().contains("replica instances") => {
                Err(Failure::NotNow(cause))
            }
            Err(Failure::Rejected(cause)) => Err(Failure::Rejected(self.cannot(cause))),
            Err(failure) => Err(failure),
        }
    }

    /// What to do about a server that refuses it.
    fn cannot(&self, cause: Cause) -> Cause {
        let said = cause.to_string();
        let remedy = if said.contains("unknown command") {
            "use Redis 7.2 or Valkey, or Durability::Replicas(n)"
        } else if said.contains("appendonly") {
            "set its appendonly yes, or use Durability::Replicas(n)"
        } else {
            return cause;
        };
        Arc::new(Cannot {
            policy: self.policy,
            said,
            remedy,
        })
    }

    /// The command that waits for `replicas`, or for the disk.
    fn wait_for(&self, replicas: u32, timeout: Duration) -> Cmd {
        let timeout = millis(timeout);
        let mut wait = Cmd::new();
        if self.policy == Durability::Aof {
            wait.arg("WAITAOF").arg(1).arg(0).arg(timeout);
        } else {
            wait.arg("WAIT").arg(replicas).arg(timeout);
        }
        wait
    }

    /// How many replicas are to have it.
    fn wanted(&self) -> u32 {
        match self.policy {
            Durability::Replicas(replicas) => u32::from(replicas),
            Durability::Majority => self.epochs.replicas.majority(),
            Durability::Aof | Durability::Primary => 0,
        }
    }

    /// Sends one batch.
    async fn send(&self, leases: &[&Unconfirmed]) -> Result<Confirmation, Failure> {
        let (calls, order) = calls(&self.caller, leases);
        let wanted = self.wanted();
        let replicas = &self.epochs.replicas;
        let mut has_counted = false;
        loop {
            let is_short = replicas.connected().is_some_and(|there| there < wanted);
            // Before a policy is said to be missed, they are counted again.
            let short = is_short && !has_counted;
            let last = if short {
                let mut info = redis::cmd("INFO");
                info.arg("replication");
                info
            } else {
                self.wait_for(wanted, self.timeout)
            };
            let answers = self.commands.all(&calls, &last).await?;
            let Value::Array(mut answers) = answers else {
                return Err(Failure::Rejected(in_words(unexpected(&answers))));
            };
            let said = answers.pop().unwrap_or(Value::Nil);
            if short {
                replicas.learn(&text(said.clone()));
                has_counted = true;
            }
            let missed = match replicas.connected() {
                Some(connected) if short && connected < wanted => {
                    Some(Missed::Connected { connected, wanted })
                }
                // Enough have come meanwhile: `WAIT` needs a write of this connection, so all is sent again.
                _ if short => continue,
                _ => None,
            };
            let acknowledged = if short { (0, 0) } else { counts(&said)? };
            return Ok(Confirmation {
                renewals: read(&answers, leases.len(), &order)?,
                replicas: acknowledged.1,
                on_disk: acknowledged.0 > 0,
                missed: missed.or_else(|| self.missed(acknowledged, wanted)),
            });
        }
    }

    fn missed(&self, (disks, replicas): (u32, u32), wanted: u32) -> Option<Missed> {
        if self.policy == Durability::Aof {
            return (disks == 0).then_some(Missed::Disk(self.timeout));
        }
        (replicas < wanted).then_some(Missed::Replicas {
            acknowledged: replicas,
            wanted,
            within: self.timeout,
        })
    }

    /// After a miss, so that the next lock fails at once if the replicas have gone.
    async fn count_replicas(&self) {
        let mut info = redis::cmd("INFO");
        if let Ok(said) = self.commands.command(info.arg("replication")).await {
            self.epochs.replicas.learn(&text(said));
        }
    }
}

/// The task that sends batches, until none waits.
struct AtWork {
    lane: Arc<DurableLane>,
    /// By itself: who joins from then on begins another.
    has_ended: bool,
}

impl AtWork {
    async fn run(mut self) {
        let lane = Arc::clone(&self.lane);
        loop {
            let mut entries = {
                let mut state = lane.state.lock();
                if state.waiting.is_empty() {
                    state.is_at_work = false;
                    self.has_ended = true;
                    return;
                }
                std::mem::take(&mut state.waiting)
            };
            // Whose time was up has given its lease back.
            entries.retain(|entry| !entry.answer.is_closed());
            if entries.is_empty() {
                continue;
            }
            let leases: Vec<&Unconfirmed> =
                entries.iter().flat_map(|entry| &entry.leases).collect();
            let answer = lane.send(&leases).await;
            let has_missed = answer.as_ref().is_ok_and(|it| it.missed.is_some());
            let mut from = 0;
            for entry in entries {
                let to = from + entry.leases.len();
                let its = answer.clone().map(|mut all| {
                    all.renewals = all.renewals[from..to].to_vec();
                    all
                });
                from = to;
                let _ = entry.answer.send(its);
            }
            if has_missed {
                lane.count_replicas().await;
            }
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // With the home: those that wait learn that there is none.
        let waiting = {
            let mut state = self.lane.state.lock();
            state.is_at_work = false;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }
}

/// The scripts that renew all of these, and where each lease stands in their answers, one after the other.
fn calls(caller: &Caller, leases: &[&Unconfirmed]) -> (Vec<Call>, Vec<Vec<usize>>) {
    let (mut calls, mut order) = (Vec::new(), Vec::new());
    for kind in LockKind::ALL {
        let of_kind = (0..leases.len()).filter(|at| leases[*at].id.kind == kind);
        let of_kind: Vec<usize> = of_kind.collect();
        for some in of_kind.chunks(SCRIPT_MOST) {
            let batch: Vec<Renew<'_>> = some.iter().map(|at| leases[*at].renew()).collect();
            if let Some(call) = wire(kind).renewal(caller, &batch) {
                calls.push(call);
                order.push(some.to_vec());
            }
        }
    }
    (calls, order)
}

/// The answers of these scripts, in the order of the leases.
fn read(answers: &[Value], asked: usize, order: &[Vec<usize>]) -> Result<Vec<Renewal>, Failure> {
    let mut all = vec![Renewal::Unknown; asked];
    for (answer, order) in answers.iter().zip(order) {
        let of_script = renewals(answer, order.len())
            .ok_or_else(|| Failure::Rejected(in_words(unexpected(answer))))?;
        for (at, renewal) in order.iter().zip(of_script) {
            all[*at] = renewal;
        }
    }
    Ok(all)
}

/// The answer to `WAIT` or `WAITAOF`: on how many disks, and how many replicas.
fn counts(said: &Value) -> Result<(u32, u32), Failure> {
    let count = |value: &Value| match value {
        Value::Int(count) => u32::try_from(*count).ok(),
        _ => None,
    };
    let counts = match said {
        Value::Array(both) => match both.as_slice() {
            [disks, replicas] => count(disks).zip(count(replicas)),
            _ => None,
        },
        one => count(one).map(|replicas| (0, replicas)),
    };
    counts.ok_or_else(|| Failure::Rejected(in_words(unexpected(said))))
}

#[derive(Debug, thiserror::Error)]
#[error("the server cannot do {policy}: {said}; {remedy}")]
struct Cannot {
    policy: Durability,
    said: String,
    remedy: &'static str,
}
