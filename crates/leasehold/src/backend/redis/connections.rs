//! Which connection a command travels on.
//!
//! A connection lives on one runtime: its socket is polled there, and it dies with it. So there is one *connection* for
//! each runtime that sends, made when it first does and gone when it ends, and one for the client's background runtime.
//! A command never changes threads on its way, and no runtime that is blocked or ended stands in the way of
//! another's commands, nor of a renewal: those travel on the background runtime's connection.
//!
//! A connection reconnects on its own runtime, for as long as there is one; seldom while no command waits for it, and for a client
//! that was shut down not before one does. Nor before one does if the connection ended while no command was under way: a server
//! that closes idle connections wants fewer of them.

use std::{
    sync::{
        Arc, Once, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use redis::RedisError;
use tokio::{
    runtime::{Handle, Id, RuntimeFlavor},
    sync::{Notify, futures::Notified},
    task::AbortHandle,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    connect::{DialProgress, HungUp},
    discovery::{Discovery, Found, Tally},
    exchange::{Connection, WeakConnection},
    failure::in_words,
    handshake::{Outlook, ServerId},
    restart::{Generation, RestartLog},
    rights::Rights,
    silence::Silenced,
    target::Target,
};
use crate::{
    backend::{Failure, ServerFacts},
    background::{BackgroundRuntime, ThreadGone},
    backoff::{Backoff, spread},
    clock::{Clock, Tick},
    config::Config,
    error::Cause,
    outage::{DANGER, Outage},
    user_callback,
};

/// Between attempts to reconnect.
const RECONNECT_FIRST: Duration = Duration::from_millis(20);
const RECONNECT_MOST: Duration = Duration::from_secs(1);

/// The most while no command waits for the connection. A command that comes to wait ends a longer pause than its own most.
const RECONNECT_UNWANTED: Duration = Duration::from_secs(5);

/// So often it is asked whether the server is another by now, while it is used.
const POLL_EVERY: Duration = Duration::from_secs(2);

/// All connections of a client.
pub(super) struct Connections {
    background: BackgroundRuntime,
    dialler: Arc<Dialler>,
    /// For the work that runs in the background, and for callers without a runtime.
    of_background: Arc<ManagedConnection>,
    /// A connection for each other runtime that has sent anything and has not ended. Few, so a list.
    others: RwLock<Vec<Arc<ManagedConnection>>>,
    /// The server is not to be used any more.
    is_abandoned: AtomicBool,
    /// The task that has the discovery poll.
    polling: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// The connection of one runtime, replaced when it breaks.
pub(super) struct ManagedConnection {
    id: Id,
    runtime: Handle,
    dialler: Arc<Dialler>,
    state: RwLock<ConnectionState>,
    /// Connections that were replaced while requests were under way, and where they lead.
    replaced: Mutex<Vec<(WeakConnection, Generation)>>,
    changed: Notify,
    wanted: Arc<Wanted>,
    /// How many connections it has had.
    made: AtomicU64,
    /// When it was last told that its connection has ended.
    reported_end: Mutex<Option<Instant>>,
    /// The task that reconnects, or did.
    dialling: Mutex<Option<AbortHandle>>,
    /// The task that ends with the runtime, and tells.
    sentinel: OnceLock<AbortHandle>,
}

/// The commands that wait for a connection.
#[derive(Default)]
struct Wanted {
    by: AtomicU32,
    first: Notify,
}

enum ConnectionState {
    /// It has not been wanted yet, or not since its connection ended.
    Idle,
    Up {
        connection: Connection,
        /// Tells a broken connection from the one that has replaced it already.
        number: u64,
        since: Instant,
        /// Where the connection leads.
        generation: Generation,
    },
    /// A task is at work on it; `cause` is why its last attempt failed.
    Down(Cause),
    /// The server refuses a client that has never been connected: no task is at work until one is wanted again.
    Refused(Cause),
    /// The runtime has ended.
    Gone,
}

/// A way for one command.
pub(super) struct Way {
    pub(super) connection: Connection,
    number: u64,
    managed: Arc<ManagedConnection>,
}

/// Why there is no way.
pub(super) enum NoWay {
    /// No connection came about within the time that a command may take, or the server is not to be used any more.
    Down(Cause),
    /// The server refuses this client, and has never taken it.
    Refused(Cause),
    /// The client is of no use any more.
    Gone(ThreadGone),
}

#[derive(Debug, thiserror::Error)]
#[error("not connected yet")]
struct NotYet;

#[derive(Debug, thiserror::Error)]
#[error("another server is the primary now")]
struct LeftBehind;

#[derive(Debug, thiserror::Error)]
#[error("{server} is a replica, and {tally}")]
struct NoPrimary {
    server: String,
    tally: Tally,
}

impl Connections {
    /// Makes no connection yet.
    pub(super) fn new(dialler: Dialler, background: &BackgroundRuntime) -> Arc<Connections> {
        let dialler = Arc::new(dialler);
        Arc::new(Connections {
            background: background.clone(),
            of_background: ManagedConnection::new(background.handle().clone(), &dialler),
            dialler,
            others: RwLock::default(),
            is_abandoned: AtomicBool::new(false),
            polling: Mutex::default(),
        })
    }

    /// Makes the first connection at once, so that a caller that connects learns of errors.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<(), Failure> {
        let here = Handle::try_current().ok();
        // A socket lives on the runtime that polls its connect. A caller may have none: the background runtime connects for it.
        let made = if here.is_some() {
            self.dialler.dial(false).await?
        } else {
            let dialler = Arc::clone(&self.dialler);
            let in_background = self
                .background
                .handle()
                .spawn(async move { dialler.dial(false).await });
            // A caller that drops its connect leaves no attempt behind.
            let made = AbortOnDropHandle::new(in_background).await;
            // The task is not aborted while it is awaited: it fails only with the thread.
            made.unwrap_or_else(|_| Err(Failure::Rejected(Arc::new(ThreadGone))))?
        };
        let first = match here {
            Some(here) if here.id() != self.of_background.id => self.open(here),
            _ => Arc::clone(&self.of_background),
        };
        first.is_up(made);
        Ok(())
    }

    /// Breaks connections that lead to a server which is not the one any more, or may be dead, as long as this client lives.
    pub(super) fn follow(self: &Arc<Self>) {
        self.dialler
            .restarts
            .silence
            .tell(Arc::downgrade(self) as _);
        // The receiver is made here, and not in the task: a change before its first poll is then not missed.
        let (connections, mut changes) = (Arc::downgrade(self), self.dialler.restarts.changes());
        self.background.handle().spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(connections) = connections.upgrade() else {
                    return;
                };
                let generation = *changes.borrow_and_update();
                for managed in connections.all() {
                    managed.leave_behind(generation);
                }
                // Holders without a request under way are to have a connection, too.
                connections.dialler.restarts.cut_off();
            }
        });
    }

    pub(super) fn discovery(&self) -> &Arc<Discovery> {
        &self.dialler.discovery
    }

    /// Has the discovery poll now and then, while a lock is held or waited for, or requests are sent.
    pub(super) fn poll_discovery(self: &Arc<Self>) {
        let Some(poller) = self.dialler.discovery.poller() else {
            return;
        };
        let connections = Arc::downgrade(self);
        let polling = self.background.handle().spawn(async move {
            let mut written = 0;
            loop {
                tokio::time::sleep(POLL_EVERY).await;
                let Some(connections) = connections.upgrade() else {
                    return;
                };
                // Any difference counts, also a smaller sum: a connection that takes the place of another begins at zero.
                let before = std::mem::replace(&mut written, connections.writes());
                let is_used = connections.dialler.restarts.is_busy() || written != before;
                // A client that ends during a poll is not kept alive by it (L3).
                drop(connections);
                if is_used {
                    poller.poll().await;
                } else {
                    poller.rest();
                }
            }
        });
        *self.polling.lock() = Some(AbortOnDropHandle::new(polling));
    }

    /// How often something was written on the connections that there are.
    fn writes(&self) -> u64 {
        let others = self.others.read();
        let connections = others.iter().chain([&self.of_background]);
        connections.map(|managed| managed.writes()).sum()
    }

    fn all(&self) -> Vec<Arc<ManagedConnection>> {
        // The list is copied: the end of a connection wakes callers, and their wakers must not run under this lock (bug 48).
        let mut all = self.others.read().clone();
        all.push(Arc::clone(&self.of_background));
        all
    }

    /// A way for a command from here; waits for it as long as `patience`.
    pub(super) async fn way(self: &Arc<Self>, patience: Duration) -> Result<Way, NoWay> {
        // First: without the background runtime nothing would be renewed, so nothing may be taken.
        self.background.check().map_err(NoWay::Gone)?;
        if let Some(way) = self.of_this_runtime().and_then(ManagedConnection::way) {
            return Ok(way);
        }
        // Seldom, so it takes no room in every request.
        Box::pin(self.wait(patience)).await
    }

    async fn wait(self: &Arc<Self>, patience: Duration) -> Result<Way, NoWay> {
        // From a fork the parent's connections must not be used; its runtimes have none here.
        self.background.check_process().map_err(NoWay::Gone)?;
        let mut cause: Cause = Arc::new(NotYet);
        let found = self
            .background
            // The background runtime's clock measures this, since the runtime that polls now may end in the middle.
            .within(patience, self.next_way(&mut cause))
            .await;
        found.unwrap_or(Err(NoWay::Down(cause)))
    }

    async fn next_way(self: &Arc<Self>, why_not: &mut Cause) -> Result<Way, NoWay> {
        let mut has_asked = false;
        loop {
            // Another runtime may poll this now: a request outlives the runtime that it was made on.
            let managed = self.of_this_runtime().unwrap_or_else(|| self.enter());
            // Registered before the state is read: a change in between ends the wait below (L2).
            let changed = managed.changed.notified();
            // A connection that is there goes on being used, as by the fast path, which does not look at this.
            if self.is_abandoned.load(Ordering::Acquire)
                && !matches!(&*managed.state.read(), ConnectionState::Up { .. })
            {
                return Err(NoWay::Down(Arc::new(LeftBehind)));
            }
            // A refusal counts once this request has had it tried again: the one that stands there may be hours old.
            if let ConnectionState::Refused(cause) = &*managed.state.read()
                && has_asked
            {
                return Err(NoWay::Refused(Arc::clone(cause)));
            }
            managed.dial();
            has_asked = true;
            if let Some(way) = Arc::clone(&managed).way() {
                return Ok(way);
            }
            if let ConnectionState::Down(cause) = &*managed.state.read() {
                *why_not = Arc::clone(cause);
            }
            // A reconnect that pauses for seconds, since no call wants it, goes on at once.
            let _waits = managed.wanted.by_one_more();
            managed
                .changed_or_left(changed, self.of_background.id)
                .await;
        }
    }

    /// The connection of the runtime that calls this, if it has one.
    fn of_this_runtime(&self) -> Option<Arc<ManagedConnection>> {
        let Ok(here) = Handle::try_current() else {
            // The background runtime polls that socket, so a caller without a runtime can wait for its answers.
            return Some(Arc::clone(&self.of_background));
        };
        let id = here.id();
        if id == self.of_background.id {
            return Some(Arc::clone(&self.of_background));
        }
        let others = self.others.read();
        others.iter().find(|managed| managed.id == id).cloned()
    }

    /// The connection of the runtime that calls this, a new one if need be.
    fn enter(self: &Arc<Self>) -> Arc<ManagedConnection> {
        match Handle::try_current() {
            Ok(here) if here.id() != self.of_background.id => self.open(here),
            _ => Arc::clone(&self.of_background),
        }
    }

    fn open(self: &Arc<Self>, runtime: Handle) -> Arc<ManagedConnection> {
        let managed = ManagedConnection::new(runtime, &self.dialler);
        {
            let mut others = self.others.write();
            // Two requests of one runtime may come here at once, and it is to have one connection.
            if let Some(there) = others.iter().find(|there| there.id == managed.id) {
                return Arc::clone(there);
            }
            others.push(Arc::clone(&managed));
        }
        let leaving = Leaving {
            // Weak references: the task lives as long as its runtime, and would keep alive what aborts it in its drop (L3).
            connections: Arc::downgrade(self),
            managed: Arc::downgrade(&managed),
        };
        // Dropped with the runtime; at once, if that has ended already.
        let sentinel = managed.runtime.spawn(async move {
            let _leaving = leaving;
            std::future::pending::<()>().await;
        });
        let _ = managed.sentinel.set(sentinel.abort_handle());
        // The runtime had ended before the task was spawned: its drop has taken the entry out again by now.
        if matches!(&*managed.state.read(), ConnectionState::Gone) {
            return Arc::clone(&self.of_background);
        }
        managed
    }

    /// Why there is no connection, as long as there is none.
    pub(super) fn trouble(&self) -> Option<Cause> {
        // A runtime that has sent nothing yet knows of no trouble.
        let managed = self.of_this_runtime()?;
        let state = managed.state.read();
        match &*state {
            ConnectionState::Down(cause) | ConnectionState::Refused(cause) => {
                // While the first attempt is under way nothing has failed.
                (!cause.is::<NotYet>()).then(|| Arc::clone(cause))
            }
            _ => None,
        }
    }

    /// Whether there has ever been a connection.
    pub(super) fn has_worked(&self) -> bool {
        self.dialler.has_worked.load(Ordering::Relaxed)
    }

    /// The commands that the server refuses to the user.
    pub(super) fn rights(&self) -> &Rights {
        &self.dialler.rights
    }

    /// Whether the server shows our connections under their name.
    pub(super) fn is_named(&self) -> bool {
        self.dialler.is_named.load(Ordering::Relaxed)
    }

    /// The server that was reached last, with the database, if it has said which one it is. If it does not say that, the address.
    pub(super) fn identity(&self) -> Option<String> {
        let Dialler { discovery, .. } = &*self.dialler;
        let said = self.dialler.identity.lock().clone();
        match said {
            ServerId::NotYet => None,
            // Equal names in two databases of one server are two locks, and a multi-lock must have an order for them, too.
            ServerId::RunId(id) => Some(format!("{id}/{}", discovery.database())),
            ServerId::Refused => {
                self.dialler.has_warned.call_once(|| {
                    user_callback::catch_panic(|| {
                        tracing::warn!(
                            target: "leasehold",
                            server = %discovery,
                            "the server does not tell its run_id, so multi-locks with one name on several servers are ordered by address, \
                             and wait in a circle with those of programs that use other addresses; give the user the right to INFO"
                        );
                    });
                });
                Some(discovery.to_string())
            }
        }
    }

    /// The facts that the server has told of itself.
    pub(super) fn said(&self) -> ServerFacts {
        ServerFacts {
            started: Tick::from_nanos(self.dialler.started.load(Ordering::Acquire)),
            is_replica: self.dialler.is_replica.load(Ordering::Acquire),
        }
    }

    /// The server has said which one it is.
    pub(super) fn learn(&self, identity: ServerId) {
        *self.dialler.identity.lock() = identity;
    }

    /// Renewals will want a connection.
    pub(super) fn prepare(&self) {
        self.of_background.dial();
    }

    /// No caller is left. A runtime of one thread may be blocked by the last one, or not be run again: no connection is there any more.
    pub(super) fn move_to_background(&self) {
        let is_one_thread = |managed: &mut Arc<ManagedConnection>| {
            managed.runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
        };
        let left: Vec<_> = self.others.write().extract_if(.., is_one_thread).collect();
        for managed in left {
            if let Some(way) = Arc::clone(&managed).way() {
                // No runtime may poll its task again, so those that wait for an answer are told from here (bug 189).
                way.connection.close();
            }
            managed.leave();
        }
    }

    /// The server is not to be used any more: those that wait for a connection are told so at once. Requests under way go on.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.shut();
        for managed in self.all() {
            // The flag is set by now: each caller that wakes up looks at it.
            managed.changed.notify_waiters();
        }
    }

    pub(super) fn outage(&self) -> &Outage {
        &self.dialler.outage
    }

    /// From here on a connection is made only while a command waits for it.
    pub(super) fn shut(&self) {
        self.dialler.is_shut.store(true, Ordering::Relaxed);
        self.dialler.discovery.shut();
        drop(self.polling.lock().take());
    }
}

