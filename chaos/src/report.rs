//! The findings of a run, as a table for people and as JSON for programs.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::{
    checker::Checker,
    clock::millis,
    invariants::{
        leftovers::Key,
        overlap::{GuardId, Span},
        tokens,
    },
};

/// How many of a kind of finding the table shows.
const SHOWN: usize = 8;

/// Waits in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Waits {
    count: usize,
    p50_ms: f64,
    p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Waits {
    pub(crate) fn of(nanos: &[u64]) -> Waits {
        let mut sorted = nanos.to_vec();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            sorted.get(place).copied().map_or(0.0, millis)
        };
        Waits {
            count: sorted.len(),
            p50_ms: at(50),
            p99_ms: at(99),
            max_ms: at(100),
        }
    }
}

/// Two guards valid at one instant, and the faults before.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OverlapFound {
    pub(crate) one: Span,
    pub(crate) other: Span,
    pub(crate) lasted_ms: f64,
    /// A line for people.
    pub(crate) text: String,
    pub(crate) faults_before: Vec<String>,
}

/// The findings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) what: String,
    pub(crate) server: String,
    pub(crate) seed: u64,
    pub(crate) again: String,
    pub(crate) seconds: f64,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) faults_refused: Vec<String>,
    pub(crate) operations: u64,
    pub(crate) lives: u64,
    pub(crate) holds: u64,
    pub(crate) spans: u64,
    pub(crate) valid_seconds: f64,
    pub(crate) waits: Waits,
    pub(crate) calm_waits: Waits,
    pub(crate) answers: BTreeMap<String, u64>,
    pub(crate) ends: BTreeMap<String, u64>,
    pub(crate) lost: BTreeMap<String, u64>,
    pub(crate) runs: BTreeMap<String, u64>,
    pub(crate) polls_inside: u64,
    pub(crate) increments: usize,
    /// On the server at the end, by kind: how many, and the longest time to live.
    pub(crate) left_with_end: BTreeMap<String, (usize, i64)>,
    /// When a group was seen to have another primary, in seconds.
    pub(crate) switches: Vec<f64>,
    /// Overlaps just after one of these, which are no breach.
    pub(crate) excused: Vec<OverlapFound>,
    /// How many tokens have not grown just after one of these, which is no breach.
    pub(crate) tokens_excused: usize,

    pub(crate) overlaps: Vec<OverlapFound>,
    pub(crate) lost_updates: Vec<String>,
    /// Of a guard that was valid later than another, and has no larger token.
    pub(crate) tokens: Vec<String>,
    pub(crate) hangs: Vec<String>,
    pub(crate) leftovers: Vec<String>,
    pub(crate) not_ended: Vec<String>,
    pub(crate) other: Vec<String>,
}

impl Report {
    /// The checker's findings.
    pub(crate) fn read(&mut self, checker: &Checker) {
        self.holds = checker.holds;
        self.spans = checker.span_count;
        self.valid_seconds = millis(checker.valid_ns) / 1e3;
        self.waits = Waits::of(&checker.waits_ns);
        self.calm_waits = Waits::of(&checker.calm_waits_ns);
        self.answers = checker.answers.clone();
        self.ends = checker.ends.clone();
        self.lost = checker.lost.clone();
        self.runs = checker.runs.clone();
        self.polls_inside = checker.polls;
        self.increments = checker.proved_increments();
        self.other.extend(checker.sentences.iter().cloned());
        // The library knows by itself that this cannot be.
        let own_bugs = checker.answers.keys();
        let own_bugs = own_bugs.filter(|answer| answer.contains("report this as a bug"));
        self.other
            .extend(own_bugs.map(|answer| format!("an ask ended with {answer}")));
        self.tokens(checker, |_, _| false);
        self.lost_updates(checker, |_, _| false);
    }

    /// Counts each token that is no larger than an earlier guard's, unless it `may` be so.
    pub(crate) fn tokens(&mut self, checker: &Checker, may: impl Fn(&Span, &Span) -> bool) {
        let pairs = checker.tokens.values();
        let (excused, found): (Vec<_>, Vec<_>) =
            pairs.partition(|(earlier, later)| may(earlier, later));
        self.tokens_excused = excused.len();
        let found = found.into_iter();
        self.tokens = found
            .map(|(earlier, later)| tokens::told(earlier, later))
            .collect();
    }

    /// Reports the lost updates of two guards that may not both have been valid.
    pub(crate) fn lost_updates(
        &mut self,
        checker: &Checker,
        may: impl Fn(GuardId, GuardId) -> bool,
    ) {
        let lost = checker.lost_updates.iter();
        self.lost_updates = lost
            .filter(|(one, other)| !may(one.by, other.by))
            .map(|(one, other)| {
                format!(
                    "name {}: process {} guard {} wrote {:x}, process {} guard {} wrote {:x}; both had read {:x}",
                    one.name,
                    one.by.process,
                    one.by.guard,
                    one.wrote,
                    other.by.process,
                    other.by.guard,
                    other.wrote,
                    one.saw
                )
            })
            .collect();
    }

