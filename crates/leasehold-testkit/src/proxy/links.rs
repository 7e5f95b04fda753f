//! The connections that pass through the proxy, and counters of their bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{SetOnce, watch};
use tokio::time::Instant;

use super::OBEY_DEADLINE;
use super::faults::{Faults, contains};
use crate::wait::wait_until;

/// The state that the controls and the proxy's thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: SocketAddr,
    pub(super) faults: watch::Sender<Faults>,
    /// Open connections by their number. Locked after `faults`, if both.
    pub(super) links: Mutex<HashMap<u64, Arc<Link>>>,
    pub(super) accepted: AtomicU64,
    pub(super) struck: AtomicU64,
    pub(super) to_server: AtomicU64,
    pub(super) to_client: AtomicU64,
}

impl Shared {
    pub(super) fn new(upstream: SocketAddr) -> Shared {
        Shared {
            upstream,
            faults: watch::Sender::new(Faults::default()),
            links: Mutex::default(),
            accepted: AtomicU64::new(0),
            struck: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
        }
    }

    pub(super) fn links(&self) -> MutexGuard<'_, HashMap<u64, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a counter once the delivery under way has counted itself. A client can see a byte
    /// before that.
    pub(super) fn read(&self, counter: &AtomicU64) -> u64 {
        let _deliveries = self.faults.borrow();
        counter.load(Ordering::SeqCst)
    }

    /// Tells the connections for which `matches` holds to reset, and says which these are.
    pub(super) fn reset(&self, matches: impl Fn(&Link) -> bool) -> Vec<u64> {
        let links = self.links();
        let closing = links.iter().filter(|(_, link)| matches(link));
        closing
            .map(|(id, link)| {
                link.finish(End::Reset);
                *id
            })
            .collect()
    }

    pub(super) fn wait_until_closed(&self, closing: &[u64]) {
        wait_until(
            OBEY_DEADLINE,
            "the proxy has closed the connections",
            || {
                let links = self.links();
                !closing.iter().any(|id| links.contains_key(id))
            },
        );
    }
}

/// A connection from a client through the proxy to the server.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Something was swallowed, so nothing may follow it.
    pub(super) gap: AtomicBool,
    /// It takes what both sides send, and carries nothing.
    pub(super) hung: AtomicBool,
    /// The client hears nothing more but the end.
    pub(super) muted: AtomicBool,
    /// The client has sent a `SUBSCRIBE` or an `SSUBSCRIBE`.
    pub(super) subscribed: AtomicBool,
    pub(super) end: SetOnce<End>,
}

/// How a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Everything sent so far arrives, then the end.
    Orderly,
    /// `ECONNRESET`.
    Reset,
}

impl Link {
    /// The first word on how to end is the last.
    pub(super) fn finish(&self, end: End) {
        let _ = self.end.set(end);
    }
}

/// Something that was read on one side and is to be delivered on the other.
pub(super) struct Parcel {
    pub(super) arrived: Instant,
    /// `None` is the end of the stream.
    pub(super) bytes: Option<Vec<u8>>,
}

impl Parcel {
    /// Clients write these short commands in one piece, behind a login at most: it is looked for where a parcel begins. Thousands of scripts
    /// by their text would take a debug build a second.
    pub(super) fn subscribes(&self) -> bool {
        let bytes = self.bytes.as_deref().unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(1024)];
        contains(bytes, b"\r\nSUBSCRIBE\r\n") || contains(bytes, b"\r\nSSUBSCRIBE\r\n")
    }
}