impl Silenced for Connections {
    fn let_go(&self, since: Instant) {
        self.all().iter().for_each(|managed| managed.let_go(since));
    }
}

impl Wanted {
    fn by_one_more(&self) -> CommandWaits<'_> {
        if self.by.fetch_add(1, Ordering::Relaxed) == 0 {
            self.first.notify_waiters();
        }
        CommandWaits(self)
    }

    fn is_by_none(&self) -> bool {
        self.by.load(Ordering::Relaxed) == 0
    }

    /// Completes when a command waits.
    async fn by_any(&self) {
        // Made before the count is read: a command that comes in between completes it (L2).
        let first = self.first.notified();
        if self.is_by_none() {
            first.await;
        }
    }
}

/// A command that waits for a connection.
struct CommandWaits<'a>(&'a Wanted);

impl Drop for CommandWaits<'_> {
    fn drop(&mut self) {
        self.0.by.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The end of a runtime is the end of its connection.
struct Leaving {
    connections: Weak<Connections>,
    managed: Weak<ManagedConnection>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let Some(managed) = self.managed.upgrade() else {
            return;
        };
        if let Some(connections) = self.connections.upgrade() {
            connections
                .others
                .write()
                .retain(|there| !Arc::ptr_eq(there, &managed));
        }
        managed.leave();
    }
}

