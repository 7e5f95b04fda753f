//! The methods that concern the server as a whole.

use futures_util::future::BoxFuture;

use super::Redis;
use crate::{
    backend::{ConnectedClients, Reply, ServerFacts, ServerLink, report::ServerReport},
    error::Cause,
    name::LockId,
    outage::Outage,
};

impl ServerLink for Redis {
    fn outage(&self) -> &Outage {
        &self.outage
    }

    fn server(&self) -> String {
        self.shown.to_string()
    }

    fn identity(&self) -> Option<String> {
        self.commands()?.connections.identity()
    }

    fn identify(&self) -> Reply<()> {
        let commands = self.commands().cloned();
        Box::pin(async move {
            match commands {
                Some(commands) => commands.identify().await,
                None => Ok(()),
            }
        })
    }

    fn dial(&self) -> Reply<()> {
        let commands = self.commands().cloned();
        Box::pin(async move {
            match commands {
                Some(commands) => commands.connections.connect().await,
                None => Ok(()),
            }
        })
    }

    fn said(&self) -> ServerFacts {
        self.steps.runner.said()
    }

    fn reports(&self) -> Vec<BoxFuture<'static, ServerReport>> {
        vec![self.report()]
    }

    fn can_fail_over(&self) -> Result<(), &'static str> {
        let discovery = self.commands().map(|it| it.connections.discovery());
        if discovery.is_some_and(|it| it.wants_primary()) {
            return Ok(());
        }
        Err("one server, whose place no other takes by itself")
    }

    fn fail_over(&self, _id: &LockId, asks: bool) -> Reply<String> {
        let (shown, commands) = (self.server(), self.commands().cloned());
        Box::pin(async move {
            let Some(commands) = commands else {
                return Ok(shown);
            };
            let discovery = commands.connections.discovery();
            let primary = discovery.find().await?.target.to_string();
            if asks {
                discovery.fail_over().await?;
            }
            Ok(primary)
        })
    }

    fn connections(&self) -> Reply<ConnectedClients> {
        let runner = self.steps.runner.clone();
        Box::pin(async move { runner.clients().await })
    }

    fn show(&self, lasts_ms: u64) -> Reply<()> {
        self.steps.runner.show(lasts_ms)
    }

    fn has_reached(&self) -> bool {
        let commands = self.commands();
        commands.is_none_or(|commands| commands.connections.has_worked())
    }

    fn trouble(&self) -> Option<Cause> {
        let trouble = self.steps.runner.trouble();
        trouble.or_else(|| self.steps.subscriptions.trouble())
    }

    fn prepare(&self) {
        if let Some(commands) = self.commands() {
            commands.connections.prepare();
        }
    }

    fn move_to_background(&self) {
        if let Some(commands) = self.commands() {
            commands.connections.move_to_background();
        }
    }

    fn shut(&self) {
        if let Some(commands) = self.commands() {
            commands.connections.shut();
        }
        if let Some(connections) = &self.steps.durable {
            connections.shut();
        }
    }
}
