//! Settings: defaults with their units and reasons, and the checks that bind them to each other.

mod polling;
mod scan;

use std::time::Duration;

use crate::{
    durability::{self, DURABILITY_TIMEOUT_DEFAULT, Durability, Unmet},
    durations::humane,
    error::{Error, Invalid},
    events::Observers,
    kind::Access,
    name::check_prefix,
};
pub(crate) use polling::{PollRange, check_backoff};
pub use scan::SCAN_INTERVAL_DEFAULT;

/// How long a name outlives a holder that stops renewing it, unless the client or the mutex says otherwise.
///
/// Longer rides out longer pauses, shorter frees the name sooner after a crash. Redisson's `lockWatchdogTimeout`.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);

/// A waiter that hears nothing asks again after this long: wake-ups are hints, and hints get lost.
pub const POLL_EVERY_DEFAULT: Duration = Duration::from_secs(10);

/// How long to try to connect.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How long a command may go unanswered.
pub const OPERATION_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);

/// For how long the last fencing token of a name is kept after its last use.
///
/// Longer than any holder that paused will sleep; when it is over, the server's clock goes on where the tokens were.
pub const TOKEN_RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 24 * 3600);

/// For how long at most a dead waiter of a fair mutex keeps the others waiting.
///
/// Longer than a waiter of Redisson's may be deaf between taking its entry and subscribing, or while it connects again.
/// Redisson's `fairLockWaitTimeout`, which is five minutes.
pub const FAIR_WAIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// For how long the drop of a client's last handle waits for what is under way.
///
/// Longer than a few round trips to a server 20 ms away, and too short to be noticed at the end of a program.
pub const LINGER_DEFAULT: Duration = Duration::from_millis(100);

/// Below this a lease cannot be written: Redis counts in milliseconds, and `PEXPIRE 0` deletes the key.
pub(crate) const LEASE_MIN: Duration = Duration::from_millis(1);

/// Above this a lease is a mistake, and twenty-four million times that would overflow the server's clock.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The interval of work is the length of a lease, and a shorter one ends with a moment of bad network.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// A renewed lease is at least as long, so that it can be renewed each millisecond.
const RENEWED_MIN: Duration = Duration::from_millis(3);

/// A lease must survive two lost renewals.
pub(crate) const RENEWALS_PER_LEASE: u32 = 3;

/// A fixed lease is checked on the server at a third of its length, and at least this often.
pub(crate) const VERIFY_EVERY_MOST: Duration = Duration::from_secs(10);

/// How long a hold of a kind that has no leases is believed before it is checked again, and how long a release is repeated that was
/// not sent.
pub(crate) const NO_LEASE: Duration = Duration::from_secs(24 * 3600);

/// How long the server keeps what became of a change of a number, so that a copy of the request finds it. A release that may have been
/// carried out is repeated for half as long.
pub(crate) const ANSWERS_KEPT: Duration = Duration::from_secs(60);

/// Local waiters are warned about after this long behind a hold of their own process.
pub(crate) const SELF_WAIT_WARNING: Duration = Duration::from_secs(5);

/// Passing a lease to the next waiter of this process without asking the server.
///
/// The budget bounds how long other processes may have to wait for this one: after `max_in_row` hand-offs or
/// `max_time`, whichever comes first, the name goes back to the server, which gives it to the next process in
/// line, or lets this one go on if no other waits. While others are known to wait, it does so too as soon as each task of
/// this process that waited when the process got the name was served once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handoff {
    pub(crate) max_in_row: u32,
    max_micros: u32,
}

impl Handoff {
    /// At most `max_in_row` hand-offs, for at most `max_time`. Zero of either means [`off`](Handoff::off).
    ///
    /// In whole microseconds, up to 71 minutes; more counts as 71 minutes.
    pub const fn new(max_in_row: u32, max_time: Duration) -> Handoff {
        let micros = max_time.as_micros();
        Handoff {
            max_in_row,
            #[allow(clippy::cast_possible_truncation, reason = "checked in the same line")]
            // By hand: neither `min` nor `try_from` may be called in a `const fn`.
            max_micros: if micros > u32::MAX as u128 {
                u32::MAX
            } else {
                micros as u32
            },
        }
    }

