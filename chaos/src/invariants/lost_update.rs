//! No two proved increments of a name saw the same number. See [`counter`](crate::counter).

use std::collections::HashMap;

use super::overlap::GuardId;

/// A proved increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Increment {
    pub(crate) by: GuardId,
    pub(crate) name: usize,
    pub(crate) saw: u64,
    pub(crate) wrote: u64,
    pub(crate) at: u64,
}

/// The proved increments so far.
#[derive(Default)]
pub(crate) struct Increments {
    /// By name and number seen.
    proved: HashMap<(usize, u64), Increment>,
    count: usize,
}

impl Increments {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Forgets increments too old to be read again, so that a run of hours fits in memory.
    pub(crate) fn forget_before(&mut self, at: u64) {
        self.proved.retain(|_, increment| increment.at >= at);
    }

    /// Adds one; answers with an earlier one that saw the same: one of the two is lost.
    pub(crate) fn add(&mut self, increment: Increment) -> Option<Increment> {
        self.count += 1;
        self.proved
            .insert((increment.name, increment.saw), increment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn increment(process: u64, name: usize, saw: u64, wrote: u64) -> Increment {
        let by = GuardId { process, guard: 1 };
        Increment {
            by,
            name,
            saw,
            wrote,
            at: wrote,
        }
    }

    #[test]
    fn an_update_is_lost_when_two_saw_the_same() {
        let mut increments = Increments::default();
        let first = increment(1, 0, 0, 10);
        assert_eq!(increments.add(first), None);
        assert_eq!(increments.add(increment(2, 0, 10, 20)), None);
        assert_eq!(increments.add(increment(3, 1, 0, 30)), None, "other name");
        assert_eq!(increments.add(increment(4, 0, 0, 40)), Some(first));
    }

    #[test]
    fn a_late_write_without_proof_accuses_nobody() {
        // A read 0 and was stopped; B counted 0 → 20; A's write of 10 came late and is not proved;
        // C saw it and went on.
        let mut increments = Increments::default();
        assert_eq!(increments.add(increment(2, 0, 0, 20)), None);
        assert_eq!(increments.add(increment(3, 0, 10, 30)), None);
    }
}
