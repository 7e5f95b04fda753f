//! In a simulation: subscriptions without a connection.

use std::sync::Arc;

use super::audience::Audience;
use crate::{
    backend::{
        Reply, Sink,
        redis::{carrier::Carrier, kinds::wire},
    },
    name::LockId,
};

pub(super) struct SimulatedLane {
    carrier: Carrier,
    client: Arc<str>,
    /// What it is called there.
    on_wire: Arc<str>,
    sink: Arc<dyn Sink>,
    cut: Arc<dyn Fn() + Send + Sync>,
}

impl SimulatedLane {
    pub(super) fn new(
        carrier: &Carrier,
        (client, on_wire): (&Arc<str>, &Arc<str>),
        sink: Arc<dyn Sink>,
        counted: &Arc<Audience>,
    ) -> SimulatedLane {
        let of_cut = Arc::clone(counted);
        SimulatedLane {
            carrier: carrier.clone(),
            client: Arc::clone(client),
            on_wire: Arc::clone(on_wire),
            sink,
            cut: Arc::new(move || of_cut.end_all()),
        }
    }

    pub(super) fn listen(&self, id: LockId, counted: &Arc<Audience>) -> Reply<()> {
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

    pub(super) fn unlisten(&self, id: &LockId, counted: &Arc<Audience>) -> Reply<()> {
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