impl Way {
    /// It has carried no answer within `timeout`. If nothing else is heard on it for as long, the next command goes on another: a
    /// half-open socket never says so.
    pub(super) async fn silent(&self, error: &RedisError, timeout: Duration) {
        // After a runtime was blocked, what has come is not read yet.
        tokio::task::yield_now().await;
        let heard = self.connection.heard();
        let rest = timeout.saturating_sub(heard.elapsed());
        let (number, cause) = (self.number, in_words(error.clone()));
        if rest.is_zero() {
            return self.managed.is_silent(number, heard, timeout, &cause);
        }
        // A task waits for the rest: the caller has its answer now, and the connection keeps the whole time that it is due.
        let managed = Arc::downgrade(&self.managed);
        self.managed.runtime.spawn(async move {
            tokio::time::sleep(rest).await;
            if let Some(managed) = managed.upgrade() {
                managed.is_silent(number, heard, timeout, &cause);
            }
        });
    }

    /// It had ended before this command.
    pub(super) fn ended(&self) {
        self.managed.ended(self.number);
    }

    /// It works, but another connection may lead to a better server. Once a second at most, however many find that.
    pub(super) fn unsuitable(&self, error: &RedisError) {
        let young = match &*self.managed.state.read() {
            ConnectionState::Up { since, .. } => since.elapsed() < RECONNECT_MOST,
            _ => true,
        };
        if !young {
            self.broken(error);
        }
    }

