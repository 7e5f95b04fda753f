//! The lease ids of this client that are being given up, by name: until the server has confirmed that, one of them may be what it calls
//! held (B5).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::name::Name;

#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    by_name: Mutex<HashMap<Name, usize>>,
    /// How many names there are, for those that ask: most often none.
    names: AtomicUsize,
}

impl Unsettled {
    /// One more of this name, until what this returns is dropped. Other kinds may have the same key, so the kind does not count.
    pub(crate) fn begin(self: &Arc<Self>, name: &Name) -> Settling {
        let mut by_name = self.by_name.lock();
        *by_name.entry(name.clone()).or_default() += 1;
        self.names.store(by_name.len(), Ordering::Release);
        Settling {
            of: Arc::clone(self),
            name: name.clone(),
        }
    }

    pub(crate) fn has(&self, name: &Name) -> bool {
        self.names.load(Ordering::Acquire) > 0 && self.by_name.lock().contains_key(name)
    }
}

/// A lease id that is being given up. Dropped when it is, or when nothing is left that would do it.
#[derive(Debug)]
pub(crate) struct Settling {
    of: Arc<Unsettled>,
    name: Name,
}

impl Drop for Settling {
    fn drop(&mut self) {
        let mut by_name = self.of.by_name.lock();
        if let Some(count) = by_name.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                by_name.remove(&self.name);
            }
        }
        self.of.names.store(by_name.len(), Ordering::Release);
    }
}
