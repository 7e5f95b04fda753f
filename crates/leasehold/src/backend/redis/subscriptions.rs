//! The lane for wake-ups: one connection that only subscribes, made when the first waiter comes.
//!
//! For each name it hears a channel (Redisson's, if it has one), on which releases say that the name is free, and an inbox of its own,
//! on which the server says that the name is this client's.
//!
//! It runs at home, so that a wake-up is heard even if the waiter's runtime is blocked.
//!
//! After a gap it subscribes to everything again, and tells all waiters to ask the server. It makes a gap itself when the server may be
//! another: it does not learn which one its own connection leads to, and one that was the primary is still heard, and hears nothing.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use redis::{
    ErrorKind, RedisError,
    aio::{PubSubSink, PubSubStream},
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    connect::DialProgress,
    epoch::{EpochLog, Ground},
    failure::in_words,
    finder::Finder,
    kinds::wire,
    lanes::Lanes,
};
use crate::{
    backend::{Failure, Reply, Sink, WakeUp},
    callout,
    clock::Clock,
    config::Config,
    durations::humane,
    error::Cause,
    home::Home,
    name::{FREE, LockId, OURS},
    outage::Seldom,
};

pub(super) struct Subscriptions {
    orders: mpsc::UnboundedSender<Order>,
    counted: Arc<Audience>,
    timeout: Duration,
    home: Home,
    #[cfg(feature = "sim")]
    simulated: Option<SimulatedLane>,
}

enum Order {
    Listen(LockId, oneshot::Sender<Result<(), Cause>>),
    Unlisten(LockId, oneshot::Sender<()>),
    /// Answered when all messages are heard that the server has sent before it.
    Mark(oneshot::Sender<()>),
}

impl Subscriptions {
    pub(super) fn new(
        (finder, epochs): (Arc<Finder>, &EpochLog),
        client: &Arc<str>,
        config: &Config,
        sink: Arc<dyn Sink>,
        home: &Home,
        commands: &Arc<Lanes>,
    ) -> Subscriptions {
        let (orders, inbox) = mpsc::unbounded_channel();
        let counted = Arc::new(Audience::default());
        let lane = SubscriptionLane {
            finder,
            changes: epochs.changes(),
            client: Arc::clone(client),
            connect_timeout: config.connect_timeout,
            operation_timeout: config.operation_timeout,
            sink,
            ids: HashMap::new(),
            counted: Arc::clone(&counted),
            worked: false,
            next: None,
            commands: Arc::downgrade(commands),
        };
        home.handle().spawn(lane.run(inbox));
        Subscriptions {
            orders,
            counted,
            timeout: config.operation_timeout,
            home: home.clone(),
            #[cfg(feature = "sim")]
            simulated: None,
        }
    }

    /// Whether the server may count this client among those that listen for the name: until an unsubscription is confirmed.
    pub(super) fn is_counted(&self, id: &LockId) -> bool {
        self.counted.order(id).is_some()
    }

    /// Why there is no connection, as long as one is wanted and there is none.
    pub(super) fn trouble(&self) -> Option<Cause> {
        self.counted.trouble.lock().clone()
    }

    pub(super) fn listen(&self, id: LockId) -> Reply<()> {
        #[cfg(feature = "sim")]
        if let Some(lane) = &self.simulated {
            return lane.listen(id, &self.counted);
        }
        let (told, heard) = oneshot::channel();
        // Fails only when the thread has ended, and then no answer comes.
        let _ = self.orders.send(Order::Listen(id, told));
        let (timeout, home) = (self.timeout, self.home.clone());
        Box::pin(async move {
            match home.within(timeout, heard).await {
                Some(Ok(Ok(()))) => Ok(()),
                Some(Ok(Err(cause))) => Err(Failure::NotSent(cause)),
                // The connection broke, or the thread has ended.
                Some(Err(untold)) => Err(match home.check() {
                    Ok(()) => Failure::NotSent(Arc::new(untold)),
                    Err(gone) => Failure::Rejected(Arc::new(gone)),
                }),
                None => Err(Failure::NotSent(Arc::new(NotHeard(timeout)))),
            }
        })
    }