    /// The next command is better sent on another connection.
    pub(super) fn broken(&self, error: &RedisError) {
        self.managed.replace(self.number, &in_words(error.clone()));
    }
}

impl ManagedConnection {
    fn new(runtime: Handle, dialler: &Arc<Dialler>) -> Arc<ManagedConnection> {
        Arc::new(ManagedConnection {
            id: runtime.id(),
            runtime,
            dialler: Arc::clone(dialler),
            state: RwLock::new(ConnectionState::Idle),
            replaced: Mutex::default(),
            changed: Notify::new(),
            wanted: Arc::default(),
            made: AtomicU64::new(0),
            reported_end: Mutex::default(),
            dialling: Mutex::default(),
            sentinel: OnceLock::new(),
        })
    }

    /// Commands go another way from here on.
    fn leave(&self) {
        let was = std::mem::replace(&mut *self.state.write(), ConnectionState::Gone);
        drop(was);
        self.changed.notify_waiters();
    }

    fn writes(&self) -> u64 {
        match &*self.state.read() {
            ConnectionState::Up { connection, .. } => connection.writes(),
            _ => 0,
        }
    }

    fn way(self: Arc<Self>) -> Option<Way> {
        let (connection, number) = match &*self.state.read() {
            ConnectionState::Up {
                connection, number, ..
            } => (connection.clone(), *number),
            _ => return None,
        };
        Some(Way {
            connection,
            number,
            managed: self,
        })
    }

