//! A server in this process: in memory, or of a simulation.

use std::sync::Arc;

#[cfg(feature = "sim")]
use super::{ClientBuilder, quorum};
#[cfg(feature = "sim")]
use crate::backend::simulated::server::SimulatedServer;
use crate::{
    backend::{
        Backend, Sink,
        memory::{self, MemoryServer},
    },
    clock::Clock,
    config::Config,
};

#[cfg(feature = "sim")]
impl ClientBuilder {
    /// Keep the leases on these servers of a simulation; of several, a majority decides.
    #[doc(hidden)]
    pub fn simulated<'a>(mut self, servers: impl IntoIterator<Item = &'a SimulatedServer>) -> Self {
        let servers = servers.into_iter().cloned().map(InProcess::Simulated);
        match <[InProcess; 1]>::try_from(servers.collect::<Vec<_>>()) {
            Ok([one]) => self.memory = Some(one),
            Err(several) => self.quorum = Some(quorum::Given::InProcess(several)),
        }
        self
    }
}

#[derive(Clone)]
pub(super) enum InProcess {
    Memory(MemoryServer),
    #[cfg(feature = "sim")]
    Simulated(SimulatedServer),
}

impl InProcess {
    pub(super) fn clock(&self) -> Clock {
        match self {
            InProcess::Memory(server) => server.clock(),
            #[cfg(feature = "sim")]
            InProcess::Simulated(_) => SimulatedServer::clock(),
        }
    }

    pub(super) fn called(&self) -> String {
        match self {
            InProcess::Memory(server) => server.called(),
            #[cfg(feature = "sim")]
            InProcess::Simulated(server) => server.called(),
        }
    }

    pub(super) fn client(
        self,
        client: &Arc<str>,
        label: String,
        config: &Config,
        sink: Arc<dyn Sink>,
    ) -> Box<dyn Backend> {
        match self {
            InProcess::Memory(server) => memory::client_of(server, client, label, config, sink),
            #[cfg(feature = "sim")]
            InProcess::Simulated(server) => server.client(client, config, sink),
        }
    }
}