    pub(super) fn unlisten(&self, id: &LockId) -> Reply<()> {
        #[cfg(feature = "sim")]
        if let Some(lane) = &self.simulated {
            return lane.unlisten(id, &self.counted);
        }
        let (told, done) = oneshot::channel();
        let _ = self.orders.send(Order::Unlisten(id.clone(), told));
        Box::pin(async move {
            // An error means that the connection is gone, and the subscription with it.
            let _ = done.await;
            Ok(())
        })
    }

    /// Completes when all messages are heard that the server has sent until now.
    pub(super) fn heard(&self) -> Reply<()> {
        let (told, heard) = oneshot::channel();
        let _ = self.orders.send(Order::Mark(told));
        Box::pin(async move {
            // An error means that the connection is gone, and the messages on it are lost.
            let _ = heard.await;
            Ok(())
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not subscribed within {}", humane(*.0))]
struct NotHeard(Duration);

struct SubscriptionLane {
    finder: Arc<Finder>,
    /// Of the server that connections are to lead to.
    changes: watch::Receiver<Ground>,
    client: Arc<str>,
    connect_timeout: Duration,
    operation_timeout: Duration,
    sink: Arc<dyn Sink>,
    /// By channel: its names. Redisson's channel of `x` is that of `{x}` too.
    ids: HashMap<String, Vec<LockId>>,
    counted: Arc<Audience>,
    /// A subscription has come about on the present connection.
    worked: bool,
    /// Takes the place of a connection whose login ends.
    next: Option<Dialled>,
    commands: Weak<Lanes>,
}

/// The names for which the server may count this client among the subscribers, and since which order.
#[derive(Default)]
struct Audience {
    ids: Mutex<HashMap<LockId, u64>>,
    orders: AtomicU64,
    trouble: Mutex<Option<Cause>>,
}

impl Audience {
    fn begin(&self, id: &LockId) -> u64 {
        let order = self.orders.fetch_add(1, Ordering::Relaxed);
        self.ids.lock().insert(id.clone(), order);
        order
    }

    fn order(&self, id: &LockId) -> Option<u64> {
        self.ids.lock().get(id).copied()
    }

    /// An unsubscription was confirmed that was asked for after `order`.
    fn end(&self, id: &LockId, order: Option<u64>) {
        let mut ids = self.ids.lock();
        if ids.get(id).copied() == order {
            ids.remove(id);
        }
    }
}

type PubSubHalves = (PubSubSink, PubSubStream);

/// A connection, and when another is to take its place.
type Dialled = (PubSubHalves, Option<Instant>);

/// The result of a request: done, refused, or the connection is gone.
type RequestResult = Result<Option<Refused>, RedisError>;

/// The server does not let this client listen for one of these names, and so for none of them: its answer to these orders.
type Refused = Vec<(LockId, u64)>;

/// So many names are subscribed to again by one request: few enough that its answer comes within one operation timeout.
const AT_ONCE: usize = 100;

/// Pauses between connections, doubled up to the most; after a connection on which a subscription came about, none.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// Before so many connections in a row have failed, it may be the server that fails: commands are told that meanwhile.
const FAILURES_FEW: u32 = 3;

impl SubscriptionLane {
    /// Ends with the client.
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut pause = PAUSE_FIRST;
        let mut waiting = Vec::new();
        let warned = Seldom::default();
        let mut failures = 0;
        loop {
            // No waiter: no connection is needed.
            if self.ids.is_empty() && waiting.is_empty() {
                self.counted.trouble.lock().take();
            }
            while self.ids.is_empty() && waiting.is_empty() {
                match orders.recv().await {
                    Some(Order::Listen(id, told)) => waiting.push((id, told)),
                    Some(Order::Unlisten(..) | Order::Mark(_)) => {}
                    None => return,
                }
            }
            let dialled = match self.next.take() {
                Some(next) => Ok(next),
                None => dial(&self.finder, &mut self.changes, self.connect_timeout).await,
            };
            match dialled {
                Ok(dialled) => {
                    self.counted.trouble.lock().take();
                    self.worked = false;
                    let ended = self
                        .hear(dialled, &mut orders, &mut waiting)
                        .await
                        .is_none();
                    self.counted.ids.lock().clear();
                    if ended {
                        return;
                    }
                    if self.worked {
                        failures = 0;
                        pause = PAUSE_FIRST;
                        continue;
                    }
                }
                Err(cause) => {
                    self.counted.trouble.lock().replace(Arc::clone(&cause));
                    for (_, told) in waiting.drain(..) {
                        let _ = told.send(Err(Arc::clone(&cause)));
                    }
                    failures += 1;
                    if self.is_alone_in_trouble()
                        && failures >= FAILURES_FEW
                        && warned.may_warn(Clock::Boot.now())
                    {
                        callout::quietly(|| {
                            tracing::warn!(target: "leasehold", server = %self.finder, %cause, "cannot subscribe, trying again; those that wait ask now and then meanwhile");
                        });
                    }
                }
            }
            // Also after a connection that ended at once: the server may refuse a subscription each time.
            if self.rest(pause, &mut orders, &mut waiting).await.is_none() {
                return;
            }
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Whether the server can be used but for this. Commands have a connection made if they have none, and that tells.
    fn is_alone_in_trouble(&self) -> bool {
        self.commands.upgrade().is_some_and(|commands| {
            commands.prepare();
            !commands.outage().is_on()
        })
    }

    /// Pauses before the next connection. `None`: the client has ended.
    async fn rest(
        &mut self,
        pause: Duration,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        waiting: &mut Vec<(LockId, oneshot::Sender<Result<(), Cause>>)>,
    ) -> Option<()> {
        let pause = pause / 2 + pause.mul_f64(fastrand::f64() / 2.0);
        let mut over = pin!(tokio::time::sleep(pause));
        loop {
            tokio::select! {
                () = &mut over => return Some(()),
                Ok(()) = self.changes.changed() => return Some(()),
                order = orders.recv() => match order? {
                    Order::Listen(id, told) => waiting.push((id, told)),
                    Order::Unlisten(id, told) => {
                        waiting.retain(|(waits, _)| *waits != id);
                        self.forget(&id);
                        let _ = told.send(());
                    }
                    Order::Mark(_) => {}
                },
            }
        }
    }

    /// Hears until the connection breaks. `None`: the client has ended.
    async fn hear(
        &mut self,
        ((sink, mut stream), renew_at): Dialled,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        waiting: &mut Vec<(LockId, oneshot::Sender<Result<(), Cause>>)>,
    ) -> Option<()> {
        // Requests go out in order, one behind the other; only their answers are awaited side by side.
        let mut requests = FuturesUnordered::new();
        let again: BTreeSet<LockId> = self.ids.values().flatten().cloned().collect();
        let mut again: Vec<LockId> = again.into_iter().collect();
        requests.extend(self.subscribe_to_more(&sink, &mut again));
        for (id, told) in waiting.drain(..) {
            requests.push(self.subscribe(&sink, &id, told));
        }
        let mut successor = pin!(successor(
            (Arc::clone(&self.finder), self.changes.clone()),
            self.connect_timeout,
            renew_at
        ));
        // Answers come one behind the other, too: a connection is dead if it is silent for too long, not if many are slow.
        let mut heard = Instant::now();
        loop {
            let is_asked = !requests.is_empty();
            let too_late = heard + self.operation_timeout;
            tokio::select! {
                biased;
                message = stream.next() => match message {
                    Some(message) => {
                        heard = Instant::now();
                        self.dispatch(message.get_channel_name(), message.get_payload_bytes());
                    }
                    None => return Some(()),
                },
                Some(done) = requests.next(), if is_asked => {
                    heard = Instant::now();
                    match done {
                        Ok(None) => self.worked = true,
                        // The server refuses this name; the others are still heard.
                        Ok(Some(refused)) if refused.len() == 1 => self.refused(&refused[0]),
                        // It refuses one of them: each by itself.
                        Ok(Some(refused)) => for (id, _) in refused {
                            send(&mut requests, self.subscribe_again(&sink, vec![id]));
                        },
                        Err(_) => return Some(()),
                    }
                    if let Some(more) = self.subscribe_to_more(&sink, &mut again) {
                        send(&mut requests, more);
                    }
                }
                order = orders.recv() => {
                    if !is_asked {
                        heard = Instant::now();
                    }
                    match order {
                        Some(Order::Listen(id, told)) => send(&mut requests, self.subscribe(&sink, &id, told)),
                        Some(Order::Unlisten(id, told)) => send(&mut requests, self.unsubscribe(&sink, &id, told)),
                        Some(Order::Mark(told)) => requests.push(mark(&sink, told)),
                        None => return None,
                    }
                }
                () = tokio::time::sleep_until(too_late.into()), if is_asked => return Some(()),
                Ok(()) = self.changes.changed() => {
                    self.worked = true; // so that the next is made without a pause
                    return Some(());
                }
                // What is under way is answered on the old one first.
                next = &mut successor, if !is_asked => {
                    self.next = Some(next);
                    return Some(());
                }
            }
        }
    }

    fn channels(&self, id: &LockId) -> Vec<String> {
        wire(id.kind).channels(id, &self.client)
    }

    fn subscribe(
        &mut self,
        sink: &PubSubSink,
        id: &LockId,
        told: oneshot::Sender<Result<(), Cause>>,
    ) -> BoxFuture<'static, RequestResult> {
        let request = self.request(sink, vec![id.clone()]);
        Box::pin(async move {
            let (answer, names) = request.await;
            let _ = told.send(match &answer {
                Ok(()) => Ok(()),
                Err(error) => Err(in_words(error.clone())),
            });
            result(answer, names)
        })
    }

    /// The next of the names from before a gap that are still waited for. Each answer lets more of them go: all at once
    /// are answered too late, and then nothing is heard of any.
    fn subscribe_to_more(
        &mut self,
        sink: &PubSubSink,
        again: &mut Vec<LockId>,
    ) -> Option<BoxFuture<'static, RequestResult>> {
        let mut next = Vec::new();
        while next.len() < AT_ONCE
            && let Some(id) = again.pop()
        {
            if self.listens(&id) {
                next.push(id);
            }
        }
        (!next.is_empty()).then(|| self.subscribe_again(sink, next))
    }

    /// Subscribes to names again; their waiters ask the server once that has come about, since the messages of the gap are
    /// lost.
    fn subscribe_again(
        &mut self,
        sink: &PubSubSink,
        ids: Vec<LockId>,
    ) -> BoxFuture<'static, RequestResult> {
        let request = self.request(sink, ids);
        let waiters = Arc::clone(&self.sink);
        Box::pin(async move {
            let (answer, names) = request.await;
            if answer.is_ok() {
                for (id, _) in &names {
                    waiters.wake(id, WakeUp::TryAgain);
                }
            }
            result(answer, names)
        })
    }

    /// One `SUBSCRIBE` for these names: the answer, and under which orders they count from now on.
    fn request(
        &mut self,
        sink: &PubSubSink,
        ids: Vec<LockId>,
    ) -> impl Future<Output = (Result<(), RedisError>, Refused)> + Send + use<> {
        let mut channels = Vec::new();
        let mut names = Vec::with_capacity(ids.len());
        for id in ids {
            for channel in self.channels(&id) {
                let ids = self.ids.entry(channel.clone()).or_default();
                if !ids.contains(&id) {
                    ids.push(id.clone());
                }
                channels.push(channel);
            }
            let order = self.counted.begin(&id);
            names.push((id, order));
        }
        let mut sink = sink.clone();
        async move { (sink.subscribe(&channels).await, names) }
    }

    fn unsubscribe(
        &mut self,
        sink: &PubSubSink,
        id: &LockId,
        told: oneshot::Sender<()>,
    ) -> BoxFuture<'static, RequestResult> {
        let mut channels = self.channels(id);
        let order = self.counted.order(id);
        self.forget(id);
        // A channel that another name shares is still heard.
        channels.retain(|channel| !self.ids.contains_key(channel));
        let (counted, id) = (Arc::clone(&self.counted), id.clone());
        let mut sink = sink.clone();
        Box::pin(async move {
            // A request that names none would end all.
            let answer = if channels.is_empty() {
                Ok(())
            } else {
                sink.unsubscribe(&channels).await
            };
            counted.end(&id, order);
            let _ = told.send(());
            match answer {
                Ok(()) => Ok(None),
                Err(error) if is_refusal(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn listens(&self, id: &LockId) -> bool {
        let mut channels = self.channels(id).into_iter();
        channels.any(|channel| self.ids.get(&channel).is_some_and(|ids| ids.contains(id)))
    }

    /// The name is not listened for any more.
    fn forget(&mut self, id: &LockId) {
        for channel in self.channels(id) {
            if let Some(ids) = self.ids.get_mut(&channel) {
                ids.retain(|heard| heard != id);
                if ids.is_empty() {
                    self.ids.remove(&channel);
                }
            }
        }
    }

    /// The server does not let this client listen for a name, and so does not count it. Unless it was asked again since, for
    /// another waiter: then that answer counts.
    fn refused(&mut self, (id, order): &(LockId, u64)) {
        if self.counted.order(id) != Some(*order) {
            return;
        }
        self.forget(id);
        self.counted.end(id, Some(*order));
        // A waiter from before a gap thinks that it is heard.
        self.sink.wake(id, WakeUp::Deaf);
    }

    fn dispatch(&self, channel: &str, payload: &[u8]) {
        let Some(ids) = self.ids.get(channel) else {
            return; // sent before the server had carried out the unsubscription
        };
        for id in ids {
            if let Some(wake_up) = wake_up(id, channel, payload) {
                self.sink.wake(id, wake_up);
            }
        }
    }
}

async fn dial(
    finder: &Finder,
    changes: &mut watch::Receiver<Ground>,
    timeout: Duration,
) -> Result<Dialled, Cause> {
    let progress = DialProgress::default();
    let dialling = async {
        loop {
            // Before it is known where the server is: a later change then breaks what is made here.
            changes.mark_unchanged();
            let cause = |failure: Failure| Arc::clone(failure.cause());
            let target = finder.find().await.map_err(cause)?.target;
            tokio::select! {
                biased;
                connected = target.subscriptions(&progress) => {
                    let failed = |error| cause(target.failure(error, timeout, &progress));
                    let (connected, renew_at) = connected.map_err(failed)?;
                    return Ok((connected.split(), renew_at));
                }
                Ok(()) = changes.changed() => {}
            }
        }
    };
    let dialled = tokio::time::timeout(timeout, dialling).await;
    dialled.unwrap_or_else(|_| Err(progress.silent(timeout)))
}

/// The connection that takes the place of one whose login ends. It is there before the old one goes.
async fn successor(
    (finder, mut changes): (Arc<Finder>, watch::Receiver<Ground>),
    timeout: Duration,
    renew_at: Option<Instant>,
) -> Dialled {
    let Some(at) = renew_at else {
        return std::future::pending().await;
    };
    tokio::time::sleep_until(at.into()).await;
    let mut pause = PAUSE_FIRST;
    loop {
        match dial(&finder, &mut changes, timeout).await {
            Ok(next) => return next,
            Err(cause) => callout::quietly(
                || tracing::debug!(target: "leasehold", server = %finder, %cause, "login for subscriptions not renewed, trying again"),
            ),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MOST);
    }
}

/// What a message says to those that wait for this lock. `None`: nothing.
pub(crate) fn wake_up(id: &LockId, channel: &str, payload: &[u8]) -> Option<WakeUp> {
    if !channel.starts_with(OURS) || channel.ends_with(FREE) {
        return Some(freed(payload));
    }
    if let Some(grant) = wire(id.kind).grant(payload) {
        return Some(WakeUp::Granted(grant));
    }
    // To the first in the queue: for how many milliseconds the lock is held.
    match std::str::from_utf8(payload).ok()?.parse().ok()? {
        0 => Some(WakeUp::TryAgain),
        ms => Some(WakeUp::Watch(Duration::from_millis(ms))),
    }
}

/// What a release says on Redisson's channel: zeros before its number leave so many turns to Redisson's waiters, a plus none.
fn freed(payload: &[u8]) -> WakeUp {
    let zeros = payload.iter().take_while(|digit| **digit == b'0').count();
    match zeros - usize::from(zeros > 0 && zeros == payload.len()) {
        0 if payload.first() != Some(&b'+') => WakeUp::TryAgain,
        turns => WakeUp::Turns(u32::try_from(turns).unwrap_or(0)),
    }
}

/// Puts a request on the wire, by its first poll: so orders keep their order.
fn send(
    requests: &mut FuturesUnordered<BoxFuture<'static, RequestResult>>,
    mut request: BoxFuture<'static, RequestResult>,
) {
    if (&mut request).now_or_never().is_none() {
        requests.push(request);
    }
}

fn result(answer: Result<(), RedisError>, names: Refused) -> RequestResult {
    match answer {
        Ok(()) => Ok(None),
        Err(error) if is_refusal(&error) => Ok(Some(names)),
        Err(error) => Err(error),
    }
}

/// The answer to a `PING` comes behind all earlier messages, and is looked at after them.
fn mark(sink: &PubSubSink, told: oneshot::Sender<()>) -> BoxFuture<'static, RequestResult> {
    let mut sink = sink.clone();
    Box::pin(async move {
        let answer = sink.ping::<redis::Value>().await;
        let _ = told.send(());
        match answer {
            Ok(_) => Ok(None),
            Err(error) if is_refusal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    })
}

/// The server has said no, on a connection that goes on.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// In a simulation: what takes the place of the connection.
#[cfg(feature = "sim")]
struct SimulatedLane {
    carrier: super::carrier::Carrier,
    client: Arc<str>,
    /// What it is called there.
    on_wire: Arc<str>,
    sink: Arc<dyn Sink>,
    cut: Arc<dyn Fn() + Send + Sync>,
}

#[cfg(feature = "sim")]
impl Subscriptions {
    pub(super) fn simulated(
        carrier: &super::carrier::Carrier,
        (client, on_wire): (&Arc<str>, &Arc<str>),
        config: &Config,
        sink: Arc<dyn Sink>,
    ) -> Subscriptions {
        let counted = Arc::new(Audience::default());
        let of_cut = Arc::clone(&counted);
        let lane = SimulatedLane {
            carrier: carrier.clone(),
            client: Arc::clone(client),
            on_wire: Arc::clone(on_wire),
            sink,
            cut: Arc::new(move || of_cut.ids.lock().clear()),
        };
        Subscriptions {
            orders: mpsc::unbounded_channel().0,
            counted,
            timeout: config.operation_timeout,
            home: Home::here(),
            simulated: Some(lane),
        }
    }
}

#[cfg(feature = "sim")]
impl SimulatedLane {
    fn listen(&self, id: LockId, counted: &Arc<Audience>) -> Reply<()> {
        counted.begin(&id);
        let (client, carrier) = (Arc::clone(&self.client), self.carrier.clone());
        let (sink, cut) = (Arc::clone(&self.sink), Arc::clone(&self.cut));
        let channels = wire(id.kind).channels(&id, &self.on_wire);
        let counted = Arc::clone(counted);
        Box::pin(async move {
            let answer = carrier.carry(move |scripts| {
                // Again after a gap.
                if counted.order(&id).is_none() {
                    counted.begin(&id);
                }
                scripts.subscribe((&client, &id), &channels, &sink, &cut);
                Ok(())
            });
            answer.await
        })
    }

    fn unlisten(&self, id: &LockId, counted: &Arc<Audience>) -> Reply<()> {
        let (id, client) = (id.clone(), Arc::clone(&self.client));
        let channels = wire(id.kind).channels(&id, &self.on_wire);
        let (order, counted) = (counted.order(&id), Arc::clone(counted));
        self.carrier.carry(move |scripts| {
            scripts.unsubscribe(&client, &id, &channels);
            counted.end(&id, order);
            Ok(())
        })
    }
}