    /// Waits for a change of this connection, or until this is polled on another runtime than the connection's.
    async fn changed_or_left(&self, changed: Notified<'_>, background: Id) {
        let mut changed = std::pin::pin!(changed);
        let changed_or_left = std::future::poll_fn(|cx| {
            let here = Handle::try_current().map_or(background, |here| here.id());
            if here == self.id || self.id == background {
                changed.as_mut().poll(cx)
            } else {
                std::task::Poll::Ready(())
            }
        });
        changed_or_left.await;
    }

    fn is_up(
        self: &Arc<Self>,
        Made {
            connection,
            generation,
        }: Made,
    ) {
        let mut state = self.state.write();
        if !matches!(&*state, ConnectionState::Gone) {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            // A connection that ends while no command is under way is noticed by this task alone (bug 160).
            let (managed, ended) = (Arc::downgrade(self), connection.ended());
            self.runtime.spawn(async move {
                ended.await;
                if let Some(managed) = managed.upgrade() {
                    managed.ended(number);
                }
            });
            *state = ConnectionState::Up {
                connection,
                number,
                since: Instant::now(),
                generation,
            };
        }
        drop(state);
        // It may have changed after the connection was made, and before it was seen here.
        self.leave_behind(self.dialler.restarts.generation());
        self.changed.notify_waiters();
    }

    /// Breaks the connection if it leads to a server that is not the primary any more.
    /// After a switch that sentinels have named, all that is under way is repeated elsewhere. Without one, another connection may have seen
    /// a restart that this one has not. Reconnect, at most once per second, to learn which server it leads to.
    fn leave_behind(self: &Arc<Self>, now: Generation) {
        self.leave_present_behind(now);
        // Later than the state was read: a connection that was replaced before that is on this list.
        let is_demoted = |(_, generation): &mut (_, Generation)| generation.switches < now.switches;
        let demoted: Vec<_> = self.replaced.lock().extract_if(.., is_demoted).collect();
        for (connection, _) in demoted {
            connection.void();
        }
    }

    fn leave_present_behind(self: &Arc<Self>, now: Generation) {
        let (demoted, number, rest) = match &*self.state.read() {
            ConnectionState::Up {
                connection,
                number,
                generation,
                since,
            } => {
                let is_demoted = generation.switches < now.switches;
                if !is_demoted && generation.restarts >= now.restarts {
                    return;
                }
                let rest = RECONNECT_MOST.saturating_sub(since.elapsed());
                (is_demoted.then(|| connection.clone()), *number, rest)
            }
            _ => return,
        };
        let is_demoted = demoted.is_some();
        // The old primary may carry out requests that the new one never hears of: the client believes no answer of it from now on (S1).
        // Outside of the lock, as this wakes callers.
        if let Some(connection) = demoted {
            connection.void();
        }
        if !is_demoted && !rest.is_zero() {
            // Not more often than once a second; but not never.
            let managed = Arc::downgrade(self);
            self.runtime.spawn(async move {
                tokio::time::sleep(rest).await;
                if let Some(managed) = managed.upgrade() {
                    managed.leave_behind(now);
                }
            });
            return;
        }
        let cause: Cause = Arc::new(LeftBehind);
        // The trouble was the old server's. The new one has not been tried yet.
        if is_demoted {
            self.dialler.outage.is_over();
        }
        self.replace(number, &cause);
        if !is_demoted {
            // The server of before may have answered for the new one meanwhile.
            self.dialler.restarts.begins_again();
        }
    }

    /// A command has waited in vain on the connection `number`, which has said nothing after `heard`, for a whole `timeout`.
    fn is_silent(self: &Arc<Self>, number: u64, heard: Instant, timeout: Duration, cause: &Cause) {
        match &*self.state.read() {
            ConnectionState::Up {
                connection,
                number: present,
                ..
            // Another connection by now, or it has said something since: neither is silent.
            } if *present == number && connection.heard() == heard => {}
            _ => return,
        }
        self.replace(number, cause);
        // The fault that took down this connection may have taken down all that were idle meanwhile (bugs 260, 261).
        // Any other connection that has heard nothing for the same time is as suspect.
        let since = Instant::now().checked_sub(timeout);
        self.dialler.restarts.silence.since(since.unwrap_or(heard));
    }

    /// See [`Silenced::let_go`]. Requests under way may still be answered; the next command has another connection made.
    fn let_go(&self, since: Instant) {
        // Dropped outside of the lock, below: the end of a connection answers all requests on it.
        let was = {
            let mut state = self.state.write();
            match &*state {
                ConnectionState::Up { connection, .. } if connection.heard() < since => {
                    self.take_out(&mut state, ConnectionState::Idle)
                }
                _ => return,
            }
        };
        drop(was);
        self.dialler.restarts.ended();
        self.cut_off();
        self.changed.notify_waiters();
    }

