//! Whether a holder lives, as far as its server can tell.

use std::time::Duration;

use anstyle::AnsiColor;
use leasehold::{Holder, Status};

use crate::output::human;

/// The end of the label of a client of `run --at-least`, which ends before its hold on purpose.
pub(crate) const KEEPS: &str = "(at-least)";

/// A client that is alive is connected again within ten seconds.
pub(crate) const GONE_FOR: Duration = Duration::from_secs(12);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its client is connected.
    Alive,
    /// Its client is connected, and has sent nothing for so long: its process stands still, or its network.
    Silent(Duration),
    /// Its client is not connected.
    Gone,
    /// Its client was one of `run --at-least`, which leaves the hold until its time is over (or was killed before).
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
        match holder.connected {
            None => Life::Unknown,
            Some(false) if keeps => Life::Kept,
            Some(false) => Life::Gone,
            Some(true) if holder.is_silent() => Life::Silent(holder.idle.unwrap_or_default()),
            Some(true) => Life::Alive,
        }
    }

    /// As `--json` calls it.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Life::Alive => Some("alive"),
            Life::Silent(_) => Some("silent"),
            Life::Gone => Some("gone"),
            Life::Kept => Some("kept"),
            Life::Unknown => None,
        }
    }

    /// In front of the holder in a table: a mark, and its colour.
    pub(crate) fn mark(self) -> Option<(&'static str, AnsiColor)> {
        match self {
            Life::Gone => Some(("✗", AnsiColor::Red)),
            Life::Silent(_) => Some(("?", AnsiColor::Yellow)),
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
            Life::Silent(idle) => format!(
                "silent: its client is connected, and has sent nothing for {}; free in {left} unless it is renewed",
                human(idle)
            ),
            Life::Gone => {
                format!("gone: its client is not connected; free in {left} unless it comes back")
            }
            Life::Kept => {
                format!(
                    "kept: `run --at-least` has ended, or was killed, and leaves it taken; free in {left}"
                )
            }
            Life::Unknown => format!("ends in {left} unless it is renewed"),
        }
    }
}

/// Of several holders the one that needs looking after most; else the first.
pub(crate) fn worst(status: &Status) -> Option<(&Holder, Life)> {
    let all = status
        .holders
        .iter()
        .map(|holder| (holder, Life::of(holder)));
    all.min_by_key(|(_, life)| match life {
        Life::Gone => 0,
        Life::Silent(_) => 1,
        _ => 2,
    })
}

/// Of a lock.
pub(crate) fn of_lock(status: &Status) -> Life {
    worst(status).map_or(Life::Unknown, |(_, life)| life)
}

/// Whether the server tells of no client of ours, though some hold locks.
pub(crate) fn is_blind<'a>(found: impl IntoIterator<Item = &'a Status>) -> bool {
    let holders = found.into_iter().flat_map(|lock| &lock.holders);
    // Ours tell when their leases were asked for.
    let mut ours = holders.filter(|holder| holder.since.is_some()).peekable();
    ours.peek().is_some() && ours.all(|holder| holder.connected.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_holder_is_told_by_its_connection_and_its_label() {
        let client = leasehold::Client::connect("memory:").await.unwrap();
        let _guard = client.mutex("name").lock().await.unwrap();
        let status = async || client.status("name").await.unwrap();
        while status().await.holders[0].label.is_none() {
            tokio::task::yield_now().await;
        }
        let mut holder = status().await.holders.remove(0);
        assert_eq!(Life::of(&holder), Life::Alive);
        let seconds = Duration::from_secs;
        for (idle, life) in [(11, Life::Alive), (12, Life::Silent(seconds(12)))] {
            holder.idle = Some(seconds(idle));
            assert_eq!(Life::of(&holder), life);
        }
        holder.connected = Some(false);
        assert_eq!(Life::of(&holder), Life::Gone);
        holder.label = Some("cron-1:77(at-least)".to_owned());
        assert_eq!(Life::of(&holder), Life::Kept);
        holder.connected = None;
        assert_eq!(Life::of(&holder), Life::Unknown);
    }
}
