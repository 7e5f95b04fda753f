//! Reads what the processes wrote down, and judges it while they still write.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use serde::Serialize;

use crate::{
    clock::nanos,
    invariants::{
        lost_update::{Increment, Increments},
        overlap::{GuardId, Span, meetings},
        patience::{OpenAsk, Patience},
        tokens,
    },
    record::Record,
};

/// Two guards were valid at one instant.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overlap {
    pub(crate) one: Span,
    pub(crate) other: Span,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The records seen so far.
#[derive(Default)]
pub(crate) struct Checker {
    /// Spans that may still meet another, by name.
    spans: BTreeMap<usize, HashMap<GuardId, Span>>,
    names_of_guards: HashMap<GuardId, usize>,
    pub(crate) overlaps: BTreeMap<(GuardId, GuardId), Overlap>,
    increments: Increments,
    pub(crate) lost_updates: Vec<(Increment, Increment)>,
    /// Breaches that are a sentence: a revived guard, a panic.
    pub(crate) sentences: Vec<String>,
    /// Pairs of guards whose tokens did not grow.
    pub(crate) tokens: BTreeMap<(GuardId, GuardId), (Span, Span)>,
    open_asks: BTreeMap<(u64, u64), OpenAsk>,
    pub(crate) holds: u64,
    pub(crate) span_count: u64,
    pub(crate) valid_ns: u64,
    pub(crate) waits_ns: Vec<u64>,
    pub(crate) answers: BTreeMap<String, u64>,
    pub(crate) lost: BTreeMap<String, u64>,
    pub(crate) ends: BTreeMap<String, u64>,
    /// How work inside `run` ended, and how often it was polled.
    pub(crate) runs: BTreeMap<String, u64>,
    pub(crate) polls: u64,
    /// After the faults ended: how long asks took that were open then or came later.
    pub(crate) calm_waits_ns: Vec<u64>,
    pub(crate) calm_since: Option<u64>,
    pub(crate) quiet: BTreeMap<u64, [usize; 3]>,
    pub(crate) setups: BTreeMap<u64, String>,
    pub(crate) calm_locks: BTreeMap<u64, u64>,
    /// The clients of each process that lives.
    clients: BTreeMap<u64, BTreeSet<String>>,
    /// The clients that have ended, one way or the other: what they held without a lease is lost.
    pub(crate) gone: BTreeSet<String>,
    /// The processes that did not come to their end.
    pub(crate) killed: BTreeSet<u64>,
    /// Latches that may be left.
    pub(crate) doubtful: BTreeSet<String>,
    /// Hangs that were told already.
    pub(crate) reported: BTreeSet<(u64, u64)>,
}

impl Checker {
    pub(crate) fn add(&mut self, process: u64, record: Record) {
        let id = |guard| GuardId { process, guard };
        match record {
            Record::Ask {
                ask,
                name,
                how,
                wait,
                at,
            } => {
                let open = OpenAsk {
                    name,
                    how,
                    wait,
                    at,
                };
                self.open_asks.insert((process, ask), open);
            }
            Record::Answer { ask, what, at } => self.answered(process, ask, what, at),
            Record::First {
                guard,
                holder,
                name,
                shared,
                owner,
                token,
                at,
            } => {
                let id = id(guard);
                let span = Span {
                    id,
                    holder,
                    name,
                    shared,
                    owner,
                    token,
                    from: at,
                    to: at,
                    ended: false,
                };
                self.holds += u64::from(holder == guard);
                self.names_of_guards.insert(id, name);
                self.spans.entry(name).or_default().insert(id, span);
            }
            Record::Still { guard, at } => {
                if let Some(span) = self.span(id(guard)) {
                    span.to = at;
                }
            }
            Record::Lost { guard, why } => {
                *self.lost.entry(why).or_default() += 1;
                self.end(id(guard));
            }
            Record::Revived { guard, at } => self.sentences.push(format!(
                "guard {guard} of process {process} was valid again after its loss, at {at}"
            )),
            Record::End { guard, how } => {
                *self.ends.entry(how).or_default() += 1;
                self.end(id(guard));
            }
            Record::Count {
                guard,
                name,
                saw,
                wrote,
                at,
            } => {
                let by = id(guard);
                let increment = Increment {
                    by,
                    name,
                    saw,
                    wrote,
                    at,
                };
                if let Some(earlier) = self.increments.add(increment) {
                    self.lost_updates.push((earlier, increment));
                }
            }
            Record::Ran { how, polls } => self.ran(how, polls),
            Record::Ready { setup } => {
                self.setups.insert(process, setup);
            }
            Record::Client { id } => {
                self.clients.entry(process).or_default().insert(id);
            }
            Record::Gone { id } => {
                self.gone.insert(id);
            }
            Record::Doubtful { name } => {
                self.doubtful.insert(name);
            }
            Record::Breach { what } => self.sentences.push(format!("process {process}: {what}")),
            Record::CalmLock { .. } => *self.calm_locks.entry(process).or_default() += 1,
            Record::Quiet { left } => {
                self.quiet.insert(process, left);
            }
            Record::Panic { what } => self
                .sentences
                .push(format!("process {process} panicked: {what}")),
        }
    }

