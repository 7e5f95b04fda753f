//! The lease ids of this client that are being given up, by name: until the server has confirmed that, one of them may be what it calls
//! held (B5).

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::name::Name;

/// So many settled lease ids are remembered, for requests that were under way meanwhile. If more were settled, any name may be among them.
const REMEMBERED: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    state: Mutex<UnsettledState>,
    /// How many lease ids were ever begun and settled: most requests see no change, and none begun.
    begun: AtomicU64,
    settled: AtomicU64,
}

#[derive(Debug, Default)]
struct UnsettledState {
    by_name: HashMap<Name, usize>,
    /// The names of those settled last.
    last: VecDeque<Name>,
}

/// When a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    settled: u64,
}

impl Unsettled {
    /// Counts one more lease id of this name, until the [`Settling`] is dropped. Other kinds may have the same key, so the kind does not count.
    pub(crate) fn begin(self: &Arc<Self>, name: &Name) -> Settling {
        let mut state = self.state.lock();
        *state.by_name.entry(name.clone()).or_default() += 1;
        self.begun.fetch_add(1, Ordering::AcqRel);
        Settling {
            of: Arc::clone(self),
            name: name.clone(),
        }
    }

    /// A request is sent from here on.
    pub(crate) fn mark(&self) -> Mark {
        let settled = self.settled.load(Ordering::Acquire);
        Mark { settled }
    }

    /// Whether a lease id of this name was being given up at some time since the mark.
    pub(crate) fn may_be_ours(&self, name: &Name, since: Mark) -> bool {
        // No more have begun by now than were settled at the mark: this client was giving up nothing in between.
        if self.begun.load(Ordering::Acquire) == since.settled {
            return false;
        }
        let state = self.state.lock();
        let settled = self.settled.load(Ordering::Acquire) - since.settled;
        let settled = usize::try_from(settled).unwrap_or(usize::MAX);
        state.by_name.contains_key(name)
            || settled > REMEMBERED
            || state.last.iter().rev().take(settled).any(|it| it == name)
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
        let mut state = self.of.state.lock();
        if let Some(count) = state.by_name.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                state.by_name.remove(&self.name);
            }
        }
        if state.last.len() == REMEMBERED {
            state.last.pop_front();
        }
        state.last.push_back(self.name.clone());
        // Last, and under the lock: a request that was marked before this finds the name in `last`.
        self.of.settled.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_at_some_time_since_the_send_may_be_what_is_held() {
        let unsettled = Arc::<Unsettled>::default();
        let [one, other] = ["one", "other"].map(|name| Name::new(name).unwrap());
        let before = unsettled.mark();
        assert!(!unsettled.may_be_ours(&one, before));
        let twice = [unsettled.begin(&one), unsettled.begin(&one)];
        let between = unsettled.mark();
        drop(twice);
        let after = unsettled.mark();
        for (mark, is_ours) in [(before, true), (between, true), (after, false)] {
            assert_eq!(unsettled.may_be_ours(&one, mark), is_ours);
            assert!(!unsettled.may_be_ours(&other, mark));
        }
        let _begun = unsettled.begin(&one);
        assert!(unsettled.may_be_ours(&one, after), "since the send");
        let here = unsettled.mark();
        for _ in 0..2 * REMEMBERED {
            drop(unsettled.begin(&other));
        }
        let third = Name::new("third").unwrap();
        assert!(unsettled.may_be_ours(&third, here), "it may be forgotten");
        assert!(!unsettled.may_be_ours(&third, unsettled.mark()));
        let state = unsettled.state.lock();
        assert_eq!((state.by_name.len(), state.last.len()), (1, REMEMBERED));
    }
}
