//! Renews leases that others than the server are to have too, and waits until these have acknowledged that.
//!
//! `WAIT` speaks of what its own connection wrote last, and of all that the server wrote before that. It blocks that connection. So it
//! travels on a connection of its own, behind a renewal in the same write, and one is for all leases that wait at that moment. On Valkey 9.1
//! only a write makes it look at later data: behind a read it answers at once, with all replicas frozen.
//!
//! Each policy has a connection, made when it is first asked for, so that one that is not met delays no other.

mod able;
mod batch;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::{
    commands::Commands, failure::classify, handshake::text, restart::RestartLog,
    script_runner::ScriptRunner,
};
use crate::{
    backend::{Confirmation, Failure, Renew, Renewal, Reply},
    background::{BackgroundRuntime, ThreadGone},
    config::millis,
    durability::{Durability, Missed},
};

/// The connections of a client that confirm.
pub(super) struct DurableConnections {
    runner: ScriptRunner,
    restarts: Arc<RestartLog>,
    background: BackgroundRuntime,
    timeout: Duration,
    /// Makes connections of their own.
    commands: Box<dyn Fn() -> Commands + Send + Sync>,
    connections: Mutex<Vec<Arc<DurableConnection>>>,
}

/// The connection of one policy.
struct DurableConnection {
    policy: Durability,
    runner: ScriptRunner,
    restarts: Arc<RestartLog>,
    commands: Commands,
    background: BackgroundRuntime,
    timeout: Duration,
    state: Mutex<ConnectionWork>,
}

/// Leases that are confirmed together, for one caller. Of a cluster they are in one slot.
struct BatchEntry {
    leases: Vec<Renew>,
    /// The node has not got their slot yet.
    asks: bool,
    answer: oneshot::Sender<Result<Vec<Confirmation>, Failure>>,
}

#[derive(Default)]
struct ConnectionWork {
    /// The entries that join the next batch.
    waiting: Vec<BatchEntry>,
    /// A task sends the present one.
    is_at_work: bool,
    /// The server has said that it can do it.
    is_able: bool,
}

impl DurableConnections {
    /// Makes no connection yet.
    pub(super) fn new(
        runner: &ScriptRunner,
        restarts: &Arc<RestartLog>,
        background: &BackgroundRuntime,
        timeout: Duration,
        commands: impl Fn() -> Commands + Send + Sync + 'static,
    ) -> DurableConnections {
        DurableConnections {
            runner: runner.clone(),
            restarts: Arc::clone(restarts),
            background: background.clone(),
            timeout,
            commands: Box::new(commands),
            connections: Mutex::default(),
        }
    }

    fn connection(&self, policy: Durability) -> Arc<DurableConnection> {
        // Locked until the new one is listed: callers of a policy share a connection, or their renewals would not share a `WAIT`.
        let mut connections = self.connections.lock();
        if let Some(connection) = connections
            .iter()
            .find(|connection| connection.policy == policy)
        {
            return Arc::clone(connection);
        }
        let connection = Arc::new(DurableConnection {
            policy,
            runner: self.runner.clone(),
            restarts: Arc::clone(&self.restarts),
            commands: (self.commands)(),
            background: self.background.clone(),
            timeout: self.timeout,
            state: Mutex::default(),
        });
        // Its connections must leave an old primary as those for commands do: an acknowledgement from there says nothing (S1).
        connection.commands.connections.follow();
        connections.push(Arc::clone(&connection));
        connection
    }

