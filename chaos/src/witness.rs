//! The witness of one guard: it looks, and writes down what its looks prove.
//!
//! A look is `[t0, is_valid(), t1]`. The answer was right at some instant between `t0` and `t1`. The
//! library says that a loss is final, so two true looks prove the guard valid in between: from the
//! end of the first to the beginning of the second. The end of the first true look and the beginning
//! of the last one are therefore all that must be kept of a guard: its *span*. A process that is
//! stopped between two looks has a span across the stop exactly if the look after it is true.
//!
//! Not every true look is written: one that follows a written one within [`WRITE_EVERY`] is kept
//! until a later one replaces it, so a SIGKILL costs the last 2 ms of a span. A true look after a
//! pause is written at once.

use std::time::Duration;

use crate::{
    api::Watched,
    clock::{nanos, now},
    journal::Journal,
    record::Record,
};

const WRITE_EVERY: Duration = Duration::from_millis(2);

/// The witness's knowledge of one guard.
pub(crate) struct Witness<'a> {
    journal: &'a Journal,
    guard: u64,
    holder: u64,
    name: usize,
    shared: bool,
    /// The beginning of the last true look.
    last: u64,
    /// The beginning of the last true look that is written; of the first one, its end.
    written: Option<u64>,
    lost: bool,
    ended: bool,
}

impl<'a> Witness<'a> {
    /// The witness of a guard on name number `name`. A guard that re-entered has the holder of the
    /// guard that it re-entered; one that is `shared` excludes only those that are not.
    pub(crate) fn new(
        journal: &'a Journal,
        name: usize,
        shared: bool,
        holder: Option<u64>,
    ) -> Witness<'a> {
        let guard = journal.number();
        Witness {
            journal,
            guard,
            holder: holder.unwrap_or(guard),
            name,
            shared,
            last: 0,
            written: None,
            lost: false,
            ended: false,
        }
    }

    pub(crate) fn guard(&self) -> u64 {
        self.guard
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn holder(&self) -> u64 {
        self.holder
    }

    /// Looks once.
    pub(crate) fn look(&mut self, guard: &impl Watched) -> bool {
        let before = now();
        let valid = guard.is_valid();
        self.saw(valid, before, now(), guard);
        valid
    }

    /// Notes the answer of a look that began and ended then.
    pub(crate) fn saw(&mut self, valid: bool, before: u64, after: u64, guard: &impl Watched) {
        match (valid, self.lost) {
            (true, true) => self.journal.write(Record::Revived {
                guard: self.guard,
                at: before,
            }),
            (true, false) if self.written.is_some() => self.still(before),
            (true, false) => {
                self.last = after;
                self.written = Some(after);
                self.journal.write(Record::First {
                    guard: self.guard,
                    holder: self.holder,
                    name: self.name,
                    shared: self.shared,
                    owner: guard.owner(),
                    token: guard.token(),
                    at: after,
                });
            }
            (false, false) => {
                self.lost = true;
                self.write_last();
                self.journal.write(Record::Lost {
                    guard: self.guard,
                    why: guard.lost_reason().unwrap_or_else(|| "unknown".to_owned()),
                });
            }
            (false, true) => {}
        }
    }

    fn still(&mut self, at: u64) {
        let after_a_pause = at.saturating_sub(self.last) > nanos(WRITE_EVERY);
        self.last = at;
        if after_a_pause
            || self
                .written
                .is_none_or(|written| at.saturating_sub(written) > nanos(WRITE_EVERY))
        {
            self.write_last();
        }
    }

    fn write_last(&mut self) {
        if self.written.is_some_and(|written| self.last > written) {
            self.written = Some(self.last);
            self.journal.write(Record::Still {
                guard: self.guard,
                at: self.last,
            });
        }
    }

    /// The guard is about to be given up. Call it before, so that the span ends before.
    pub(crate) fn end(&mut self, how: &str) {
        if !self.ended {
            self.ended = true;
            self.write_last();
            self.journal.write(Record::End {
                guard: self.guard,
                how: how.to_owned(),
            });
        }
    }
}

impl Drop for Witness<'_> {
    /// A task that was dropped in the middle ends its guard, too.
    fn drop(&mut self) {
        self.end("drop");
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Client;

    use super::*;

    #[tokio::test]
    async fn a_guard_is_proved_valid_from_its_first_true_look_to_its_last() {
        let client = Client::connect("memory:").await.unwrap();
        let mutex = client.mutex("stock:1");
        let lease = Duration::from_millis(60);
        let guard = mutex.fixed_lease(lease).lock().await.unwrap();
        let journal = Journal::in_memory();
        let mut witness = Witness::new(&journal, 0, false, None);
        let begun = now();
        let mut last = 0;
        loop {
            let before = now();
            if !witness.look(&guard) {
                break;
            }
            last = before;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        witness.look(&guard);
        drop(witness);

        let records = journal.take();
        let Record::First { at: first, .. } = records[0] else {
            panic!("{records:?}");
        };
        let still = records.iter().rev().find_map(|record| match record {
            Record::Still { at, .. } => Some(*at),
            _ => None,
        });
        let still = still.unwrap();
        assert!(begun < first && first < still, "{records:?}");
        assert!(last <= still && still - begun < nanos(lease), "{records:?}");
        let [.., loss, end] = &records[..] else {
            panic!("{records:?}");
        };
        assert!(matches!(loss, Record::Lost { why, .. } if why == "Expired"));
        assert!(matches!(end, Record::End { .. }));
    }
}