    /// The connection that was there before `now`, to be dropped outside of the lock. Requests under way on it may be answered, unless the
    /// server is found to be the primary no more (S1, bug 300).
    fn take_out(&self, state: &mut ConnectionState, now: ConnectionState) -> ConnectionState {
        if let ConnectionState::Up {
            connection,
            generation,
            ..
        } = &*state
        {
            let mut replaced = self.replaced.lock();
            replaced.retain(|(connection, _)| !connection.is_over());
            replaced.push((connection.downgrade(), *generation));
        }
        std::mem::replace(state, now)
    }

    /// The connection `number` has ended. A command that was under way finds so, and has another made; if there was none, the
    /// server may have had enough of a client that says nothing, and the next command will have one made.
    fn ended(&self, number: u64) {
        let was = {
            let mut state = self.state.write();
            match &*state {
                ConnectionState::Up {
                    number: present, ..
                } if *present == number => std::mem::replace(&mut *state, ConnectionState::Idle),
                _ => return,
            }
        };
        drop(was);
        // Noted before the next handshake, of whichever runtime: without ids it then counts as a restart (bug 223).
        self.dialler.restarts.ended();
        self.cut_off();
        self.changed.notify_waiters();
        user_callback::catch_panic(
            || tracing::debug!(target: "leasehold", server = %self.dialler.discovery, "connection ended"),
        );
    }

    /// The connection has ended, and no request waits for it. Told once a second at most, else later: a server that closes idle
    /// connections wants fewer.
    fn cut_off(&self) {
        let now = Instant::now();
        let told = self.reported_end.lock().replace(now);
        let wait = told.map_or(Duration::ZERO, |told| {
            RECONNECT_MOST.saturating_sub(now.duration_since(told))
        });
        if wait.is_zero() {
            return self.dialler.restarts.cut_off();
        }
        let restarts = Arc::clone(&self.dialler.restarts);
        self.runtime.spawn(async move {
            tokio::time::sleep(wait).await;
            restarts.cut_off();
        });
    }

    /// Sees to a connection, unless another caller does.
    fn dial(self: &Arc<Self>) {
        let is_at_rest =
            |state: &_| matches!(state, ConnectionState::Idle | ConnectionState::Refused(_));
        // Read first: requests come by the thousand while one task dials.
        if !is_at_rest(&*self.state.read()) {
            return;
        }
        let mut state = self.state.write();
        if !is_at_rest(&*state) {
            return;
        }
        *state = ConnectionState::Down(Arc::new(NotYet));
        drop(state);
        self.begin_to_reconnect();
    }

    /// On the connection's own runtime, not on that of the caller that has noticed.
    fn begin_to_reconnect(self: &Arc<Self>) {
        let task = self
            .runtime
            .spawn(ManagedConnection::reconnect(Arc::downgrade(self)));
        *self.dialling.lock() = Some(task.abort_handle());
    }

    /// The connection `number` is broken: drops it and reconnects in the background. Once per connection.
    fn replace(self: &Arc<Self>, number: u64, cause: &Cause) {
        let mut state = self.state.write();
        match &*state {
            ConnectionState::Up {
                number: present, ..
            } if *present == number => {}
            // It ended by itself before the request on it failed: the request has another made.
            ConnectionState::Idle if self.made.load(Ordering::Relaxed) == number + 1 => {}
            _ => return, // another caller was faster
        }
        let was = self.take_out(&mut state, ConnectionState::Down(Arc::clone(cause)));
        drop(state);
        drop(was);
        self.dialler.restarts.ended();
        user_callback::catch_panic(|| {
            tracing::debug!(target: "leasehold", server = %self.dialler.discovery, %cause, "connection lost, reconnecting");
        });
        self.begin_to_reconnect();
    }