    /// See [`LockSteps::confirm`](crate::backend::LockSteps::confirm).
    pub(super) fn confirm(
        &self,
        batch: &[Renew],
        policy: Durability,
        asks: bool,
    ) -> Reply<Vec<Confirmation>> {
        let (answer, answered) = oneshot::channel();
        self.connection(policy).join(BatchEntry {
            leases: batch.to_vec(),
            asks,
            answer,
        });
        // A batch that is dropped unanswered went with the background runtime.
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(gone())) })
    }

    /// See [`LockSteps::can_confirm`](crate::backend::LockSteps::can_confirm).
    pub(super) fn can_confirm(&self, policy: Durability) -> Reply<()> {
        let connection = self.connection(policy);
        // Asked once for each policy. A later server that cannot do it fails the confirmation itself, in `send`.
        if connection.state.lock().is_able {
            return Box::pin(std::future::ready(Ok(())));
        }
        // Its connection lives on the background runtime.
        let asked = self
            .background
            .handle()
            .spawn(async move { connection.ask_whether_able().await });
        Box::pin(async move { asked.await.unwrap_or_else(|_| Err(gone())) })
    }

    /// From here on a connection is made only while a request waits for it.
    pub(super) fn shut(&self) {
        for connection in &*self.connections.lock() {
            connection.commands.connections.shut();
        }
    }

    /// The server is not to be used any more.
    pub(super) fn abandon(&self) {
        for connection in &*self.connections.lock() {
            connection.commands.connections.abandon();
        }
    }
}

fn gone() -> Failure {
    Failure::Rejected(Arc::new(ThreadGone))
}

impl DurableConnection {
    fn join(self: &Arc<Self>, entry: BatchEntry) {
        let mut state = self.state.lock();
        state.waiting.push(entry);
        if !std::mem::replace(&mut state.is_at_work, true) {
            drop(state);
            // Dropped with the background runtime, if that has ended.
            let at_work = AtWork {
                connection: Arc::clone(self),
                has_ended: false,
            };
            self.background.handle().spawn(at_work.run());
        }
    }

    /// Asks for what was there before: the server answers at once, or says that it cannot.
    async fn ask_whether_able(&self) -> Result<(), Failure> {
        let question = self.wait_for(0, Duration::from_millis(1));
        let answer = self.runner.command_on(&self.commands, &question).await;
        answer.map_err(|failure| able::of_waiting(self.policy, failure))?;
        // Of an unknown number of replicas one would pass for a majority (bug 231).
        if self.policy == Durability::Majority && self.restarts.replicas.connected().is_none() {
            self.count_replicas()
                .await
                .map_err(|failure| match failure {
                    Failure::Rejected(cause) => able::says_no_number(self.policy, Some(&cause)),
                    other => other,
                })?;
            if self.restarts.replicas.connected().is_none() {
                return Err(able::says_no_number(self.policy, None));
            }
        }
        self.state.lock().is_able = true;
        Ok(())
    }

    /// The command that waits for `replicas`, or for the disk.
    fn wait_for(&self, replicas: u32, timeout: Duration) -> Cmd {
        let timeout = millis(timeout);
        let mut wait = Cmd::new();
        if self.policy == Durability::Aof {
            // The server's own disk, and no replica's.
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
            Durability::Majority => self.restarts.replicas.majority(),
            Durability::Aof | Durability::Primary => 0,
        }
    }

