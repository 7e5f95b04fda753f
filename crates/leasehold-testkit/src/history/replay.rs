//! Reads a history, and says whether it keeps the promises.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use std::{fmt, fs, io};

use super::{Claim, Event, Kind};

/// Events in the order of their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    pub(super) events: Vec<Event>,
}

/// A holder having a lock, from when to when.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The lock.
    pub name: String,
    /// The holder.
    pub holder: String,
    /// From `acquired` on.
    pub from: u64,
    /// Until `released` or `lost`; where neither is recorded, until the claim ended; for ever
    /// (`u64::MAX`) where it had no end.
    pub until: u64,
    /// Its fencing token.
    pub token: Option<u64>,
    /// Whether others could hold it at the same time.
    pub shared: bool,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} ", self.holder, self.from)?;
        match self.until {
            u64::MAX => write!(f, "on"),
            until => write!(f, "to {until}"),
        }
    }
}

/// A breach of a lock's promise.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// More held a name at once than may.
    Overlap {
        /// The holders when one more came.
        holding: Vec<Hold>,
        /// The one more.
        came: Hold,
    },
    /// A token was not greater than the one before it.
    TokenNotGreater {
        /// The hold with the greatest token before.
        before: Hold,
        /// The hold with a token no greater.
        after: Hold,
    },
    /// A holder ended or extended a hold it never had, so the recording itself is wrong.
    NotHeld(Event),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Overlap { holding, came } => {
                write!(
                    f,
                    "{:?} was held by {came}, and at the same time by",
                    came.name
                )?;
                holding.iter().enumerate().try_for_each(|(nth, hold)| {
                    write!(f, "{} {hold}", if nth == 0 { "" } else { "," })
                })
            }
            Violation::TokenNotGreater { before, after } => write!(
                f,
                "{:?} was held by {before} with token {}, then by {after} with token {}",
                after.name,
                before.token.unwrap_or_default(),
                after.token.unwrap_or_default(),
            ),
            Violation::NotHeld(event) => write!(f, "recorded of a lock that was not held: {event}"),
        }
    }
}

/// The figures of a history without violations.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// How many locks there were.
    pub names: usize,
    /// How often one of them was obtained.
    pub acquisitions: u64,
    /// How often by another holder than the time before.
    pub changes_of_holder: u64,
    /// How often by each holder; 0 for one that only asked.
    pub per_holder: BTreeMap<String, u64>,
    /// Jain's fairness index of these: 1 when all got the same, 1/n when one of n got everything.
    pub jain: f64,
    /// How long the longest wait took, from `requested` to `acquired`.
    pub longest_wait: Option<Duration>,
    /// How often a holder learned that the lock was gone.
    pub lost: u64,
}

impl History {
    /// A history of these events, given in any order.
    pub fn new(mut events: Vec<Event>) -> History {
        events.sort_by_key(|event| event.at);
        History { events }
    }

    /// Reads a file of [`Recorder::to_file`](super::Recorder::to_file).
    pub fn load(path: impl AsRef<Path>) -> io::Result<History> {
        let path = path.as_ref();
        let text = fs::read_to_string(path)?;
        let events = text.lines().enumerate().map(|(nth, line)| {
            line.parse().map_err(|error| {
                let place = format!("{}:{}: {error}", path.display(), nth + 1);
                io::Error::new(io::ErrorKind::InvalidData, place)
            })
        });
        Ok(History::new(events.collect::<io::Result<_>>()?))
    }

    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The holds, in the order in which they began. Nested holds of one holder are one.
    pub fn holds(&self) -> Vec<Hold> {
        self.replay().holds
    }

    /// Checks that one holder at a time had each name, shared holds aside, and that tokens grew.
    pub fn check(&self) -> Result<Summary, Vec<Violation>> {
        self.check_permits(1)
    }

    /// Checks that at most `permits` holders at a time had each name, shared holds aside.
    ///
    /// With more than one permit there is no order in which tokens must grow.
    pub fn check_permits(&self, permits: usize) -> Result<Summary, Vec<Violation>> {
        let Replay { holds, stray, .. } = self.replay();
        let mut violations: Vec<Violation> = stray.into_iter().map(Violation::NotHeld).collect();
        let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &holds {
            by_name.entry(&hold.name).or_default().push(hold);
        }
        for of_name in by_name.values() {
            violations.extend(overlaps(of_name, permits));
            if permits == 1 {
                violations.extend(tokens(of_name));
            }
        }
        if violations.is_empty() {
            Ok(self.summary())
        } else {
            Err(violations)
        }
    }

    pub(super) fn replay(&self) -> Replay {
        let mut replay = Replay::default();
        for event in &self.events {
            replay.take(event);
        }
        replay
    }

