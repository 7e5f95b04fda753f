//! Leases on a Redis or Valkey server. The only files that name the redis crate are in this folder.
//!
//! Commands and subscriptions travel on connections of their own ("lanes"): an unsubscription that the
//! server sends unasked must never be taken for the answer to a command. Each runtime that sends commands has a lane,
//! and so has the client's home, where renewals are sent and subscriptions are heard.

mod commands;
mod failure;
mod lanes;
mod mutex;
mod script;
mod subscriptions;
mod target;

use std::{fmt, sync::Arc};

pub(crate) use target::{Login, Target};

use crate::{backend::Sink, config::Config, error::Error, home::Home};
use commands::Commands;
use subscriptions::Subscriptions;

/// One client of a server.
pub(crate) struct Redis {
    client: Arc<str>,
    commands: Arc<Commands>,
    subscriptions: Subscriptions,
    shown: String,
}

impl Redis {
    pub(crate) async fn connect(
        target: Target,
        client: &Arc<str>,
        label: &str,
        config: &Config,
        sink: Arc<dyn Sink>,
        home: &Home,
    ) -> Result<Redis, Error> {
        let shown = target.to_string();
        let target = Arc::new(target);
        let connection_name = format!("{CONNECTION_NAME}:{client}:{label}");
        let commands =
            Commands::connect(Arc::clone(&target), connection_name, config, home).await?;
        Ok(Redis {
            client: Arc::clone(client),
            commands: Arc::new(commands),
            subscriptions: Subscriptions::new(target, client, config, sink, home),
            shown,
        })
    }
}

/// How our connections are called in `CLIENT LIST`: this, the client's uuid, its label.
const CONNECTION_NAME: &str = "leasehold";

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