    fn ran(&mut self, how: String, polls: u64) {
        *self.runs.entry(how).or_default() += 1;
        self.polls += polls;
    }

    fn answered(&mut self, process: u64, ask: u64, what: String, at: u64) {
        let asked = self.open_asks.remove(&(process, ask));
        if let Some(ask) = asked.filter(|_| what == "guard") {
            self.waits_ns.push(at.saturating_sub(ask.at));
            if let Some(since) = self.calm_since.filter(|&since| at > since) {
                let waited = at.saturating_sub(since.max(ask.at));
                self.calm_waits_ns.push(waited);
            }
        }
        *self.answers.entry(what).or_default() += 1;
    }

    fn span(&mut self, id: GuardId) -> Option<&mut Span> {
        let name = self.names_of_guards.get(&id)?;
        self.spans.get_mut(name)?.get_mut(&id)
    }

    fn end(&mut self, id: GuardId) {
        if let Some(span) = self.span(id) {
            span.ended = true;
        }
    }

    /// A process is gone: nothing follows of the operations that it began.
    pub(crate) fn process_ended(&mut self, process: u64) {
        for span in self.spans.values_mut().flat_map(HashMap::values_mut) {
            span.ended |= span.id.process == process;
        }
        self.open_asks.retain(|&(of, _), _| of != process);
        self.gone
            .extend(self.clients.remove(&process).unwrap_or_default());
        if !self.quiet.contains_key(&process) {
            self.killed.insert(process);
        }
    }

    /// Looks for overlaps, and forgets spans that ended longer than `keep` ago.
    pub(crate) fn sweep(&mut self, now: u64, keep: Duration) {
        let horizon = now.saturating_sub(nanos(keep));
        self.increments.forget_before(horizon);
        for spans in self.spans.values_mut() {
            let all: Vec<&Span> = spans.values().collect();
            for (a, b) in meetings(&all) {
                let (one, other) = (all[a], all[b]);
                let (from, to) = one.meets(other).expect("it was found to meet");
                let (one, other) = (one.clone(), other.clone());
                let key = (one.id.min(other.id), one.id.max(other.id));
                let overlap = Overlap {
                    one,
                    other,
                    from,
                    to,
                };
                self.overlaps.insert(key, overlap);
            }
            for (earlier, later) in tokens::not_grown(&all) {
                let (earlier, later) = (all[earlier].clone(), all[later].clone());
                let key = (earlier.id, later.id);
                self.tokens.insert(key, (earlier, later));
            }
            spans.retain(|id, span| {
                let keep = !span.ended || span.to > horizon;
                if !keep {
                    self.span_count += 1;
                    self.valid_ns += span.to - span.from;
                    self.names_of_guards.remove(id);
                }
                keep
            });
        }
    }

