//! The messages between clients and the server: requests, replies and wake-ups, each by itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use leasehold::sim::{Answer, Hint, Kind, Network, Request};
use parking_lot::Mutex;

use crate::process::Signal;

/// Collects what clients send while they run.
#[derive(Default)]
pub struct Outbox {
    pub sent: Mutex<Vec<(u8, Request)>>,
    /// Of the client that runs now.
    pub signal: Mutex<Option<Arc<Signal>>>,
    /// The knowledge that clients have of the servers of a quorum, by server and client.
    pub known: Mutex<BTreeMap<(u8, String), Known>>,
    pub now: AtomicU64,
}

/// The knowledge that a client has of a server.
#[derive(Clone, Copy, Default)]
pub struct Known {
    /// When it restarted last, on the client's clock.
    pub restarted: u64,
    /// Until when there is no connection.
    pub down_until: u64,
}

/// The way to one server.
pub struct Wire {
    pub outbox: Arc<Outbox>,
    pub server: u8,
    pub called: Option<String>,
}

impl Wire {
    /// To a node of a cluster, or the one server of a world.
    pub fn to(outbox: &Arc<Outbox>, server: u8) -> Wire {
        Wire {
            outbox: Arc::clone(outbox),
            server,
            called: None,
        }
    }
}

impl Wire {
    fn known(&self, client: &str) -> Known {
        let known = self.outbox.known.lock();
        let known = known.get(&(self.server, client.to_owned())).copied();
        known.unwrap_or_default()
    }
}

impl Network for Wire {
    fn send(&self, request: Request) {
        self.outbox.sent.lock().push((self.server, request));
        if let Some(signal) = &*self.outbox.signal.lock() {
            signal.send();
        }
    }

    fn called(&self) -> Option<String> {
        self.called.clone()
    }

    fn restarted(&self, client: &str) -> u64 {
        self.known(client).restarted
    }

    fn is_cut(&self, client: &str) -> bool {
        self.known(client).down_until > self.outbox.now.load(Ordering::Relaxed)
    }
}

/// Something on its way.
pub enum Freight {
    Request {
        request: Arc<Asked>,
        /// Its sender will not hear of it.
        stray: bool,
    },
    Reply {
        request: Arc<Asked>,
        answer: Answer,
    },
    Hint {
        hint: Hint,
        server: u8,
    },
}

/// A request, kept as long as a copy of it may be carried out.
pub struct Asked {
    pub number: u64,
    pub sent: u64,
    pub client: u8,
    pub server: u8,
    pub request: Mutex<Request>,
    pub kind: Kind,
    /// Which names, as numbers, and under which lease ids.
    pub about: Vec<(u8, u64)>,
}

pub struct Message {
    pub client: u8,
    pub freight: Freight,
    pub due: u64,
    /// Of the connection it travels on.
    pub generation: u32,
}

impl Message {
    /// Travels on the connection for wake-ups.
    pub fn is_subscription(&self) -> bool {
        match &self.freight {
            Freight::Hint { .. } => true,
            Freight::Request { request, .. } | Freight::Reply { request, .. } => {
                request.kind.is_subscription()
            }
        }
    }

    pub fn server(&self) -> u8 {
        match &self.freight {
            Freight::Hint { server, .. } => *server,
            Freight::Request { request, .. } | Freight::Reply { request, .. } => request.server,
        }
    }

    pub fn is_to_client(&self) -> bool {
        !matches!(self.freight, Freight::Request { .. })
    }
}

/// `Acquire(Acquire { name: x, … })` without what the line says anyway.
pub fn in_words(request: &Request) -> String {
    let text = format!("{:?} {:?}", request.kind, request.what());
    let text = text.strip_suffix(" \"\"").unwrap_or(&text).to_owned();
    let short = text
        .replace("LeaseId(", "#")
        .replace("Acquire Acquire", "acquire")
        .replace("Release Release", "release")
        .replace("Abandon Abandon", "abandon")
        .replace("Renew [", "renew [")
        .replace("Some(", "(");
    short
        .replace("),", ",")
        .replace(") }", " }")
        .replace(")]", "]")
}
