//! A history of holds: the holders record it, and the test judges it afterwards.
//!
//! The test judges the belief of each holder. Record `acquired` after the lock was obtained and
//! `released` before it is given back: then a recorded hold lies within the real one, and two that
//! overlap are two that really did.
//!
//! A file has one line per event, so processes can share it:
//!
//! ```text
//! at_ns TAB event TAB name TAB holder [TAB key=value]…      until=ns  token=number  shared=true
//! ```

mod recorder;
mod replay;

pub use self::recorder::Recorder;
pub use self::replay::{History, Hold, Summary, Violation};

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Counts while the machine sleeps, as leases do, and is the same in every process.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// On these systems it counts while the machine sleeps, or there is no clock that does.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The time events are recorded at: nanoseconds since the machine started, the same for all of its
/// processes.
pub fn now() -> u64 {
    let time = clock_gettime(CLOCK);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.expect("time since the start") * 1_000_000_000 + nanos.expect("nanoseconds")
}

/// The kinds of events.
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

/// The server's answer when a holder got the lock.
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

/// A line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// When, on the clock of [`now`].
    pub at: u64,
    /// The kind of the event.
    pub kind: Kind,
    /// The lock.
    pub name: String,
    /// The holder. Two holds of one holder nest, so tasks that exclude each other need two names.
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
    /// The fault of the line.
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
