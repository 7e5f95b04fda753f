//! Reads what the processes wrote down, and judges it while they still write.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::Serialize;

use crate::{
    clock::nanos,
    invariants::{
        lost_update::{Increment, Increments},
        overlap::{GuardId, Span, meetings},
        patience::{OpenAsk, Patience},
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

/// What was seen so far.
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
    open_asks: BTreeMap<(u64, u64), OpenAsk>,
    pub(crate) holds: u64,
    pub(crate) span_count: u64,
    pub(crate) valid_ns: u64,
    pub(crate) waits_ns: Vec<u64>,
    pub(crate) answers: BTreeMap<String, u64>,
    pub(crate) lost: BTreeMap<String, u64>,
    pub(crate) ends: BTreeMap<String, u64>,
    /// After the faults ended: how long asks took that were open then or came later.
    pub(crate) calm_waits_ns: Vec<u64>,
    pub(crate) calm_since: Option<u64>,
    pub(crate) quiet: BTreeMap<u64, [usize; 3]>,
    pub(crate) setups: BTreeMap<u64, String>,
    pub(crate) calm_locks: BTreeMap<u64, u64>,
    /// Hangs that were told already.
    pub(crate) reported: std::collections::BTreeSet<(u64, u64)>,
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
                owner,
                at,
            } => {
                let id = id(guard);
                let span = Span {
                    id,
                    holder,
                    name,
                    owner,
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
            Record::Ready { setup } => {
                self.setups.insert(process, setup);
            }
            Record::CalmLock { .. } => *self.calm_locks.entry(process).or_default() += 1,
            Record::Quiet { left } => {
                self.quiet.insert(process, left);
            }
            Record::Panic { what } => self
                .sentences
                .push(format!("process {process} panicked: {what}")),
        }
    }

    fn answered(&mut self, process: u64, ask: u64, what: String, at: u64) {
        if let Some(ask) = self.open_asks.remove(&(process, ask)) {
            if what == "guard" {
                self.waits_ns.push(at.saturating_sub(ask.at));
                if let Some(since) = self.calm_since.filter(|&since| at > since) {
                    self.calm_waits_ns
                        .push(at.saturating_sub(since.max(ask.at)));
                }
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

    /// A process is gone: nothing follows of what it began.
    pub(crate) fn process_ended(&mut self, process: u64) {
        for span in self.spans.values_mut().flat_map(HashMap::values_mut) {
            span.ended |= span.id.process == process;
        }
        self.open_asks.retain(|&(of, _), _| of != process);
    }

    /// Looks for overlaps, and forgets spans that ended longer than `keep` ago.
    pub(crate) fn sweep(&mut self, now: u64, keep: Duration) {
        let horizon = now.saturating_sub(nanos(keep));
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
        self.increments.len() + self.lost_updates.len()
    }
}