    /// Sends one batch. Each of its leases has an answer.
    async fn send(
        &self,
        entries: &[BatchEntry],
    ) -> Result<Vec<Result<Confirmation, Failure>>, Failure> {
        let (calls, order) = batch::calls(&self.runner, entries);
        let leases = || entries.iter().flat_map(|entry| &entry.leases);
        let asked = leases().count();
        let mut wanted = self.wanted();
        // Shared with the other connections of the client: the word of any handshake counts here.
        let replicas = &self.restarts.replicas;
        // Before a policy is said to be missed, they are counted again.
        let mut short = replicas.connected().is_some_and(|there| there < wanted);
        loop {
            // Where too few replicas are there, a `WAIT` would only block the connection for the whole timeout.
            let last = if short {
                let mut info = redis::cmd("INFO");
                info.arg("replication");
                info
            } else {
                self.wait_for(wanted, self.timeout)
            };
            let mut answers = self
                .runner
                .all_on(&self.commands, (&calls, leases()), &last)
                .await?;
            let said = answers.pop().unwrap_or(Ok(Value::Nil)).map_err(classify);
            if short && let Ok(said) = &said {
                replicas.learn(&text(said.clone()));
                // Of more replicas, a majority is more.
                wanted = self.wanted();
            }
            let missed = match replicas.connected() {
                Some(connected) if short && connected < wanted => {
                    Some(Missed::Connected { connected, wanted })
                }
                // Enough have come meanwhile: `WAIT` needs a write of this connection, so all is sent again.
                _ if std::mem::take(&mut short) => continue,
                _ => None,
            };
            let acknowledged = match said {
                _ if short => Ok((0, 0)),
                Ok(said) => batch::counts(&said),
                Err(failure) => Err(able::of_waiting(self.policy, failure)),
            };
            let confirm = |renewal: Result<Renewal, Failure>| {
                let renewal = renewal?;
                let acknowledged = match &acknowledged {
                    // The server itself has said that the lease is not ours: no acknowledgement is needed.
                    Err(_) if renewal == Renewal::Lost => (0, 0),
                    said => said.clone()?,
                };
                Ok(Confirmation {
                    renewal,
                    replicas: acknowledged.1,
                    on_disk: acknowledged.0 > 0,
                    missed: missed.or_else(|| self.missed(acknowledged, wanted)),
                })
            };
            let renewals = batch::read(answers.into_iter(), asked, &order);
            return Ok(renewals.into_iter().map(confirm).collect());
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
    async fn count_replicas(&self) -> Result<(), Failure> {
        let mut info = redis::cmd("INFO");
        let info = info.arg("replication");
        let said = self.runner.command_on(&self.commands, info).await?;
        self.restarts.replicas.learn(&text(said));
        Ok(())
    }
}

/// The task that sends batches, until none waits.
struct AtWork {
    connection: Arc<DurableConnection>,
    /// By itself: who joins from then on begins another.
    has_ended: bool,
}

impl AtWork {
    async fn run(mut self) {
        let connection = Arc::clone(&self.connection);
        loop {
            let mut entries = {
                let mut state = connection.state.lock();
                // Under the lock: an entry that joins from here on finds no task at work, and begins another.
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
            let answers = connection.send(&entries).await;
            let is_missed = |it: &Result<Confirmation, Failure>| {
                it.as_ref().is_ok_and(|it| it.missed.is_some())
            };
            let has_missed = answers.as_ref().is_ok_and(|all| all.iter().any(is_missed));
            let mut answers = answers.map(Vec::into_iter);
            for entry in entries {
                let its = match &mut answers {
                    Ok(answers) => next_of(answers, entry.leases.len()),
                    Err(failure) => Err(failure.clone()),
                };
                let _ = entry.answer.send(its);
            }
            // Behind the answers, so that no caller waits for this round trip.
            if has_missed {
                let _ = connection.count_replicas().await;
            }
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // With the background runtime: those that wait learn that there is none.
        let waiting = {
            let mut state = self.connection.state.lock();
            state.is_at_work = false;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }
}

/// The next answers, so many; or the first failure among them.
fn next_of<T>(
    answers: &mut impl Iterator<Item = Result<T, Failure>>,
    many: usize,
) -> Result<Vec<T>, Failure> {
    // All are taken first: a failure ends `collect`, and what it leaves would count for the next entry, whose lease may not have been
    // renewed (B1, bug 316).
    let its: Vec<_> = answers.by_ref().take(many).collect();
    its.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_among_the_answers_of_one_entry_moves_none_to_the_next() {
        let moved = || Err(Failure::NotNow(Arc::new(std::fmt::Error)));
        let mut answers = vec![moved(), moved(), Ok(1), moved()].into_iter();
        assert!(next_of(&mut answers, 2).is_err());
        assert_eq!(next_of(&mut answers, 1).unwrap(), [1]);
        assert!(next_of(&mut answers, 1).is_err());
    }
}
