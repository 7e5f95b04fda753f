//! The task behind the subscriptions of one client at one server: its orders, its connection, its answers.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use redis::{RedisError, RedisResult};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    dial::{AGAIN, Dialled, dial, successor},
    hearing::{EndedAtOnce, Hearing},
    listeners::ChannelListeners,
    message::wake_up,
};
use crate::{
    backend::{
        Sink, WakeUp,
        redis::{
            connect::SubscriptionLink,
            connections::Connections,
            discovery::Discovery,
            failure::in_words,
            kinds::wire,
            pubsub::{Ask, PubSub, Received},
            restart::Generation,
            sharding::is_elsewhere,
            silence::Silence,
        },
    },
    clock::Clock,
    error::Cause,
    name::LockId,
    outage::Seldom,
    user_callback,
};

pub(super) enum Order {
    Listen(LockId, ReplySender),
    Unlisten(LockId, oneshot::Sender<()>),
    /// Answered when all messages are heard that the server has sent before it.
    Mark(oneshot::Sender<()>),
}

pub(super) type ReplySender = oneshot::Sender<Result<(), Cause>>;

pub(super) struct SubscriptionTask {
    pub(super) discovery: Arc<Discovery>,
    /// Of the server that connections are to lead to.
    pub(super) changes: watch::Receiver<Generation>,
    pub(super) silence: Silence,
    pub(super) client: Arc<str>,
    pub(super) hearing: Hearing,
    pub(super) connect_timeout: Duration,
    pub(super) operation_timeout: Duration,
    pub(super) sink: Arc<dyn Sink>,
    /// By channel: its names. Redisson's channel of `x` is that of `{x}` too.
    pub(super) ids: HashMap<String, Vec<LockId>>,
    pub(super) counted: Arc<ChannelListeners>,
    /// A subscription has come about on the present connection.
    pub(super) worked: bool,
    /// Takes the place of a connection whose login ends.
    pub(super) next: Option<Dialled>,
    pub(super) commands: Weak<Connections>,
}

/// A question to the server, and the caller that waits for the answer.
enum Asked {
    Listen {
        id: LockId,
        order: u64,
        /// `None`: again, after a gap.
        reply: Option<ReplySender>,
    },
    Unlisten {
        id: LockId,
        order: Option<u64>,
        reply: oneshot::Sender<()>,
    },
    Mark(oneshot::Sender<()>),
}

type SubscriptionConnection = PubSub<SubscriptionLink, Asked>;

/// So many names at most are under way that are subscribed to again: few enough that the next answer comes within one operation timeout.
const AT_ONCE: usize = 100;

/// Before so many connections in a row have failed, it may be the server that fails: commands are told that meanwhile.
const FAILURES_FEW: u32 = 3;