    /// Each release goes to the server.
    pub const fn off() -> Handoff {
        Handoff::new(0, Duration::ZERO)
    }

    pub(crate) fn is_on(self) -> bool {
        self.max_in_row > 0 && self.max_micros > 0
    }

    pub(crate) const fn max_time(self) -> Duration {
        Duration::from_micros(self.max_micros as u64)
    }
}

impl Default for Handoff {
    /// 64 in a row, 20 ms in all: short critical sections share one round trip among 64 holders, long ones
    /// make no other process wait longer than one of them and 20 ms.
    fn default() -> Self {
        Handoff::new(64, Duration::from_millis(20))
    }
}

/// The settings of a client, checked.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "settings, of which none follows from another"
)]
pub(crate) struct Config {
    pub(crate) lease: Duration,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) poll_every: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) operation_timeout: Duration,
    pub(crate) handoff: Handoff,
    /// Something between this client and the server may send a request twice (B4).
    pub(crate) may_duplicate: bool,
    /// How long fencing tokens are kept after their last use; `None`: for ever.
    pub(crate) token_retention: Option<Duration>,
    /// The shortest watchdog of Redisson's clients that read beside ours.
    pub(crate) redisson_watchdog: Duration,
    /// The ids of permits are written as text.
    pub(crate) text_permit_ids: bool,
    /// How long a dead waiter of a fair mutex may keep the others waiting.
    pub(crate) fair_wait_timeout: Duration,
    /// How long the drop of the last handle waits for what is under way; zero: not at all.
    pub(crate) linger: Duration,
    /// How this client calls itself.
    pub(crate) label: String,
    /// The prefix of each name on the server.
    pub(crate) name_prefix: String,
    /// Whether to warn if the server may forget locks.
    pub(crate) check_server: bool,
    /// How often a cluster is asked for its table of slots while locks are held; zero: never.
    pub(crate) scan_interval: Duration,
    /// Of a cluster; `None`: if its nodes know them.
    pub(crate) sharded_channels: Option<bool>,
    /// The longest lease of all clients of a quorum.
    pub(crate) longest_lease: Option<Duration>,
    /// How long each server of a quorum may take to answer; `None`: as the operation timeout and the lease say.
    pub(crate) server_timeout: Option<Duration>,
    /// The servers of a quorum forget nothing when they restart.
    pub(crate) persistent_servers: bool,
    /// Who must have a lock, for how long that is waited for, and what becomes of one that has not.
    pub(crate) durability: Durability,
    pub(crate) durability_timeout: Duration,
    pub(crate) unmet: Unmet,
    pub(crate) observers: Observers,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            lease: LEASE_DEFAULT,
            renew_every: None,
            poll_every: POLL_EVERY_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            operation_timeout: OPERATION_TIMEOUT_DEFAULT,
            handoff: Handoff::default(),
            may_duplicate: false,
            token_retention: Some(TOKEN_RETENTION_DEFAULT),
            redisson_watchdog: LEASE_DEFAULT,
            text_permit_ids: false,
            fair_wait_timeout: FAIR_WAIT_TIMEOUT_DEFAULT,
            linger: LINGER_DEFAULT,
            label: String::new(),
            name_prefix: String::new(),
            check_server: true,
            scan_interval: SCAN_INTERVAL_DEFAULT,
            sharded_channels: None,
            longest_lease: None,
            server_timeout: None,
            persistent_servers: false,
            durability: Durability::Primary,
            durability_timeout: DURABILITY_TIMEOUT_DEFAULT,
            unmet: Unmet::GiveBack,
            observers: Observers::default(),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), Error> {
        // Here and not in `metrics(…)`: a builder's methods return no errors, so what was given there is refused now.
        self.observers.check()?;
        check_prefix(&self.name_prefix)?;
        self.durability.check()?;
        durability::check_timeout(self.durability_timeout)?;
        check_lease("lease", self.lease)?;
        check_renewed(self.lease)?;
        if let Some(longest) = self.longest_lease {
            check_lease("longest_lease", longest)?;
            // QB6: a server that restarted empty votes again after `longest`, and a longer lease could still be held then (bug 226).
            if longest < self.lease {
                let limit = format!("at least the lease, which is {}", humane(self.lease));
                return Err(Invalid::new("longest_lease", humane(longest), limit)
                    .remedy("take a longer one, the same for all clients of the quorum")
                    .into());
            }
        }
        if let Some(timeout) = self.server_timeout {
            check_server_timeout(timeout, self.operation_timeout, self.lease)?;
        }
        if let Some(every) = self.renew_every {
            check_renewal(every, self.lease)?;
        }
        scan::check(self.scan_interval)?;
        // Tokens that are kept for ever have no length to check.
        let retention = self.token_retention.unwrap_or(TOKEN_RETENTION_DEFAULT);
        for (what, value, usual) in [
            ("token_retention", retention, TOKEN_RETENTION_DEFAULT),
            // Zero turns it off.
            ("linger", self.linger.max(LEASE_MIN), LINGER_DEFAULT),
            ("poll_every", self.poll_every, POLL_EVERY_DEFAULT),
            ("redisson_watchdog", self.redisson_watchdog, LEASE_DEFAULT),
            (
                "fair_wait_timeout",
                self.fair_wait_timeout,
                FAIR_WAIT_TIMEOUT_DEFAULT,
            ),
            (
                "connect_timeout",
                self.connect_timeout,
                CONNECT_TIMEOUT_DEFAULT,
            ),
            (
                "operation_timeout",
                self.operation_timeout,
                OPERATION_TIMEOUT_DEFAULT,
            ),
        ] {
            let limit = if value < LEASE_MIN {
                "at least 1ms".to_owned()
            } else if value > LEASE_MAX {
                no_longer_than_a_year()
            } else {
                continue;
            };
            return Err(Invalid::new(what, humane(value), limit)
                .remedy(format!("leave it out for {}", humane(usual)))
                .into());
        }
        Ok(())
    }

    /// The longest lease that any client of a quorum asks for.
    pub(crate) fn longest_lease(&self) -> Duration {
        // Another client that says nothing may have leases of the default length (bug 226).
        let usual = self.lease.max(LEASE_DEFAULT);
        self.longest_lease.unwrap_or(usual)
    }

    /// How much of what is left of a lease is believed. The end on the server is moved by scripts of ours only forward (B2). But a JVM that
    /// reads beside us sets the leases of all readers (before 4.4.0), or the hash (since), to end after its own watchdog's time, from each of its
    /// renewals on. It may come after our grant, and we do not hear of it. Its renewal comes after our request, or ours has put the lease
    /// right: so no writer is let in before so much time from *our* last request (B1).
    pub(crate) fn believed(&self, access: Access, left: Duration) -> Duration {
        match access {
            Access::Shared => left.min(self.redisson_watchdog),
            Access::Exclusive | Access::Permits(_) => left,
        }
    }

    /// Refuses a lease that is not renewed if less of it would be believed: its holder is promised all of it.
    pub(crate) fn check_fixed(
        &self,
        what: &'static str,
        access: Access,
        lease: Duration,
    ) -> Result<(), Error> {
        let most = self.believed(access, lease);
        if most == lease {
            return Ok(());
        }
        let limit = format!("at most redisson_watchdog to read, {}", humane(most));
        Err(Invalid::new(what, humane(lease), limit)
            .remedy("take lease(d), which is renewed; or set redisson_watchdog to the shortest lockWatchdogTimeout of the Redissons that read, and to as much as you need where none does")
            .into())
    }

    /// How often a lease of this length is renewed.
    pub(crate) fn renew_every(&self, lease: Duration) -> Duration {
        let third = lease / RENEWALS_PER_LEASE;
        // The setting was checked against the client's lease. A single lock may ask for a shorter one.
        self.renew_every.map_or(third, |every| every.min(third))
    }
}