    /// Ends when there is a connection, or the server refuses a client that has never been connected.
    async fn reconnect(managed: Weak<ManagedConnection>) {
        let mut backoff = Backoff::new(RECONNECT_FIRST, RECONNECT_UNWANTED);
        loop {
            let Some(dialler) = managed
                .upgrade()
                .map(|managed| Arc::clone(&managed.dialler))
            else {
                return;
            };
            // A first connection takes the place of none: a server that does not say its ids is no other for it.
            let again = managed
                .upgrade()
                .is_some_and(|managed| managed.made.load(Ordering::Relaxed) > 0);
            // Read before the attempt: a switch in the middle of it ends the pause behind it at once.
            let switches = dialler.restarts.generation().switches;
            let made = loop {
                let began = Instant::now();
                tokio::select! {
                    biased;
                    made = dialler.dial(again) => break made,
                    // Another connection fell silent while this attempt hung: it would hang for the whole connect timeout (bug 261).
                    () = dialler.restarts.silence.after(began) => {}
                }
            };
            let Some(strong) = managed.upgrade() else {
                return;
            };
            match made {
                Ok(made) => {
                    // Only now: a handshake that failed has left no connection to be seen.
                    strong.is_up(made);
                    user_callback::catch_panic(
                        || tracing::debug!(target: "leasehold", server = %dialler.discovery, "connected"),
                    );
                    return;
                }
                Err(failure) if strong.tries_again_after(&failure) => {
                    // A server that ends hangs up first. The next attempt says what has become of it.
                    if !backoff.is_fresh() || !failure.cause().is::<HungUp>() {
                        dialler.outage.goes_on(failure.cause());
                    }
                }
                // Refused for good, and never connected: the next request has it tried again.
                Err(_) => return,
            }
            let wanted = Arc::clone(&strong.wanted);
            // A client that ends meanwhile is not to be kept alive by its pause (L3).
            drop(strong);
            let pause = backoff.next_at_most();
            let resting = async {
                // Up to a second passes in any case. Only the rest of a longer pause ends when a command comes.
                tokio::time::sleep(spread(pause.min(RECONNECT_MOST))).await;
                let rest = pause.saturating_sub(RECONNECT_MOST);
                let _ = tokio::time::timeout(spread(rest), wanted.by_any()).await;
            };
            let is_switched = tokio::select! {
                () = resting => false,
                () = dialler.restarts.switched_since(switches) => true,
            };
            // This task stays meanwhile: a new one would begin with the shortest pause again, at each command that comes.
            if dialler.is_shut.load(Ordering::Relaxed) {
                wanted.by_any().await;
            }
            // The failures were those of another server.
            if is_switched {
                backoff.reset();
            }
        }
    }

    /// An attempt has failed, and requests that wait are told why. Returns whether there is another attempt.
    fn tries_again_after(&self, failure: &Failure) -> bool {
        let cause = Arc::clone(failure.cause());
        let next = if failure.is_final() && !self.dialler.has_worked.load(Ordering::Relaxed) {
            // A client that was connected waits for a server that refuses it, as for one that is down: its holders, and those
            // that wait, need the server back. A client that never was has most likely been told the wrong thing.
            ConnectionState::Refused(cause)
        } else {
            ConnectionState::Down(cause)
        };
        let goes_on = {
            let mut state = self.state.write();
            // Gone meanwhile, if the runtime has ended (bug 35).
            if matches!(&*state, ConnectionState::Down(_)) {
                *state = next;
            }
            matches!(&*state, ConnectionState::Down(_))
        };
        self.changed.notify_waiters();
        goes_on
    }
}

impl Drop for ManagedConnection {
    fn drop(&mut self) {
        if let Some(task) = self.dialling.get_mut() {
            // Its attempt would go on dialling for a client that has ended (bug 122).
            task.abort();
        }
        if let Some(sentinel) = self.sentinel.get() {
            // The runtime would keep one such task for each client that there ever was (L3).
            sentinel.abort();
        }
    }
}

/// A connection that was made, and what it leads to.
struct Made {
    connection: Connection,
    generation: Generation,
}

/// An attempt to connect, which the discovery is told of when it goes.
struct Trying<'a> {
    discovery: &'a Discovery,
    target: &'a Target,
    works: bool,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        self.discovery.tried(self.target, self.works);
    }
}

/// Makes connections.
pub(super) struct Dialler {
    discovery: Arc<Discovery>,
    restarts: Arc<RestartLog>,
    /// Under which name `CLIENT LIST` shows us.
    name: String,
    connect_timeout: Duration,
    /// A connection has come about.
    has_worked: AtomicBool,
    /// The id of the server that was reached last, as far as it has said.
    identity: Mutex<ServerId>,
    /// By when it was started, on the boot clock; zero: it has not been reached.
    started: AtomicU64,
    /// The server takes its data from another.
    is_replica: AtomicBool,
    /// The warning that the server refuses to say which one it is.
    has_warned: Once,
    /// Whether to say that the server may forget locks.
    warns: bool,
    /// Whether the server may forget locks, as was known last.
    outlook: Mutex<Outlook>,
    /// The latest connection was given its name.
    is_named: AtomicBool,
    rights: Rights,
    /// The client was shut down.
    is_shut: AtomicBool,
    outage: Arc<Outage>,
}

impl Dialler {
    pub(super) fn new(
        (discovery, restarts): (Arc<Discovery>, Arc<RestartLog>),
        name: String,
        config: &Config,
        outage: Arc<Outage>,
    ) -> Dialler {
        Dialler {
            discovery,
            restarts,
            name,
            connect_timeout: config.connect_timeout,
            has_worked: AtomicBool::new(false),
            identity: Mutex::new(ServerId::NotYet),
            started: AtomicU64::new(0),
            is_replica: AtomicBool::new(false),
            has_warned: Once::new(),
            warns: config.check_server,
            outlook: Mutex::new(Outlook::Unknown),
            is_named: AtomicBool::new(false),
            rights: Rights::default(),
            is_shut: AtomicBool::new(false),
            outage,
        }
    }