    pub(super) fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        let mut last: BTreeMap<&str, &str> = BTreeMap::new();
        let mut waiting: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for event in &self.events {
            let who = (event.name.as_str(), event.holder.as_str());
            match event.kind {
                Kind::Requested => {
                    waiting.insert(who, event.at);
                    summary.per_holder.entry(event.holder.clone()).or_default();
                }
                Kind::GaveUp => {
                    waiting.remove(&who);
                }
                Kind::Acquired(_) => {
                    summary.acquisitions += 1;
                    *summary.per_holder.entry(event.holder.clone()).or_default() += 1;
                    let before = last.insert(who.0, who.1);
                    summary.changes_of_holder +=
                        u64::from(before.is_some_and(|before| before != who.1));
                    if let Some(since) = waiting.remove(&who) {
                        let wait = Duration::from_nanos(event.at - since);
                        summary.longest_wait = summary.longest_wait.max(Some(wait));
                    }
                }
                Kind::Lost => summary.lost += 1,
                Kind::Extended { .. } | Kind::Released => {}
            }
        }
        summary.names = last.len();
        summary.jain = jain(summary.per_holder.values());
        summary
    }
}

/// The events of a history, turned into holds one by one.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) holds: Vec<Hold>,
    /// By name and holder: which hold is open, and how often it was obtained.
    pub(super) open: BTreeMap<(String, String), (usize, u32)>,
    pub(super) had: BTreeSet<(String, String)>,
    pub(super) stray: Vec<Event>,
}

impl Replay {
    pub(super) fn take(&mut self, event: &Event) {
        let who = (event.name.clone(), event.holder.clone());
        match event.kind {
            Kind::Requested | Kind::GaveUp => {}
            Kind::Acquired(claim) => self.begin(event, who, claim),
            Kind::Extended { until } => match self.open.get(&who) {
                Some(&(hold, _)) => self.holds[hold].until = until,
                None => self.not_open(event, &who),
            },
            Kind::Released => match self.open.get_mut(&who) {
                Some((_, depth)) if *depth > 1 => *depth -= 1,
                Some(_) => self.end(event, &who),
                None => self.not_open(event, &who),
            },
            // Of a hold that nests, all of it.
            Kind::Lost => match self.open.get(&who) {
                Some(_) => self.end(event, &who),
                None => self.not_open(event, &who),
            },
        }
    }

    pub(super) fn begin(&mut self, event: &Event, who: (String, String), claim: Claim) {
        let until = claim.until.unwrap_or(u64::MAX);
        if let Some((hold, depth)) = self.open.get_mut(&who) {
            let hold = &mut self.holds[*hold];
            // A hold that ran out unsaid is over; another begins.
            if hold.until > event.at {
                *depth += 1;
                hold.until = hold.until.max(until);
                return;
            }
        }
        self.had.insert(who.clone());
        self.open.insert(who, (self.holds.len(), 1));
        self.holds.push(Hold {
            name: event.name.clone(),
            holder: event.holder.clone(),
            from: event.at,
            until,
            token: claim.token,
            shared: claim.shared,
        });
    }

    pub(super) fn end(&mut self, event: &Event, who: &(String, String)) {
        if let Some((hold, _)) = self.open.remove(who) {
            self.holds[hold].until = event.at;
        }
    }

    /// It may hear of a loss twice, or release what it has lost; but it must have had it.
    pub(super) fn not_open(&mut self, event: &Event, who: &(String, String)) {
        if !self.had.contains(who) {
            self.stray.push(event.clone());
        }
    }
}

/// `holds` are of one name, in the order in which they began.
pub(super) fn overlaps(holds: &[&Hold], permits: usize) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut holding: Vec<&Hold> = Vec::new();
    for &came in holds {
        holding.retain(|hold| hold.until > came.from);
        let against: Vec<Hold> = holding
            .iter()
            .filter(|hold| !(hold.shared && came.shared))
            .map(|&hold| hold.clone())
            .collect();
        if against.len() >= permits {
            found.push(Violation::Overlap {
                holding: against,
                came: came.clone(),
            });
        }
        holding.push(came);
    }
    found
}

/// `holds` are of one name, in the order in which they began.
pub(super) fn tokens(holds: &[&Hold]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut before: Option<&Hold> = None;
    for &after in holds
        .iter()
        .filter(|hold| hold.token.is_some() && !hold.shared)
    {
        match before {
            Some(before) if before.token >= after.token => {
                found.push(Violation::TokenNotGreater {
                    before: before.clone(),
                    after: after.clone(),
                });
            }
            _ => before = Some(after),
        }
    }
    found
}

/// (Σx)² / (n Σx²), and 1 if no share is above zero.
#[expect(
    clippy::cast_precision_loss,
    reason = "no test acquires a lock 2^52 times"
)]
pub(super) fn jain<'a>(counts: impl ExactSizeIterator<Item = &'a u64>) -> f64 {
    let holders = counts.len() as f64;
    let (sum, squares) = counts.fold((0.0, 0.0), |(sum, squares), &count| {
        let count = count as f64;
        (sum + count, squares + count * count)
    });
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (holders * squares)
    }
}
