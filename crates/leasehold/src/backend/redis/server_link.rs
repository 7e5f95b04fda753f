//! The methods that concern the server as a whole.

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
        self.runner.identity()
    }

    fn identify(&self) -> Reply<()> {
        self.runner.identify()
    }

    fn dial(&self) -> Reply<()> {
        let runner = self.runner.clone();
        Box::pin(async move { runner.connect().await })
    }

    fn said(&self) -> ServerFacts {
        self.runner.said()
    }

    fn show(&self, lasts_ms: u64) -> Reply<()> {
        self.runner.show(lasts_ms)
    }

    fn has_reached(&self) -> bool {
        self.runner.has_worked()
    }

    fn trouble(&self) -> Option<Cause> {
        let trouble = self.runner.trouble();
        trouble.or_else(|| self.subscriptions.trouble())
    }

    fn prepare(&self) {
        self.runner.prepare();
    }

    fn move_to_background(&self) {
        self.runner.move_to_background();
    }

    fn shut(&self) {
        self.runner.shut();
        if let Some(connections) = &self.durable {
            connections.shut();
        }
    }
}
