//! The messages between clients and the server: requests, replies and wake-ups, each by itself.

use std::sync::Arc;

use leasehold::sim::{Answer, Hint, Kind, Network, Request};
use parking_lot::Mutex;

use crate::process::Signal;

/// Collects what clients send while they run.
#[derive(Default)]
pub struct Outbox {
    pub sent: Mutex<Vec<Request>>,
    /// Of the client that runs now.
    pub signal: Mutex<Option<Arc<Signal>>>,
}

impl Network for Outbox {
    fn send(&self, request: Request) {
        self.sent.lock().push(request);
        if let Some(signal) = &*self.signal.lock() {
            signal.send();
        }
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
    Hint(Hint),
}

/// A request, kept as long as a copy of it may be carried out.
pub struct Asked {
    pub number: u64,
    pub sent: u64,
    pub client: u8,
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
            Freight::Hint(_) => true,
            Freight::Request { request, .. } | Freight::Reply { request, .. } => {
                request.kind.is_subscription()
            }
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