impl SubscriptionTask {
    /// Ends with the client.
    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut backoff = AGAIN;
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
                    Some(Order::Listen(id, reply)) => waiting.push((id, reply)),
                    // Dropped without an answer, which its caller takes for one: nothing is subscribed, and no message is under way.
                    Some(Order::Unlisten(..) | Order::Mark(_)) => {}
                    None => return,
                }
            }
            let dialled = if let Some(next) = self.next.take() {
                Ok(next)
            } else {
                let known = (&mut self.changes, &self.silence);
                dial(&self.discovery, known, self.connect_timeout).await
            };
            match dialled {
                Ok(dialled) => {
                    self.counted.trouble.lock().take();
                    self.worked = false;
                    let ended = self
                        .hear(dialled, &mut orders, &mut waiting)
                        .await
                        .is_none();
                    // The subscriptions that the server counted on that connection are gone, and a release must not rely on them.
                    self.counted.end_all();
                    if ended {
                        return;
                    }
                    // It has served its waiters: a pause would only make their gap longer.
                    if self.worked {
                        failures = 0;
                        backoff.reset();
                        continue;
                    }
                }
                Err(cause) => {
                    self.counted.trouble.lock().replace(Arc::clone(&cause));
                    // They poll from now on, and are not to wait for a connection that may never come (L1).
                    for (_, reply) in waiting.drain(..) {
                        let _ = reply.send(Err(Arc::clone(&cause)));
                    }
                    failures += 1;
                    if self.is_alone_in_trouble()
                        && failures >= FAILURES_FEW
                        && warned.may_warn(Clock::Boot.now())
                    {
                        user_callback::catch_panic(|| {
                            tracing::warn!(target: "leasehold", server = %self.discovery, %cause, "cannot subscribe, trying again; those that wait ask now and then meanwhile");
                        });
                    }
                }
            }
            // Also after a connection that ended at once: the server may refuse a subscription each time.
            let pause = backoff.next();
            if self.rest(pause, &mut orders, &mut waiting).await.is_none() {
                return;
            }
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
        waiting: &mut Vec<(LockId, ReplySender)>,
    ) -> Option<()> {
        let mut over = pin!(tokio::time::sleep(pause));
        loop {
            tokio::select! {
                () = &mut over => return Some(()),
                // The failures were those of another server, and so was the pause for them.
                Ok(()) = self.changes.changed() => return Some(()),
                order = orders.recv() => match order? {
                    Order::Listen(id, reply) => waiting.push((id, reply)),
                    Order::Unlisten(id, reply) => {
                        // A waiter that leaves during the gap is not subscribed again after it (bug 21).
                        waiting.retain(|(waits, _)| *waits != id);
                        self.forget(&id);
                        let _ = reply.send(());
                    }
                    Order::Mark(_) => {}
                },
            }
        }
    }

    /// Hears until the connection breaks. `None`: the client has ended.
    async fn hear(
        &mut self,
        (link, renew_at): Dialled,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        waiting: &mut Vec<(LockId, ReplySender)>,
    ) -> Option<()> {
        let mut connection = PubSub::new(link, self.hearing.chosen.get());
        // A set, since a name stands under each of its channels.
        let again: BTreeSet<LockId> = self.ids.values().flatten().cloned().collect();
        let mut again: Vec<LockId> = again.into_iter().collect();
        // Callers first: they wait for an answer, the others only for messages.
        for (id, reply) in waiting.drain(..) {
            self.subscribe(&mut connection, id, Some(reply));
        }
        // A copy of the receiver: an attempt marks its changes as seen, and this loop must see them by itself.
        let known = (self.changes.clone(), self.silence.clone());
        let place = (Arc::clone(&self.discovery), known);
        let timeout = self.connect_timeout;
        let successor = |at| successor(place.clone(), timeout, at);
        let mut next_one = pin!(successor(renew_at));
        let mut is_in_doubt = false;
        // Answers come one behind the other: a connection is dead if it is silent for too long, not if many are slow.
        let mut heard = Instant::now();
        loop {
            // Each answer lets more of them go: all at once are answered too late, and then nothing is heard of any.
            while connection.asked() < AT_ONCE
                && let Some(id) = again.pop()
            {
                if self.listens(&id) {
                    self.subscribe(&mut connection, id, None);
                }
            }
            let is_asked = connection.asked() > 0;
            let too_late = heard + self.operation_timeout;
            tokio::select! {
                // In this order: after a runtime stood still, what has come meanwhile is read before the time is looked at.
                biased;
                next = connection.next() => {
                    heard = Instant::now();
                    // It was only slow: the connection that was begun to take its place is dropped.
                    if std::mem::take(&mut is_in_doubt) {
                        next_one.set(successor(renew_at));
                    }
                    match next {
                        Ok(Received::Message { channel, payload }) => self.dispatch(&channel, &payload),
                        Ok(Received::Answer(request, answer)) => self.answered(request, answer),
                        Ok(Received::Unasked(channel)) => self.unasked(&mut connection, &channel),
                        Err(_) => return Some(()),
                    }
                }
                order = orders.recv() => {
                    // The time runs from the first request on: before it the server had nothing to say.
                    if !is_asked {
                        heard = Instant::now();
                    }
                    self.carry_out(order?, &mut connection);
                }
                () = tokio::time::sleep_until(too_late.into()), if is_asked => {
                    // The connections for commands, and those of other nodes, may be as dead, and would need a whole timeout each to find
                    // out (bug 261).
                    self.silence.since(heard);
                    return Some(());
                }
                // Another connection is dead, and this one was idle: it is asked, and a new one is made. The first of both that says
                // something is heard from here on. A server that stands still makes no gap so.
                () = self.silence.after(heard), if !is_in_doubt => {
                    is_in_doubt = true;
                    if !is_asked {
                        heard = Instant::now();
                    }
                    // No caller waits for this mark: any word of the server shows that the connection works.
                    connection.ask(Ask::Mark, Vec::new(), Asked::Mark(oneshot::channel().0));
                    next_one.set(successor(Some(Instant::now())));
                }
                Ok(()) = self.changes.changed() => {
                    self.worked = true; // so that the next is made without a pause
                    return Some(());
                }
                // Questions under way are answered on the old connection first.
                next = &mut next_one, if !is_asked || is_in_doubt => {
                    // The new connection is there already, so no pause comes before its use.
                    self.worked |= is_in_doubt;
                    self.next = Some(next);
                    return Some(());
                }
            }
        }
    }

    fn carry_out(&mut self, order: Order, connection: &mut SubscriptionConnection) {
        match order {
            Order::Listen(id, reply) => self.subscribe(connection, id, Some(reply)),
            Order::Unlisten(id, reply) => self.unsubscribe(connection, id, reply),
            Order::Mark(reply) => connection.ask(Ask::Mark, Vec::new(), Asked::Mark(reply)),
        }
    }

    fn channels(&self, id: &LockId) -> Vec<String> {
        wire(id.kind).channels(id, &self.client)
    }

    /// `reply`: for a caller; else its waiters ask the server once it has come about, since the messages of the gap are lost.
    fn subscribe(
        &mut self,
        connection: &mut SubscriptionConnection,
        id: LockId,
        reply: Option<ReplySender>,
    ) {
        let channels = self.channels(&id);
        for channel in &channels {
            // Two kinds of one name may share a channel, so each channel has its names (bug 229).
            let ids = self.ids.entry(channel.clone()).or_default();
            if !ids.contains(&id) {
                ids.push(id.clone());
            }
        }
        // Before it is asked for: the server may count this client from then on, and a release must know that it does.
        let order = self.counted.begin(&id);
        connection.ask(Ask::Subscribe, channels, Asked::Listen { id, order, reply });
    }

    fn unsubscribe(
        &mut self,
        connection: &mut SubscriptionConnection,
        id: LockId,
        reply: oneshot::Sender<()>,
    ) {
        // Before it is forgotten: the answer ends the count of this subscription, and of none that was begun since.
        let mut channels = self.channels(&id);
        let order = self.counted.order(&id);
        self.forget(&id);
        // A channel that another name shares is still heard.
        channels.retain(|channel| !self.ids.contains_key(channel));
        // Without a channel it would end all subscriptions.
        if channels.is_empty() {
            self.counted.end(&id, order);
            let _ = reply.send(());
            return;
        }
        connection.ask(
            Ask::Unsubscribe,
            channels,
            Asked::Unlisten { id, order, reply },
        );
    }

    fn answered(&mut self, request: Asked, answer: RedisResult<()>) {
        match (request, answer) {
            (Asked::Listen { id, order, reply }, Ok(())) => {
                self.worked = true;
                // It has ended unasked meanwhile, which was told by then.
                let is_over = self.counted.order(&id).is_none_or(|now| now < order);
                match reply {
                    Some(reply) if is_over => drop(reply.send(Err(Arc::new(EndedAtOnce)))),
                    Some(reply) => drop(reply.send(Ok(()))),
                    None if is_over => {}
                    None => self.sink.wake(&id, WakeUp::TryAgain),
                }
            }
            (Asked::Listen { id, order, reply }, Err(error)) => {
                let is_answered =
                    // A caller that has given up hears nothing of this, and its refusal is told as one after a gap.
                    reply.is_some_and(|reply| reply.send(Err(in_words(error.clone()))).is_ok());
                self.refused(&id, order, &error, is_answered);
            }
            // Refused or not, the server sends nothing more about it that counts.
            (Asked::Unlisten { id, order, reply }, _) => {
                self.worked = true;
                self.counted.end(&id, order);
                let _ = reply.send(());
            }
            (Asked::Mark(reply), _) => {
                self.worked = true;
                let _ = reply.send(());
            }
        }
    }

    /// The server does not let this client listen for a name, and so does not count it. Unless it was asked again since, for
    /// another waiter: then that answer counts. `is_answered`: a caller knows.
    fn refused(&mut self, id: &LockId, order: u64, error: &RedisError, is_answered: bool) {
        // Bug 75: a refusal that was heard late made the next waiter deaf.
        if self.counted.order(id) != Some(order) {
            return;
        }
        self.forget(id);
        self.counted.end(id, Some(order));
        match &self.hearing.elsewhere {
            Some(_) if is_elsewhere(error) && is_answered => {}
            Some(elsewhere) if is_elsewhere(error) => elsewhere.unheard(id, Some(error)),
            // A waiter from before a gap thinks that it is heard.
            _ => self.sink.wake(id, WakeUp::Deaf),
        }
    }

    /// The server has ended the subscription to a channel by itself. An end of a name's other channels tells nothing more.
    fn unasked(&mut self, connection: &mut SubscriptionConnection, channel: &str) {
        // The list is copied, since `forget` changes it.
        for id in self.ids.get(channel).cloned().unwrap_or_default() {
            match self.hearing.elsewhere.clone() {
                Some(elsewhere) => {
                    self.forget(&id);
                    self.counted.end(&id, self.counted.order(&id));
                    elsewhere.unheard(&id, None);
                }
                // On one server nothing but its own trouble ends it: it is asked for again, and what was missed is looked up.
                None => self.subscribe(connection, id, None),
            }
        }
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