    /// An attempt to find the server, connect, log in, and be recognised as a Redis server's client. The connection lives on the
    /// runtime that polls this. `again`: it takes the place of one that has ended.
    async fn dial(&self, again: bool) -> Result<Made, Failure> {
        let progress = DialProgress::default();
        let mut backoff = Backoff::new(RECONNECT_FIRST, RECONNECT_MOST);
        let (mut replica, mut tried) = (None, None::<Arc<Target>>);
        let dialling = async {
            loop {
                let Found { target, switches } = self.discovery.find().await?;
                // Also if the time is up meanwhile: a server that is silent has been tried in vain.
                tried = Some(Arc::clone(&target));
                let of_target = |failure| self.discovery.name_server(&target, failure);
                let mut trying = Trying {
                    discovery: &self.discovery,
                    target: &target,
                    works: false,
                };
                let made = tokio::select! {
                    biased;
                    made = self.dial_at(&target, again, &progress) => made.map_err(of_target),
                    // A silent server that another has replaced will not be the primary again.
                    () = self.restarts.switched_since(switches) => continue,
                };
                // A replica counts as tried in vain: an announcement that named it is not believed any longer, and the sentinels are asked
                // again.
                trying.works = matches!(made, Ok(Some(_)));
                drop(trying);
                if let Some(mut made) = made? {
                    // The count of when the address was found, not of now: a switch since then breaks this connection as soon as it is up.
                    made.generation.switches = switches;
                    return Ok(made);
                }
                // Sentinels name the old primary for a moment more, and it says that it is a replica by now: ask again (bug 225).
                replica = Some(target.to_string());
                tokio::time::sleep(backoff.next()).await;
            }
        };
        // The login is part of it, and has no timeout of its own.
        match tokio::time::timeout(self.connect_timeout, dialling).await {
            Ok(Ok(made)) => {
                self.has_worked.store(true, Ordering::Relaxed);
                Ok(made)
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                if let (Some(server), Some(tally)) = (replica, self.discovery.tally()) {
                    return Err(Failure::NotNow(Arc::new(NoPrimary { server, tally })));
                }
                let silent = Failure::NotSent(progress.silent(self.connect_timeout));
                Err(match tried {
                    Some(target) => self.discovery.name_server(&target, silent),
                    None => silent,
                })
            }
        }
    }

    /// `None`: it is a replica, where only a primary will do.
    async fn dial_at(
        &self,
        target: &Target,
        again: bool,
        progress: &DialProgress,
    ) -> Result<Option<Made>, Failure> {
        let handshake = target.handshake(&self.name, self.warns, progress).await;
        let handshake =
            handshake.map_err(|error| target.failure(error, self.connect_timeout, progress));
        let (connection, handshake) = handshake?;
        // Before a restart is noted: a replica's ids say nothing of the primary's.
        if handshake.is_replica && self.discovery.wants_primary() {
            return Ok(None);
        }
        // The connection that finds a server restarted may be one that had no connection to it.
        // The mark is taken first, and so in any case: it stands for one handshake.
        let again = self.restarts.take_ended() || again;
        let generation = self
            .restarts
            .after_handshake(handshake.ids, handshake.up, again);
        self.note_start(handshake.up, again);
        self.is_replica
            .store(handshake.is_replica, Ordering::Release);
        self.restarts.replicas.learn(&handshake.replication);
        *self.identity.lock() = handshake.identity;
        self.is_named.store(handshake.is_named, Ordering::Relaxed);
        self.rights.learn(handshake.rights);
        self.warn_of(handshake.outlook);
        // A server that answers each question with a refusal has not become usable by connecting (bug 191).
        if !handshake.refuses_all {
            self.outage.is_over();
        }
        Ok(Some(Made {
            connection,
            generation,
        }))
    }

    /// The server has said for how long it has been up: its count may be ahead by a second. A server that does not say it may have started
    /// now, unless this connection is one more beside others.
    fn note_start(&self, up: Option<Duration>, again: bool) {
        if up.is_none() && !again && self.started.load(Ordering::Acquire) != 0 {
            return;
        }
        let up = up
            .unwrap_or_default()
            .saturating_sub(Duration::from_secs(1));
        // The server goes on while this machine sleeps, and so does this clock: a quorum counts its quarantine by it (QB6).
        let started = Clock::Boot
            .now()
            .nanos()
            .saturating_sub(Tick::from_nanos(0).after(up).nanos());
        // The latest start counts, whichever connection learns of it first; it is never "never".
        self.started.fetch_max(started.max(1), Ordering::Release);
    }

    /// Warns of a server that may forget locks, unless the last one has said the same.
    fn warn_of(&self, outlook: Outlook) {
        let is_known = {
            let mut last = self.outlook.lock();
            let is_known = outlook == Outlook::Unknown || *last == outlook;
            if !is_known {
                last.clone_from(&outlook);
            }
            is_known
        };
        // A subscriber of `tracing` is the user's code, and is not called under the lock.
        if !is_known && let Outlook::Bad(danger) = outlook {
            user_callback::catch_panic(
                || tracing::warn!(target: DANGER, server = %self.discovery, "{danger}"),
            );
        }
    }
}
