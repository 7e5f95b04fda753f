//! Who may be counted by the server among those that listen.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::{error::Cause, name::LockId};

/// The names for which the server may count this client among the subscribers, and since which order.
#[derive(Default)]
pub(super) struct ChannelListeners {
    ids: Mutex<HashMap<LockId, u64>>,
    orders: AtomicU64,
    /// Why there is no connection, as long as one is wanted and there is none.
    pub(super) trouble: Mutex<Option<Cause>>,
}

impl ChannelListeners {
    pub(super) fn begin(&self, id: &LockId) -> u64 {
        let order = self.orders.fetch_add(1, Ordering::Relaxed);
        self.ids.lock().insert(id.clone(), order);
        order
    }

    pub(super) fn order(&self, id: &LockId) -> Option<u64> {
        self.ids.lock().get(id).copied()
    }

    /// An unsubscription was confirmed that was asked for after `order`.
    pub(super) fn end(&self, id: &LockId, order: Option<u64>) {
        let mut ids = self.ids.lock();
        // A subscription that was begun since has a later order, and goes on (bug 75).
        if ids.get(id).copied() == order {
            ids.remove(id);
        }
    }

    /// The connection is gone, and all subscriptions with it.
    pub(super) fn end_all(&self) {
        self.ids.lock().clear();
    }
}
