//! In a simulation: subscriptions without a connection.

use std::sync::Arc;

use super::listeners::ChannelListeners;
use crate::{
    backend::{
        Reply, Sink,
        redis::{kinds::wire, transport::Transport},
    },
    name::LockId,
};

pub(super) struct SimulatedConnection {
    transport: Transport,
    client: Arc<str>,
    /// What it is called there.
    on_wire: Arc<str>,
    sink: Arc<dyn Sink>,
    cut: Arc<dyn Fn() + Send + Sync>,
}

impl SimulatedConnection {
    pub(super) fn new(
        transport: &Transport,
        (client, on_wire): (&Arc<str>, &Arc<str>),
        sink: Arc<dyn Sink>,
        counted: &Arc<ChannelListeners>,
    ) -> SimulatedConnection {
        let of_cut = Arc::clone(counted);
        SimulatedConnection {
            transport: transport.clone(),
            client: Arc::clone(client),
            on_wire: Arc::clone(on_wire),
            sink,
            cut: Arc::new(move || of_cut.end_all()),
        }
    }

    pub(super) fn listen(&self, id: LockId, counted: &Arc<ChannelListeners>) -> Reply<()> {
        counted.begin(&id);
        let (client, transport) = (Arc::clone(&self.client), self.transport.clone());
        let (sink, cut) = (Arc::clone(&self.sink), Arc::clone(&self.cut));
        let channels = wire(id.kind).channels(&id, &self.on_wire);
        let counted = Arc::clone(counted);
        Box::pin(async move {
            let answer = transport.carry(move |scripts| {
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

    pub(super) fn unlisten(&self, id: &LockId, counted: &Arc<ChannelListeners>) -> Reply<()> {
        let (id, client) = (id.clone(), Arc::clone(&self.client));
        let channels = wire(id.kind).channels(&id, &self.on_wire);
        let (order, counted) = (counted.order(&id), Arc::clone(counted));
        self.transport.carry(move |scripts| {
            scripts.unsubscribe(&client, &id, &channels);
            counted.end(&id, order);
            Ok(())
        })
    }
}
