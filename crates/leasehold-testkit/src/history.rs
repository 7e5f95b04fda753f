//! Who held what when, written down by those who held it, and judged afterwards.
//!
//! What is judged is what each holder believed. Record `acquired` after the lock was obtained and
//! `released` before it is given back: then a recorded hold lies within the real one, and two that
//! overlap are two that really did.
//!
//! A file has one line per event, so processes can share it:
//!
//! ```text
//! at_ns TAB event TAB name TAB holder [TAB key=value]…      until=ns  token=number  shared=true
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Counts while the machine sleeps, as leases do, and is the same in every process.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// There it counts while the machine sleeps, or nothing that does is to be had.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The time events are recorded at: nanoseconds since the machine started, the same for all of its
/// processes.
pub fn now() -> u64 {
    let time = clock_gettime(CLOCK);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.expect("time since the start") * 1_000_000_000 + nanos.expect("nanoseconds")
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The holder began to wait.
    Requested,
    /// It holds the lock.
    Acquired(Claim),
    /// It still does, and until when at least (`until`).
    Extended {
        /// As [`Claim::until`].
        until: u64,
    },
    /// It gave the lock back.
    Released,
    /// It learned that the lock is gone.
    Lost,
    /// It stopped waiting.
    GaveUp,
}

/// What a holder was told when it got the lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The lock is its own until then, on the clock of [`now`], should no end be recorded.
    pub until: Option<u64>,
    /// The fencing token.
    pub token: Option<u64>,
    /// Others may hold it at the same time, if theirs is shared too.
    pub shared: bool,
}

impl Claim {
    /// A claim that ends `valid_for` from now.
    pub fn valid_for(valid_for: Duration) -> Claim {
        Claim {
            until: Some(from_now(valid_for)),
            ..Claim::default()
        }
    }

    /// The claim with its fencing token.
    #[must_use]
    pub fn token(self, token: u64) -> Claim {
        Claim {
            token: Some(token),
            ..self
        }
    }

    /// The claim of one reader among others.
    #[must_use]
    pub fn shared(self) -> Claim {
        Claim {
            shared: true,
            ..self
        }
    }
}

fn from_now(valid_for: Duration) -> u64 {
    now().saturating_add(u64::try_from(valid_for.as_nanos()).unwrap_or(u64::MAX))
}

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// When, on the clock of [`now`].
    pub at: u64,
    /// What happened.
    pub kind: Kind,
    /// The lock.
    pub name: String,
    /// Who did it. Two holds of one holder nest, so tasks that exclude each other need two names.
    pub holder: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.kind {
            Kind::Requested => "requested",
            Kind::Acquired(_) => "acquired",
            Kind::Extended { .. } => "extended",
            Kind::Released => "released",
            Kind::Lost => "lost",
            Kind::GaveUp => "gave-up",
        };
        write!(f, "{}\t{word}\t{}\t{}", self.at, self.name, self.holder)?;
        match self.kind {
            Kind::Acquired(claim) => {
                if let Some(until) = claim.until {
                    write!(f, "\tuntil={until}")?;
                }
                if let Some(token) = claim.token {
                    write!(f, "\ttoken={token}")?;
                }
                if claim.shared {
                    write!(f, "\tshared=true")?;
                }
                Ok(())
            }
            Kind::Extended { until } => write!(f, "\tuntil={until}"),
            Kind::Requested | Kind::Released | Kind::Lost | Kind::GaveUp => Ok(()),
        }
    }
}

impl FromStr for Event {
    /// What is wrong with the line.
    type Err = String;

