//! The connection for wake-ups: one connection that only subscribes, made when the first waiter comes.
//!
//! For each name it hears a channel (Redisson's, if it has one), on which releases say that the name is free, and an inbox of its own,
//! on which the server says that the name is this client's.
//!
//! It runs in the background, so that a wake-up is heard even if the waiter's runtime is blocked.
//!
//! After a gap it subscribes to everything again, and tells all waiters to ask the server. It makes a gap itself when the server may be
//! another: it does not learn which one its own connection leads to, and one that was the primary is still heard, and hears nothing.

mod connection;
mod dial;
mod hearing;
mod listeners;
mod message;
#[cfg(feature = "sim")]
mod simulated;

use std::{collections::HashMap, sync::Arc, time::Duration};

use connection::{Order, SubscriptionTask};
pub(super) use hearing::{Elsewhere, EndedAtOnce, Hearing};
use listeners::ChannelListeners;
#[cfg(feature = "sim")]
pub(super) use message::wake_up;
#[cfg(feature = "sim")]
use simulated::SimulatedConnection;
use tokio::sync::{mpsc, oneshot};

use super::{connections::Connections, discovery::Discovery, restart::RestartLog};
use crate::{
    backend::{Failure, Reply, Sink},
    background::BackgroundRuntime,
    config::Config,
    durations::humane,
    error::Cause,
    name::LockId,
};

pub(super) struct Subscriptions {
    orders: mpsc::UnboundedSender<Order>,
    counted: Arc<ChannelListeners>,
    timeout: Duration,
    background: BackgroundRuntime,
    #[cfg(feature = "sim")]
    simulated: Option<Arc<SimulatedConnection>>,
}

impl Subscriptions {
    pub(super) fn new(
        (discovery, restarts): (Arc<Discovery>, &RestartLog),
        (client, hearing): (&Arc<str>, Hearing),
        config: &Config,
        sink: Arc<dyn Sink>,
        background: &BackgroundRuntime,
        commands: &Arc<Connections>,
    ) -> Subscriptions {
        let (orders, inbox) = mpsc::unbounded_channel();
        let counted = Arc::new(ChannelListeners::default());
        let connection = SubscriptionTask {
            discovery,
            changes: restarts.changes(),
            silence: restarts.silence.clone(),
            client: Arc::clone(client),
            hearing,
            connect_timeout: config.connect_timeout,
            operation_timeout: config.operation_timeout,
            sink,
            ids: HashMap::new(),
            counted: Arc::clone(&counted),
            worked: false,
            next: None,
            commands: Arc::downgrade(commands),
        };
        background.handle().spawn(connection.run(inbox));
        Subscriptions {
            orders,
            counted,
            timeout: config.operation_timeout,
            background: background.clone(),
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
        if let Some(connection) = &self.simulated {
            return connection.listen(id);
        }
        let (told, heard) = oneshot::channel();
        // Fails only when the thread has ended, and then no answer comes.
        let _ = self.orders.send(Order::Listen(id, told));
        let (timeout, background) = (self.timeout, self.background.clone());
        Box::pin(async move {
            // The order stands when the time is up: a caller that gives up asks to unlisten, or the subscription would stay (bug 21).
            match background.within(timeout, heard).await {
                Some(Ok(Ok(()))) => Ok(()),
                // Never ambiguous: a subscription takes nothing that would have to be given back.
                Some(Ok(Err(cause))) => Err(Failure::NotSent(cause)),
                // The connection broke, or the thread has ended.
                Some(Err(untold)) => Err(match background.check() {
                    Ok(()) => Failure::NotSent(Arc::new(untold)),
                    Err(gone) => Failure::Rejected(Arc::new(gone)),
                }),
                None => Err(Failure::NotSent(Arc::new(NotSubscribed(timeout)))),
            }
        })
    }

    pub(super) fn unlisten(&self, id: &LockId) -> Reply<()> {
        #[cfg(feature = "sim")]
        if let Some(connection) = &self.simulated {
            return connection.unlisten(id);
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
struct NotSubscribed(Duration);

#[cfg(feature = "sim")]
impl Drop for Subscriptions {
    fn drop(&mut self) {
        if let Some(connection) = &self.simulated {
            connection.ends();
        }
    }
}

#[cfg(feature = "sim")]
impl Subscriptions {
    pub(super) fn simulated(
        transport: &super::transport::Transport,
        (client, on_wire): (&Arc<str>, &Arc<str>),
        config: &Config,
        received_by: (Arc<dyn Sink>, Option<Arc<dyn Elsewhere>>),
    ) -> Subscriptions {
        let counted = Arc::new(ChannelListeners::default());
        let connection =
            SimulatedConnection::new(transport, (client, on_wire), received_by, &counted);
        Subscriptions {
            orders: mpsc::unbounded_channel().0,
            counted,
            timeout: config.operation_timeout,
            background: BackgroundRuntime::here(),
            simulated: Some(Arc::new(connection)),
        }
    }
}

#[cfg(test)]
mod tests;
