//! Asks a server what it says of itself. It only reads.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::{BoxFuture, join};
use redis::{Cmd, Value};

use super::{Redis, commands::Commands};
use crate::{
    backend::{
        Failure,
        report::{Answers, ClockOffset, ServerReport},
    },
    clock::Instant,
};

/// So many round trips are measured, one after the other.
const TRIPS: usize = 50;

/// So many of the latest slow commands are looked at.
const SLOW_MOST: u32 = 128;

/// The settings that no section of `INFO` shows.
const SETTINGS: [&str; 4] = ["save", "appendfsync", "timeout", "slowlog-log-slower-than"];

impl Redis {
    /// A server that does not answer is a report, too.
    pub(crate) fn report(&self) -> BoxFuture<'static, ServerReport> {
        let (commands, server) = (self.commands().cloned(), self.shown.to_string());
        Box::pin(async move {
            let (answers, sentinels) = match commands {
                Some(commands) => {
                    let discovery = commands.connections.discovery();
                    join(ask(&commands), discovery.views()).await
                }
                None => (Ok(Answers::default()), Vec::new()),
            };
            ServerReport {
                server,
                votes: None,
                sentinels,
                answers,
            }
        })
    }
}

/// Fails if the server cannot be reached, or does not answer the first question.
async fn ask(commands: &Commands) -> Result<Answers, Failure> {
    // Has a connection made, if there is none: a refused login is no lack of a right.
    commands.is_named().await?;
    let info = allowed(commands, &redis::cmd("INFO")).await?;
    let mut answers = Answers {
        info: info.map(text),
        in_the_clear: in_the_clear(commands).await,
        ..Answers::default()
    };
    // The server has answered in part: its answers up to here are kept.
    answers.broke_off = ask_more(commands, &mut answers).await.err();
    Ok(answers)
}

async fn ask_more(commands: &Commands, answers: &mut Answers) -> Result<(), Failure> {
    for name in SETTINGS {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(name);
        let Some(pairs) = allowed(commands, &get).await? else {
            break; // nor the others
        };
        let pairs: BTreeMap<String, String> = redis::from_redis_value(pairs).unwrap_or_default();
        answers.settings.extend(pairs);
    }
    let mut slow = redis::cmd("SLOWLOG");
    slow.arg("GET").arg(SLOW_MOST);
    let log = allowed(commands, &slow).await?;
    answers.slow = log.map(|log| slow_commands(&log, answers.number("server_time_usec")));
    if answers.field("cluster_enabled") == Some("1") {
        let ask = |what: &str| -> Cmd {
            let mut ask = redis::cmd("CLUSTER");
            ask.arg(what);
            ask
        };
        let state = allowed(commands, &ask("INFO")).await?;
        let nodes = allowed(commands, &ask("NODES")).await?;
        answers.cluster = state
            .zip(nodes)
            .map(|(state, nodes)| (text(state), text(nodes)));
    }
    let ping = redis::cmd("PING");
    for _ in 0..TRIPS {
        let began = Instant::now();
        if allowed(commands, &ping).await?.is_some() {
            answers.trips.push(began.elapsed());
        }
    }
    answers.clock = clock(commands).await?;
    Ok(())
}

/// So often the server is asked for its time: the quickest answer tells it best.
const CLOCK_ASKED: u32 = 5;

/// How far its clock is from this machine's.
async fn clock(commands: &Commands) -> Result<Option<ClockOffset>, Failure> {
    let since_1970 = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        micros(now.unwrap_or_default())
    };
    let mut best = None::<ClockOffset>;
    for _ in 0..CLOCK_ASKED {
        let (asked, began) = (since_1970(), Instant::now());
        let Some(time) = allowed(commands, &redis::cmd("TIME")).await? else {
            return Ok(None);
        };
        let half_us = micros(began.elapsed()) / 2;
        let Ok((secs, us)) = redis::from_redis_value::<(i64, i64)>(time) else {
            return Ok(None);
        };
        let server = secs.saturating_mul(1_000_000).saturating_add(us);
        let offset = ClockOffset {
            ahead_us: server.saturating_sub(asked).saturating_sub(half_us),
            error_us: half_us,
        };
        if best.is_none_or(|best| offset.error_us < best.error_us) {
            best = Some(offset);
        }
    }
    Ok(best)
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Where the server is, if others than those of a private network may read what is said on the way there.
async fn in_the_clear(commands: &Commands) -> Option<IpAddr> {
    let found = commands.connections.discovery().find().await.ok()?;
    if found.target.speaks_tls() {
        return None;
    }
    let address = found.target.address()?;
    let leads_to = tokio::net::lookup_host(address).await.ok()?;
    all_outside(leads_to.map(|it| it.ip()))
}

/// The first of these addresses, if none is of a private network: a name may have a public address beside the private one that is used.
fn all_outside(mut ips: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let first = ips.next().filter(|ip| !is_private(*ip))?;
    ips.all(|ip| !is_private(ip)).then_some(first)
}

/// Whether the address is of this machine, or of a network that the Internet does not lead to.
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            // 100.64.0.0/10: between a provider and its customers, as in many clouds.
            let is_shared = first == 100 && second & 0xc0 == 0x40;
            ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// The answer to a command; `None` if the user may not send it.
async fn allowed(commands: &Commands, command: &Cmd) -> Result<Option<Value>, Failure> {
    match commands.command(command).await {
        Ok(value) => Ok(Some(value)),
        Err(Failure::Rejected(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn text(answer: Value) -> String {
    redis::from_redis_value(answer).unwrap_or_default()
}

/// How long ago each began, and how long it took, of an answer to `SLOWLOG GET`; by the server's clock, where it tells.
fn slow_commands(log: &Value, now_usec: Option<u64>) -> Vec<(Duration, Duration)> {
    let Value::Array(entries) = log else {
        return Vec::new();
    };
    let now = now_usec.map_or_else(
        || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
        },
        Duration::from_micros,
    );
    let read = |entry: &Value| {
        let Value::Array(fields) = entry else {
            return None;
        };
        let [_, Value::Int(began), Value::Int(micros), ..] = &fields[..] else {
            return None;
        };
        let began = Duration::from_secs(u64::try_from(*began).ok()?);
        let took = Duration::from_micros(u64::try_from(*micros).ok()?);
        Some((now.saturating_sub(began), took))
    };
    entries.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_network_is_told_from_the_internet() {
        for (ip, expected) in [
            ("127.0.0.1", true),
            ("10.1.2.3", true),
            ("172.31.0.1", true),
            ("172.32.0.1", false),
            ("192.168.1.1", true),
            ("169.254.1.1", true),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("8.8.8.8", false),
            ("::1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("::ffff:10.0.0.1", true),
            ("::ffff:8.8.8.8", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_private(ip.parse().unwrap()), expected, "{ip}");
        }
    }

    #[test]
    fn a_name_with_a_private_address_leads_to_a_private_network() {
        let outside = |ips: &[&str]| {
            let ips = ips.iter().map(|ip| ip.parse().unwrap());
            all_outside(ips).map(|ip| ip.to_string())
        };
        assert_eq!(outside(&[]), None);
        assert_eq!(outside(&["8.8.8.8", "10.0.0.1"]), None);
        assert_eq!(outside(&["10.0.0.1", "8.8.8.8"]), None);
        let both = ["8.8.8.8", "2001:db8::1"];
        assert_eq!(outside(&both).as_deref(), Some(both[0]));
    }
}
