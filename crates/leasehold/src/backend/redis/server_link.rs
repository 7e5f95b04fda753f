//! What is asked of the server as a whole.

use super::Redis;
use crate::{
    backend::{Reply, ServerFacts, ServerLink},
    error::Cause,
    outage::Outage,
};

impl ServerLink for Redis {
    fn outage(&self) -> &Outage {
        &self.outage
    }

    fn server(&self) -> String {
        self.shown.clone()
    }

    fn identity(&self) -> Option<String> {
        self.caller.identity()
    }

    fn identify(&self) -> Reply<()> {
        self.caller.identify()
    }

    fn dial(&self) -> Reply<()> {
        let caller = self.caller.clone();
        Box::pin(async move { caller.connect().await })
    }

    fn said(&self) -> ServerFacts {
        self.caller.said()
    }

    fn show(&self, lasts_ms: u64) -> Reply<()> {
        self.caller.show(lasts_ms)
    }

    fn has_reached(&self) -> bool {
        self.caller.has_worked()
    }

    fn trouble(&self) -> Option<Cause> {
        let trouble = self.caller.trouble();
        trouble.or_else(|| self.subscriptions.trouble())
    }

    fn prepare(&self) {
        self.caller.prepare();
    }

    fn move_to_background(&self) {
        self.caller.move_to_background();
    }

    fn shut(&self) {
        self.caller.shut();
        if let Some(connections) = &self.durable {
            connections.shut();
        }
    }
}
