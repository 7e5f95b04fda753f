//! The lane for wake-ups: one connection that only subscribes, made when somebody first waits.
//!
//! For each name it hears Redisson's channel, on which the name is said to be free, and an inbox of its own,
//! on which the server says that it is this client's turn.
//!
//! It is at home, so that a wake-up is heard whatever the waiter's runtime does.
//!
//! After a gap everything is subscribed again, and everybody who waits is told to look for himself.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use redis::{
    Client, RedisError,
    aio::{PubSubSink, PubSubStream},
};
use tokio::sync::{mpsc, oneshot};

use super::target::Target;
use crate::{
    backend::{Failure, Grant, Reply, WakeUp},
    config::Config,
    error::Cause,
    home::Home,
    name::{Name, OURS},
    wakeup::WakeUps,
};

pub(super) struct Subscriptions {
    orders: mpsc::UnboundedSender<Order>,
    timeout: Duration,
    home: Home,
}

enum Order {
    Listen(Name, oneshot::Sender<Result<(), Cause>>),
    Unlisten(Name, oneshot::Sender<()>),
}

impl Subscriptions {
    pub(super) fn new(
        target: Arc<Target>,
        client: &Arc<str>,
        config: &Config,
        wake_ups: Arc<WakeUps>,
        home: &Home,
    ) -> Subscriptions {
        let (orders, inbox) = mpsc::unbounded_channel();
        let lane = Lane {
            target,
            client: Arc::clone(client),
            connect_timeout: config.connect_timeout,
            operation_timeout: config.operation_timeout,
            wake_ups,
            names: HashMap::new(),
        };
        home.handle().spawn(lane.run(inbox));
        Subscriptions {
            orders,
            timeout: config.operation_timeout,
            home: home.clone(),
        }
    }