fn no_longer_than_a_year() -> String {
    format!("at most {}", humane(LEASE_MAX))
}

/// A lease between 1 ms and a year, cut to whole milliseconds as the server counts it.
pub(crate) fn check_lease(what: &'static str, lease: Duration) -> Result<Duration, Error> {
    let (limit, remedy) = if lease < LEASE_MIN {
        (
            "at least 1ms".to_owned(),
            "leave it out for 30s, renewed while the guard lives",
        )
    } else if lease > LEASE_MAX {
        (
            no_longer_than_a_year(),
            "take a shorter one, which is renewed while the guard lives",
        )
    } else {
        // Whole milliseconds, as the server counts: a fraction would be believed here, and not kept there (B1).
        return Ok(Duration::from_millis(millis(lease)));
    };
    let invalid = Invalid::new(what, humane(lease), limit);
    Err(invalid.remedy(remedy).into())
}

/// For how long a name is to stay taken by work that runs once in that time.
pub(crate) fn check_interval(interval: Duration) -> Result<Duration, Error> {
    let (limit, remedy) = if interval < INTERVAL_MIN {
        (
            format!("at least {}", humane(INTERVAL_MIN)),
            "take a longer one, or run(work), which frees the name when the work ends",
        )
    } else if interval > LEASE_MAX {
        (no_longer_than_a_year(), "take a shorter one")
    } else {
        // Cut as a lease is, since it becomes the length of one (`check_lease`).
        return Ok(Duration::from_millis(millis(interval)));
    };
    let invalid = Invalid::new("interval", humane(interval), limit);
    Err(invalid.remedy(remedy).into())
}