    /// Asks that have been open for too long: process, number, and the ask.
    pub(crate) fn hanging(&self, now: u64, patience: Patience) -> Vec<(u64, u64, OpenAsk)> {
        let asks = self.open_asks.iter();
        asks.filter(|(_, ask)| patience.is_over(ask, now, self.calm_since))
            .map(|(&(process, number), ask)| (process, number, ask.clone()))
            .collect()
    }

    pub(crate) fn open_asks(&self) -> usize {
        self.open_asks.len()
    }

    pub(crate) fn proved_increments(&self) -> usize {
        self.increments.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(60);

    /// A guard that is its own holder, with looks that prove it valid from `from` to `to`.
    fn held(checker: &mut Checker, process: u64, guard: u64, from: u64, to: u64) {
        checker.add(process, first(guard, from));
        checker.add(process, Record::Still { guard, at: to });
    }

    fn first(guard: u64, at: u64) -> Record {
        Record::First {
            guard,
            holder: guard,
            name: 0,
            shared: false,
            owner: String::new(),
            token: None,
            at,
        }
    }

    fn overlaps(mut checker: Checker) -> Vec<(u64, u64)> {
        checker.sweep(1_000, KEEP);
        let found = checker.overlaps.values();
        found.map(|overlap| (overlap.from, overlap.to)).collect()
    }

    #[test]
    fn an_overlap_is_found_and_grows_with_what_is_written_later() {
        let mut checker = Checker::default();
        held(&mut checker, 1, 1, 0, 100);
        held(&mut checker, 2, 1, 90, 95);
        checker.sweep(100, KEEP);
        checker.add(2, Record::Still { guard: 1, at: 200 });
        assert_eq!(overlaps(checker), [(90, 100)]);
    }

    #[test]
    fn touching_spans_are_fine() {
        let mut checker = Checker::default();
        held(&mut checker, 1, 1, 0, 100);
        held(&mut checker, 2, 1, 100, 200);
        assert_eq!(overlaps(checker), []);
    }

    #[test]
    fn a_lost_look_adds_nothing() {
        let mut checker = Checker::default();
        held(&mut checker, 1, 1, 0, 100);
        let why = "Expired".to_owned();
        checker.add(1, Record::Lost { guard: 1, why });
        held(&mut checker, 2, 1, 110, 200);
        assert_eq!(checker.lost["Expired"], 1);
        assert_eq!(overlaps(checker), []);
    }

    #[test]
    fn one_true_look_proves_no_time() {
        let mut checker = Checker::default();
        held(&mut checker, 1, 1, 0, 100);
        checker.add(2, first(1, 50));
        assert_eq!(overlaps(checker), []);
    }

    #[test]
    fn what_a_killed_process_wrote_counts() {
        let mut checker = Checker::default();
        held(&mut checker, 1, 1, 0, 100);
        checker.process_ended(1);
        held(&mut checker, 2, 1, 50, 200);
        assert_eq!(overlaps(checker), [(50, 100)]);
    }

    #[test]
    fn a_process_that_was_stopped_is_still_there_to_be_met() {
        let mut checker = Checker::default();
        checker.add(1, first(1, 0));
        // Far later than the ended spans that are kept.
        held(&mut checker, 2, 1, 50, 80);
        checker.sweep(1_000, KEEP);
        checker.add(1, Record::Still { guard: 1, at: 900 });
        assert_eq!(overlaps(checker), [(50, 80)]);
    }

    #[test]
    fn an_ask_of_a_killed_process_does_not_hang() {
        let mut checker = Checker::default();
        let patience = Patience {
            lease: Duration::from_millis(1),
            slack: Duration::ZERO,
        };
        let ask = |ask| Record::Ask {
            ask,
            name: 0,
            how: "lock".to_owned(),
            wait: None,
            at: 0,
        };
        checker.add(1, ask(1));
        checker.add(2, ask(1));
        checker.process_ended(2);
        checker.calm_since = Some(0);
        let hanging = checker.hanging(1_000_000_000, patience);
        assert_eq!(hanging.len(), 1);
        assert_eq!((hanging[0].0, hanging[0].1), (1, 1));
    }
}
