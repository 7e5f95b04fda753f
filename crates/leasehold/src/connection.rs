//! How a client's connections are set up, below the login.

use std::time::Duration;

use crate::{durations::humane, error::Invalid};

/// Settings of a client's TCP connections, for [`ClientBuilder::connection`](crate::ClientBuilder::connection). On a Unix socket only the
/// protocol counts.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::{Client, ConnectionSettings, Protocol};
///
/// let connection = ConnectionSettings::new()
///     .keepalive(Duration::from_secs(60), Duration::from_secs(10), 3) // a line that is paid by the packet
///     .user_timeout(Some(Duration::from_secs(20)))
///     .nodelay(true)
///     .protocol(Protocol::Resp3);
/// let builder = Client::builder().url("redis://cache.internal/").connection(connection);
/// let client = builder.connect().await?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "give it to ClientBuilder::connection"]
pub struct ConnectionSettings {
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) nodelay: bool,
    pub(crate) protocol: Option<Protocol>,
}

/// When an idle connection is looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keepalive {
    pub(crate) idle: Duration,
    pub(crate) interval: Duration,
    pub(crate) probes: u32,
}

/// In which form the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// The one that every server speaks.
    Resp2,
    /// Since Redis 6.
    Resp3,
}

/// The most that the kernel takes, in whole seconds.
const SECONDS_MOST: Duration = Duration::from_secs(32_767);
const PROBES_MOST: u32 = 127;

impl Default for ConnectionSettings {
    /// A dead peer is noticed by the kernel after `idle + probes × interval`, or when sent data stays unacknowledged for the user timeout.
    /// A lease of 30 s then still has time for renewals on a new connection.
    fn default() -> ConnectionSettings {
        let keepalive = Keepalive {
            idle: Duration::from_secs(5),
            interval: Duration::from_secs(2),
            probes: 3,
        };
        ConnectionSettings {
            keepalive: Some(keepalive),
            user_timeout: Some(Duration::from_secs(8)),
            nodelay: true,
            protocol: None,
        }
    }
}

impl ConnectionSettings {
    /// The defaults.
    pub fn new() -> ConnectionSettings {
        ConnectionSettings::default()
    }

    /// TCP keepalive: after `idle` without a packet the kernel asks the peer, up to `probes` times, each `interval`; then it closes the
    /// connection. Default: 5 s, 2 s, 3. Both times are whole seconds from 1 s to 32,767 s, and there are 1 to 127 probes.
    ///
    /// A wait hears of a dead peer only by this: its wake-ups come late by as much, at most by [`poll_every`](crate::ClientBuilder::poll_every).
    /// Commands and renewals also notice two that go unanswered.
    pub fn keepalive(mut self, idle: Duration, interval: Duration, probes: u32) -> Self {
        self.keepalive = Some(Keepalive {
            idle,
            interval,
            probes,
        });
        self
    }

    /// No TCP keepalive.
    pub fn no_keepalive(mut self) -> Self {
        self.keepalive = None;
        self
    }

    /// For how long sent data may stay unacknowledged until the kernel closes the connection; `None`: as the system says, some 15 minutes.
    /// Default: 8 s. On Linux; elsewhere it has no effect.
    ///
    /// # Source
    /// `TCP_USER_TIMEOUT` in tcp(7).
    pub fn user_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.user_timeout = timeout;
        self
    }

    /// Whether a request is sent at once (`TCP_NODELAY`), and not held back to share a packet with the next. Default: `true`.
    pub fn nodelay(mut self, on: bool) -> Self {
        self.nodelay = on;
        self
    }

    /// The protocol; wins over the URL's. Default: the URL's `protocol`, else RESP2.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let seconds = |time: Duration| time >= Duration::from_secs(1) && time <= SECONDS_MOST;
        // The kernel counts keepalive in whole seconds, and the user timeout in milliseconds.
        let whole = |time: Duration| time.subsec_nanos() == 0 && seconds(time);
        let refused = |what, value: String, limit: &str| {
            let invalid = Invalid::new(what, value, limit.to_owned());
            Err(invalid.remedy("leave it out for the default of ConnectionSettings"))
        };
        if let Some(keepalive) = self.keepalive {
            for (what, time) in [
                ("the idle time of keepalive", keepalive.idle),
                ("the interval of keepalive", keepalive.interval),
            ] {
                if !whole(time) {
                    return refused(what, humane(time), "whole seconds from 1s to 9h 6m 7s");
                }
            }
            if !(1..=PROBES_MOST).contains(&keepalive.probes) {
                let probes = keepalive.probes.to_string();
                return refused("the probes of keepalive", probes, "between 1 and 127");
            }
        }
        match self.user_timeout {
            Some(time) if time < Duration::from_millis(1) || time > SECONDS_MOST => {
                refused("user_timeout", humane(time), "between 1ms and 9h 6m 7s")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_not_take_is_refused() {
        let seconds = Duration::from_secs;
        let default = ConnectionSettings::new();
        assert!(default.check().is_ok());
        for (settings, says) in [
            (
                default
                    .clone()
                    .keepalive(Duration::from_millis(1500), seconds(1), 1),
                "1.5s",
            ),
            (
                default.clone().keepalive(seconds(1), seconds(40_000), 1),
                "interval",
            ),
            (
                default.clone().keepalive(seconds(1), seconds(1), 0),
                "probes",
            ),
            (
                default.clone().user_timeout(Some(Duration::ZERO)),
                "user_timeout",
            ),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
