//! In a simulation: subscriptions without a connection.

use std::sync::Arc;

use redis::RedisError;

use super::{hearing::Elsewhere, listeners::ChannelListeners};
use crate::{
    backend::{
        Failure, Reply, Sink, WakeUp,
        redis::{
            cluster::slots::slot,
            failure::in_words,
            kinds::wire,
            transport::{Transport, as_read},
        },
        simulated::{
            hint::Hears,
            request::{About, Kind},
            scripts::Scripts,
        },
    },
    name::LockId,
};

pub(super) struct SimulatedConnection {
    transport: Transport,
    /// Who listens: this client, at this node if there are several.
    listener: Arc<str>,
    /// The client's name on the wire.
    on_wire: Arc<str>,
    hears: Arc<ReceivedFromServer>,
}

/// Tells the client of ends and wake-ups, as `SubscriptionTask` does.
struct ReceivedFromServer {
    sink: Arc<dyn Sink>,
    elsewhere: Option<Arc<dyn Elsewhere>>,
    counted: Arc<ChannelListeners>,
}

impl Hears for ReceivedFromServer {
    fn sink(&self) -> &Arc<dyn Sink> {
        &self.sink
    }

    fn cut(&self) {
        self.counted.end_all();
    }

    fn ended(&self, id: &LockId, refusal: Option<&str>) {
        self.counted.end(id, self.counted.order(id));
        let refusal: Option<RedisError> = refusal.map(as_read);
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.unheard(id, refusal.as_ref()),
            None => self.sink.wake(id, WakeUp::Deaf),
        }
    }
}

impl SimulatedConnection {
    pub(super) fn new(
        transport: &Transport,
        (client, on_wire): (&Arc<str>, &Arc<str>),
        (sink, elsewhere): (Arc<dyn Sink>, Option<Arc<dyn Elsewhere>>),
        counted: &Arc<ChannelListeners>,
    ) -> SimulatedConnection {
        let listener = match transport {
            Transport::Node(way) => way.listener(),
            Transport::AtOnce(_) => Arc::clone(client),
        };
        SimulatedConnection {
            transport: transport.clone(),
            listener,
            on_wire: Arc::clone(on_wire),
            hears: Arc::new(ReceivedFromServer {
                sink,
                elsewhere,
                counted: Arc::clone(counted),
            }),
        }
    }

    /// It is gone.
    pub(super) fn ends(&self) {
        if let Transport::Node(way) = &self.transport {
            way.leaves(&(Arc::clone(&self.hears) as Arc<dyn Hears>));
        }
    }

    fn about(&self, kind: Kind, id: &LockId) -> About {
        self.transport.knows(id);
        About {
            kind,
            names: vec![(id.name.shared(), id.task())],
            what: Box::new(""),
        }
    }

    /// The words of a node that has not got the slot.
    fn refusal(&self, scripts: &Scripts, id: &LockId) -> Option<String> {
        match &self.transport {
            Transport::Node(way) => scripts.refusal(way.node, slot(id.name.wire()), false),
            Transport::AtOnce(_) => None,
        }
    }

    pub(super) fn listen(self: &Arc<Self>, id: LockId) -> Reply<()> {
        self.hears.counted.begin(&id);
        let about = self.about(Kind::Listen, &id);
        let connection = Arc::clone(self);
        let channels = wire(id.kind).channels(&id, &self.on_wire);
        Box::pin(async move {
            let transport = connection.transport.clone();
            let answer = transport.carry(about, move |scripts| {
                let counted = &connection.hears.counted;
                // The network may carry this out later or twice, when the subscription has ended already.
                let is_again = counted.order(&id).is_none();
                if let Some(refusal) = connection.refusal(scripts, &id) {
                    if is_again {
                        // After a gap no caller waits for it.
                        let hears = Arc::clone(&connection.hears) as Arc<dyn Hears>;
                        scripts.tell_end(&connection.listener, hears, &id, Some(refusal.clone()));
                    } else {
                        counted.end(&id, counted.order(&id));
                    }
                    return Err(Failure::NotSent(in_words(as_read(&refusal))));
                }
                if is_again {
                    counted.begin(&id);
                }
                let hears = Arc::clone(&connection.hears) as Arc<dyn Hears>;
                scripts.subscribe((&connection.listener, &id), &channels, &hears);
                Ok(())
            });
            answer.await
        })
    }

    pub(super) fn unlisten(self: &Arc<Self>, id: &LockId) -> Reply<()> {
        let about = self.about(Kind::Unlisten, id);
        let (id, connection) = (id.clone(), Arc::clone(self));
        let channels = wire(id.kind).channels(&id, &self.on_wire);
        // Taken now: a subscription that begins before the network carries this out is another, and goes on.
        let order = self.hears.counted.order(&id);
        // Not within a future, as `listen` is: callers drop this reply without a poll.
        self.transport.carry(about, move |scripts| {
            scripts.unsubscribe(&connection.listener, &id, &channels);
            connection.hears.counted.end(&id, order);
            Ok(())
        })
    }
}