    pub(super) fn listen(&self, name: Name) -> Reply<()> {
        let (told, heard) = oneshot::channel();
        // Fails only when the thread has ended, and then nobody answers.
        let _ = self.orders.send(Order::Listen(name, told));
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

    pub(super) fn unlisten(&self, name: &Name) -> Reply<()> {
        let (told, done) = oneshot::channel();
        let _ = self.orders.send(Order::Unlisten(name.clone(), told));
        Box::pin(async move {
            // An error means that the connection is gone, and the subscription with it.
            let _ = done.await;
            Ok(())
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not subscribed within {0:?}")]
struct NotHeard(Duration);

struct Lane {
    target: Arc<Target>,
    client: Arc<str>,
    connect_timeout: Duration,
    operation_timeout: Duration,
    wake_ups: Arc<WakeUps>,
    /// By channel: the name it is about.
    names: HashMap<String, Name>,
}

type Ears = (PubSubSink, PubSubStream);

impl Lane {
    /// Ends with the client.
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut pause = Duration::from_millis(20);
        let mut waiting = Vec::new();
        loop {
            // Nobody waits: no connection is needed.
            while self.names.is_empty() && waiting.is_empty() {
                match orders.recv().await {
                    Some(Order::Listen(name, told)) => waiting.push((name, told)),
                    Some(Order::Unlisten(..)) => {}
                    None => return,
                }
            }
            match self.dial().await {
                Ok(ears) => {
                    pause = Duration::from_millis(20);
                    if self.hear(ears, &mut orders, &mut waiting).await.is_none() {
                        return;
                    }
                }
                Err(error) => {
                    let cause: Cause = Arc::new(error);
                    for (_, told) in waiting.drain(..) {
                        let _ = told.send(Err(Arc::clone(&cause)));
                    }
                    tracing::warn!(server = %self.target, %cause, "cannot subscribe, polling meanwhile");
                    tokio::time::sleep(pause / 2 + pause.mul_f64(fastrand::f64() / 2.0)).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    async fn dial(&self) -> Result<Ears, RedisError> {
        let client = Client::open(self.target.info.clone())?;
        let dialling = client.get_async_pubsub();
        match tokio::time::timeout(self.connect_timeout, dialling).await {
            Ok(ears) => Ok(ears?.split()),
            Err(elapsed) => Err(std::io::Error::from(elapsed).into()),
        }
    }

    /// Hears until the connection breaks. `None`: the client has ended.
    async fn hear(
        &mut self,
        (sink, mut stream): Ears,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        waiting: &mut Vec<(Name, oneshot::Sender<Result<(), Cause>>)>,
    ) -> Option<()> {
        // Requests go out in order, one behind the other; only their answers are awaited side by side.
        let mut requests: FuturesUnordered<BoxFuture<'static, Result<(), RedisError>>> =
            FuturesUnordered::new();
        if !self.names.is_empty() {
            let channels: Vec<String> = self.names.keys().cloned().collect();
            let mut sink = sink.clone();
            let timeout = self.operation_timeout;
            let again = async move { sink.subscribe(&channels).await };
            match tokio::time::timeout(timeout, again).await {
                Ok(Ok(())) => {}
                _ => return Some(()),
            }
            // What was said during the gap is lost.
            let mut names: Vec<&Name> = self.names.values().collect();
            names.dedup();
            for name in names {
                self.wake_ups.tell(name, WakeUp::TryAgain);
            }
        }
        for (name, told) in waiting.drain(..) {
            requests.push(self.subscribe(&sink, &name, told));
        }
        loop {
            tokio::select! {
                biased;
                message = stream.next() => match message {
                    Some(message) => self.dispatch(message.get_channel_name(), message.get_payload_bytes()),
                    None => return Some(()),
                },
                Some(done) = requests.next(), if !requests.is_empty() => {
                    if done.is_err() {
                        return Some(());
                    }
                }
                order = orders.recv() => match order {
                    Some(Order::Listen(name, told)) => {
                        let mut request = self.subscribe(&sink, &name, told);
                        // The first poll puts it on the wire, so that orders keep their order.
                        if (&mut request).now_or_never().is_none() {
                            requests.push(request);
                        }
                    }
                    Some(Order::Unlisten(name, told)) => {
                        let mut request = self.unsubscribe(&sink, &name, told);
                        if (&mut request).now_or_never().is_none() {
                            requests.push(request);
                        }
                    }
                    None => return None,
                },
            }
        }
    }

    fn channels(&self, name: &Name) -> [String; 2] {
        [
            name.channel().to_string(),
            name.grant_channel(&self.client).to_string(),
        ]
    }

    fn subscribe(
        &mut self,
        sink: &PubSubSink,
        name: &Name,
        told: oneshot::Sender<Result<(), Cause>>,
    ) -> BoxFuture<'static, Result<(), RedisError>> {
        let channels = self.channels(name);
        for channel in &channels {
            self.names.insert(channel.clone(), name.clone());
        }
        let mut sink = sink.clone();
        let timeout = self.operation_timeout;
        Box::pin(async move {
            let answer = match tokio::time::timeout(timeout, sink.subscribe(&channels)).await {
                Ok(answer) => answer,
                Err(elapsed) => Err(std::io::Error::from(elapsed).into()),
            };
            let _ = told.send(match &answer {
                Ok(()) => Ok(()),
                Err(error) => Err(Arc::new(error.clone())),
            });
            answer
        })
    }

    fn unsubscribe(
        &mut self,
        sink: &PubSubSink,
        name: &Name,
        told: oneshot::Sender<()>,
    ) -> BoxFuture<'static, Result<(), RedisError>> {
        let channels = self.channels(name);
        for channel in &channels {
            self.names.remove(channel);
        }
        let mut sink = sink.clone();
        Box::pin(async move {
            let answer = sink.unsubscribe(&channels).await;
            let _ = told.send(());
            answer
        })
    }

    fn dispatch(&self, channel: &str, payload: &[u8]) {
        let Some(name) = self.names.get(channel) else {
            return; // said before the server had heard of our leaving
        };
        let wake_up = if channel.starts_with(OURS) {
            match granted(payload) {
                Some(grant) => WakeUp::Granted(grant),
                None => return,
            }
        } else {
            WakeUp::TryAgain
        };
        self.wake_ups.tell(name, wake_up);
    }
}

/// `<client uuid>:<lease id> <lease_ms> <ask>`, the place that the grant was given to.
fn granted(payload: &[u8]) -> Option<Grant> {
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    let (_, lease) = words.next()?.rsplit_once(':')?;
    Some(Grant {
        lease: lease.parse::<u64>().ok()?.into(),
        lease_ms: words.next()?.parse().ok()?,
        ask: words.next()?.parse().ok()?,
    })
}