    fn from_str(line: &str) -> Result<Event, String> {
        let mut fields = line.split('\t');
        let mut field = |what: &str| {
            fields
                .next()
                .ok_or_else(|| format!("no {what} in {line:?}"))
        };
        let at = number(field("time")?)?;
        let word = field("event")?;
        let name = field("name")?.to_owned();
        let holder = field("holder")?.to_owned();
        let mut claim = Claim::default();
        for pair in fields {
            match pair.split_once('=') {
                Some(("until", value)) => claim.until = Some(number(value)?),
                Some(("token", value)) => claim.token = Some(number(value)?),
                Some(("shared", "true")) => claim.shared = true,
                _ => return Err(format!("{pair:?} is nothing an event has")),
            }
        }
        let kind = match word {
            "requested" => Kind::Requested,
            "acquired" => Kind::Acquired(claim),
            "extended" => Kind::Extended {
                until: claim.until.ok_or("extended until when?")?,
            },
            "released" => Kind::Released,
            "lost" => Kind::Lost,
            "gave-up" => Kind::GaveUp,
            _ => return Err(format!("{word:?} is no event")),
        };
        Ok(Event {
            at,
            kind,
            name,
            holder,
        })
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// Writes down events as they happen. Clones write to the same place.
#[derive(Debug, Clone)]
pub struct Recorder {
    place: Arc<Place>,
}

#[derive(Debug)]
enum Place {
    Memory(Mutex<Vec<Event>>),
    File { path: PathBuf, file: File },
}

impl Recorder {
    /// A recorder for the tasks and threads of one process.
    pub fn in_memory() -> Recorder {
        Recorder {
            place: Arc::new(Place::Memory(Mutex::default())),
        }
    }

    /// A recorder that appends to a file, in which other processes may record at the same time.
    pub fn to_file(path: impl Into<PathBuf>) -> io::Result<Recorder> {
        let path = path.into();
        let file = File::options().create(true).append(true).open(&path)?;
        Ok(Recorder {
            place: Arc::new(Place::File { path, file }),
        })
    }

    /// `holder` begins to wait for `name`.
    pub fn requested(&self, name: &str, holder: &str) {
        self.record_now(Kind::Requested, name, holder);
    }

    /// `holder` has obtained `name`, until it says otherwise.
    pub fn acquired(&self, name: &str, holder: &str) {
        self.acquired_as(name, holder, Claim::default());
    }

    /// `holder` has obtained `name`, and this is what it was told about it.
    pub fn acquired_as(&self, name: &str, holder: &str, claim: Claim) {
        self.record_now(Kind::Acquired(claim), name, holder);
    }

    /// `holder` was told that `name` is its own for `valid_for` more from now.
    pub fn extended(&self, name: &str, holder: &str, valid_for: Duration) {
        self.record_now(
            Kind::Extended {
                until: from_now(valid_for),
            },
            name,
            holder,
        );
    }

    /// `holder` is about to give `name` back.
    pub fn released(&self, name: &str, holder: &str) {
        self.record_now(Kind::Released, name, holder);
    }

    /// `holder` has learned that `name` is no longer its own.
    pub fn lost(&self, name: &str, holder: &str) {
        self.record_now(Kind::Lost, name, holder);
    }

    /// `holder` no longer waits for `name`.
    pub fn gave_up(&self, name: &str, holder: &str) {
        self.record_now(Kind::GaveUp, name, holder);
    }

    /// Records an event of any time.
    ///
    /// # Panics
    /// When a name has a tab or a line break in it, or the file cannot be written.
    pub fn record(&self, event: Event) {
        for text in [&event.name, &event.holder] {
            assert!(
                !text.contains(['\t', '\n', '\r']),
                "{text:?} does not fit on a line of a history"
            );
        }
        match &*self.place {
            Place::Memory(events) => events
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(event),
            // One write, so that lines of several processes do not mix.
            Place::File { path, file } => (&*file)
                .write_all(format!("{event}\n").as_bytes())
                .unwrap_or_else(|error| panic!("could not record in {}: {error}", path.display())),
        }
    }

    /// All that is recorded so far, in a file by others too.
    pub fn history(&self) -> io::Result<History> {
        match &*self.place {
            Place::Memory(events) => {
                let events = events
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                Ok(History::new(events))
            }
            Place::File { path, .. } => History::load(path),
        }
    }

    fn record_now(&self, kind: Kind, name: &str, holder: &str) {
        self.record(Event {
            at: now(),
            kind,
            name: name.to_owned(),
            holder: holder.to_owned(),
        });
    }
}

/// Events in the order of their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    events: Vec<Event>,
}

/// One holder having one lock, from when to when.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The lock.
    pub name: String,
    /// Who held it.
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

/// What a lock must not let happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// More held a name at once than may.
    Overlap {
        /// Those who held it when one more came.
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
    /// Someone ended or extended a hold it never had, so the recording itself is wrong.
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

/// What a history without violations amounts to.
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
    /// How often someone learned that the lock was gone.
    pub lost: u64,
}

impl History {
    /// A history of these events, in whatever order they come.
    pub fn new(mut events: Vec<Event>) -> History {
        events.sort_by_key(|event| event.at);
        History { events }
    }

    /// Reads what [`Recorder::to_file`] has written.
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

    /// The holds, in the order in which they began. Those of one holder that nest are one.
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

    fn replay(&self) -> Replay {
        let mut replay = Replay::default();
        for event in &self.events {
            replay.take(event);
        }
        replay
    }

    fn summary(&self) -> Summary {
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
struct Replay {
    holds: Vec<Hold>,
    /// By name and holder: which hold is open, and how often it was obtained.
    open: BTreeMap<(String, String), (usize, u32)>,
    had: BTreeSet<(String, String)>,
    stray: Vec<Event>,
}

impl Replay {
    fn take(&mut self, event: &Event) {
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

    fn begin(&mut self, event: &Event, who: (String, String), claim: Claim) {
        let until = claim.until.unwrap_or(u64::MAX);
        if let Some((hold, depth)) = self.open.get_mut(&who) {
            let hold = &mut self.holds[*hold];
            // One that ran out unsaid is over; another begins.
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

    fn end(&mut self, event: &Event, who: &(String, String)) {
        if let Some((hold, _)) = self.open.remove(who) {
            self.holds[hold].until = event.at;
        }
    }

    /// It may hear of a loss twice, or release what it has lost; but it must have had it.
    fn not_open(&mut self, event: &Event, who: &(String, String)) {
        if !self.had.contains(who) {
            self.stray.push(event.clone());
        }
    }
}

/// `holds` are of one name, in the order in which they began.
fn overlaps(holds: &[&Hold], permits: usize) -> Vec<Violation> {
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
fn tokens(holds: &[&Hold]) -> Vec<Violation> {
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

/// (Σx)² / (n Σx²), and 1 where nobody got anything.
#[expect(
    clippy::cast_precision_loss,
    reason = "nobody acquires a lock 2^52 times in a test"
)]
fn jain<'a>(counts: impl ExactSizeIterator<Item = &'a u64>) -> f64 {
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