    pub(crate) fn keys(&mut self, keys: &[Key]) {
        for key in keys {
            if key.allowed {
                let (count, ttl) = self.left_with_end.entry(key.kind.to_owned()).or_default();
                *count += 1;
                *ttl = key.ttl_ms.max(*ttl);
            } else {
                self.leftovers.push(format!(
                    "{} {:?}, {}",
                    key.kind,
                    key.path,
                    if key.ttl_ms < 0 {
                        "without an end".to_owned()
                    } else {
                        format!("for {} ms more", key.ttl_ms)
                    }
                ));
            }
        }
    }

    /// See [`unrest`](crate::invariants::leftovers::unrest).
    pub(crate) fn unrest(&mut self, commands: Option<String>) {
        self.other.extend(commands.map(|commands| {
            format!("{commands} commands a second are sent while nothing is held or asked for")
        }));
    }

    pub(crate) fn breaches(&self) -> usize {
        self.findings().map(|(_, lines)| lines.len()).sum()
    }

    fn findings(&self) -> impl Iterator<Item = (&'static str, Vec<String>)> + '_ {
        let overlaps = self.overlaps.iter().map(|overlap| {
            let before = overlap.faults_before.join("\n         ");
            format!("{}\n         {before}", overlap.text)
        });
        [
            ("overlaps", overlaps.collect()),
            ("lost updates", self.lost_updates.clone()),
            ("tokens not grown", self.tokens.clone()),
            ("hangs", self.hangs.clone()),
            ("left behind", self.leftovers.clone()),
            ("did not end", self.not_ended.clone()),
            ("other breaches", self.other.clone()),
        ]
        .into_iter()
    }
}

fn listed<T: fmt::Display>(counts: &BTreeMap<String, T>) -> String {
    let words: Vec<String> = counts
        .iter()
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    words.join(", ")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "\n{} on {}, seed {}", self.what, self.server, self.seed)?;
        let mut row = |head: &str, text: String| writeln!(f, "  {head:<22} {text}");
        row("took", format!("{:.1} s", self.seconds))?;
        row("operations", self.operations.to_string())?;
        row("faults", format!("{faults}: {}", listed(&self.faults)))?;
        if !self.faults_refused.is_empty() {
            row("faults refused", self.faults_refused.join(", "))?;
        }
        if self.lives > 0 {
            row("lives of processes", self.lives.to_string())?;
        }
        row("holds", self.holds.to_string())?;
        row(
            "proved valid",
            format!("{} spans, {:.1} s in all", self.spans, self.valid_seconds),
        )?;
        for (head, waits) in [
            ("waits", self.waits),
            ("waits in the calm", self.calm_waits),
        ] {
            row(
                head,
                format!(
                    "{}: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
                    waits.count, waits.p50_ms, waits.p99_ms, waits.max_ms
                ),
            )?;
        }
        row("asks ended with", listed(&self.answers))?;
        row("guards ended by", listed(&self.ends))?;
        row("guards lost by", listed(&self.lost))?;
        row(
            "work inside run",
            format!("{} polls; {}", self.polls_inside, listed(&self.runs)),
        )?;
        row("proved increments", self.increments.to_string())?;
        let left = self.left_with_end.iter();
        let left: Vec<String> = left
            .map(|(kind, (count, ttl))| format!("{count} × {kind} (at most {ttl} ms more)"))
            .collect();
        row("left, with its end", left.join(", "))?;
        if !self.switches.is_empty() {
            let longest = self.excused.iter().map(|overlap| overlap.lasted_ms);
            let (count, longest) = (self.excused.len(), longest.fold(0.0, f64::max));
            let seen = self.switches.iter().map(|at| format!("{at:.1} s"));
            let seen: Vec<String> = seen.collect();
            row(
                "switches",
                format!("{}, seen at {}", seen.len(), seen.join(", ")),
            )?;
            row(
                "overlaps after them",
                format!(
                    "{count}, {longest:.1} ms at most; {} tokens not grown",
                    self.tokens_excused
                ),
            )?;
        }
        for (head, found) in self.findings() {
            row(head, found.len().to_string())?;
            for line in found.iter().take(SHOWN) {
                row("", format!("- {line}"))?;
            }
            if found.len() > SHOWN {
                row(
                    "",
                    format!("… and {} more (--json lists all)", found.len() - SHOWN),
                )?;
            }
        }
        let verdict = match self.breaches() {
            0 => "no breach found".to_owned(),
            count => format!("{count} BREACHES; again: {}", self.again),
        };
        writeln!(f, "  {verdict}")
    }
}
