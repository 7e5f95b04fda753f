//! Whether a holder lives, as far as its server can tell.

use std::time::Duration;

use anstyle::AnsiColor;
use leasehold::{Holder, Status};

use crate::output::human;

/// The end of the label of a client of `run --at-least`, which ends before its hold on purpose.
pub(crate) const KEEPS: &str = "(at-least)";

/// A client that holds sends something within ten seconds; a slow one a little later.
const SILENT: Duration = Duration::from_secs(12);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its client is connected.
    Alive,
    /// Its client is connected, and has sent nothing for so long: its process stands still, or its network.
    Silent { idle: Duration, late: Duration },
    /// Its client is not connected.
    Gone,
    /// Its client has ended, and left the hold until its time is over.
    Kept,
    /// The server does not tell: of Redisson, of another library, to a user who may not ask.
    Unknown,
}

impl Life {
    pub(crate) fn of(holder: &Holder) -> Life {
        let keeps = holder
            .label
            .as_deref()
            .is_some_and(|label| label.ends_with(KEEPS));
        let (idle, late) = (holder.idle.unwrap_or_default(), holder.late());
        match holder.connected {
            None => Life::Unknown,
            Some(false) if keeps => Life::Kept,
            Some(false) => Life::Gone,
            // A renewal that is a little late may be under way. The lease is as long as both together, or longer.
            Some(true)
                if idle >= SILENT || late > (idle + holder.remaining.unwrap_or_default()) / 10 =>
            {
                Life::Silent { idle, late }
            }
            Some(true) => Life::Alive,
        }
    }

    /// As `--json` calls it.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Life::Alive => Some("alive"),
            Life::Silent { .. } => Some("silent"),
            Life::Gone => Some("gone"),
            Life::Kept => Some("kept"),
            Life::Unknown => None,
        }
    }

    /// In front of the holder in a table: a mark, and its colour.
    pub(crate) fn mark(self) -> Option<(&'static str, AnsiColor)> {
        match self {
            Life::Gone => Some(("✗", AnsiColor::Red)),
            Life::Silent { .. } => Some(("?", AnsiColor::Yellow)),
            Life::Alive | Life::Kept | Life::Unknown => None,
        }
    }

    /// Its state and the end of its lease, as `status` tells them.
    pub(crate) fn told(self, left: Option<Duration>) -> String {
        let Some(left) = left.map(human) else {
            let state = self
                .word()
                .map_or(String::new(), |word| format!("{word}; "));
            return format!("{state}has no end: a holder that crashed would keep it for ever");
        };
        match self {
            Life::Alive => {
                format!(
                    "alive: its client is connected, and renews it as a rule; else free in {left}"
                )
            }
            Life::Silent { idle, late } if late.is_zero() => format!(
                "silent: its client is connected, and has sent nothing for {}; free in {left} unless it is renewed",
                human(idle)
            ),
            Life::Silent { idle, late } => format!(
                "silent: its client has sent nothing for {}, so its renewal is {} late; free in {left} unless it is renewed",
                human(idle),
                human(late)
            ),
            Life::Gone => {
                format!("gone: its client is not connected; free in {left} unless it comes back")
            }
            Life::Kept => {
                format!("kept: `run --at-least` has ended, and leaves it taken; free in {left}")
            }
            Life::Unknown => format!("ends in {left} unless it is renewed"),
        }
    }
}

/// Of a lock with several holders, the life that needs looking after most.
pub(crate) fn of_lock(status: &Status) -> Life {
    let mut all: Vec<Life> = status.holders.iter().map(Life::of).collect();
    let urgent = |life: &Life| match life {
        Life::Gone => 0,
        Life::Silent { .. } => 1,
        _ => 2,
    };
    all.sort_by_key(urgent);
    all.first().copied().unwrap_or(Life::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_holder_is_silent_when_its_renewal_is_late_by_a_tenth_of_its_lease() {
        let client = leasehold::Client::connect("memory:").await.unwrap();
        let _guard = client.mutex("name").lock().await.unwrap();
        let mut holder = client.status("name").await.unwrap().holders.remove(0);
        let seconds = Duration::from_secs;
        for (lease, since, silent) in [
            (30, 0, false),
            (30, 10, false), // due now
            (30, 11, false),
            (30, 13, true),
            (30, 29, true),
            (3, 1, false),
            (3, 2, true),
            (600, 11, false),
            (600, 12, true), // it sends something within ten seconds, whatever its lease is
        ] {
            (holder.connected, holder.idle) = (Some(true), Some(seconds(since)));
            holder.remaining = Some(seconds(lease - since));
            let is_silent = matches!(Life::of(&holder), Life::Silent { .. });
            assert_eq!(is_silent, silent, "{since} s of {lease}");
        }
        holder.connected = Some(false);
        assert_eq!(Life::of(&holder), Life::Gone);
        holder.label = Some("cron-1:77(at-least)".to_owned());
        assert_eq!(Life::of(&holder), Life::Kept);
        holder.connected = None;
        assert_eq!(Life::of(&holder), Life::Unknown);
    }
}