/// The time to be left of a lease that is extended: of a fixed one, since a renewed one has no end.
pub(crate) fn check_extension(lease: Duration, is_fixed: bool) -> Result<Duration, Error> {
    if !is_fixed {
        let (what, value) = ("the lease to extend", "renewed while the guard lives");
        return Err(Invalid::new(what, value, "a fixed one")
            .remedy("leave the call out, or take the lock with fixed_lease(d)")
            .into());
    }
    check_lease("lease", lease).map_err(|error| match error {
        Error::Invalid(invalid) => {
            let remedy = "say how long the lease is to last from now on";
            Error::Invalid(invalid.remedy(remedy))
        }
        other => other,
    })
}

/// The longest time that one holder may keep a name. The lease is no longer than that, so a renewed one needs room for its
/// renewals.
pub(crate) fn check_max_hold(most: Duration, fixed: bool) -> Result<Duration, Error> {
    let least = if fixed { LEASE_MIN } else { RENEWED_MIN };
    let (limit, remedy) = if most < least {
        (
            format!("at least {}", humane(least)),
            "give the holder time to do its work, or leave max_hold out for no limit",
        )
    } else if most > LEASE_MAX {
        (no_longer_than_a_year(), "leave max_hold out for no limit")
    } else {
        return Ok(Duration::from_millis(millis(most)));
    };
    let invalid = Invalid::new("max_hold", humane(most), limit);
    Err(invalid.remedy(remedy).into())
}

/// A renewed lease needs room for its renewals.
pub(crate) fn check_renewed(lease: Duration) -> Result<(), Error> {
    if lease >= RENEWED_MIN {
        return Ok(());
    }
    Err(Invalid::new("lease", humane(lease), "at least 3ms")
        .remedy("take a longer one, or one that is not renewed, with fixed_lease(d)")
        .into())
}

fn check_renewal(every: Duration, lease: Duration) -> Result<(), Error> {
    if every < LEASE_MIN || every > lease / RENEWALS_PER_LEASE {
        return Err(Invalid::new(
            "renew_every",
            humane(every),
            format!(
                "between 1ms and a third of the lease, {} for a lease of {}",
                humane(lease / RENEWALS_PER_LEASE),
                humane(lease)
            ),
        )
        .remedy("renew more often, or take a longer lease, so that two lost renewals cost nothing")
        .into());
    }
    Ok(())
}

fn check_server_timeout(
    timeout: Duration,
    operation_timeout: Duration,
    lease: Duration,
) -> Result<(), Error> {
    // A renewal begins when two thirds of the lease are left, and must be over before its end.
    let third = lease / RENEWALS_PER_LEASE;
    if (LEASE_MIN..=third.min(operation_timeout)).contains(&timeout) {
        return Ok(());
    }
    let (third, lease) = (humane(third), humane(lease));
    let limit = format!(
        "at least 1ms, and at most a third of the lease, {third} for a lease of {lease}, and the operation_timeout, which is {}",
        humane(operation_timeout)
    );
    Err(Invalid::new("server_timeout", humane(timeout), limit)
        .remedy("leave it out for a tenth of the lease and at most the operation_timeout, or take a longer lease or operation_timeout")
        .into())
}

/// Whole milliseconds, as they go over the wire.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
