//! L3: nothing is left behind that docs/keys.md does not name, with its end.

use std::time::Duration;

use leasehold_testkit::Server;
use redis::Connection;
use serde::Serialize;

use crate::{checker::Checker, kind::Kind};

/// A key, and when it ends.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Key {
    pub(crate) path: String,
    pub(crate) kind: &'static str,
    /// Milliseconds; negative is never.
    pub(crate) ttl_ms: i64,
    /// Whether docs/keys.md names it and it ends in time.
    pub(crate) allowed: bool,
}

/// Longest times to live, after which each kind of key must be gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// The longest lease that was asked for.
    pub(crate) lease: Duration,
    /// The longest poll interval of a client.
    pub(crate) poll: Duration,
}

/// The state of a server.
pub(crate) fn keys(server: &Server, names: &[String], ends: Ends, checker: &Checker) -> Vec<Key> {
    let mut connection = server.connection();
    let mut found: Vec<String> = ask(&mut connection, &["KEYS", "*"]);
    found.sort_unstable();
    found
        .into_iter()
        .filter_map(|key| {
            let ttl_ms: i64 = ask(&mut connection, &["PTTL", &key]);
            // -2: it has ended since.
            (ttl_ms != -2).then(|| judge(key, ttl_ms, names, ends, checker))
        })
        .chain(wrong_permits(server, names))
        .collect()
}

/// The semaphores of which a permit was lost or made: there is one, free or out.
fn wrong_permits(server: &Server, names: &[String]) -> Vec<Key> {
    let mut connection = server.connection();
    let mut wrong = Vec::new();
    for name in names {
        let Some(out) = Kind::of(name).permits_out(name) else {
            continue;
        };
        let free: Option<i64> = ask(&mut connection, &["GET", name]);
        // No client has asked for it since a server forgot it.
        let Some(free) = free else { continue };
        let out: i64 = ask(&mut connection, &["ZCARD", &out]);
        if free + out != 1 {
            wrong.push(Key {
                path: format!("{name}: {free} free, {out} out"),
                kind: "permits",
                ttl_ms: -1,
                allowed: false,
            });
        }
    }
    wrong
}

/// The last token of a fenced mutex is kept for so long: a client's default.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// The queue of a fair mutex in which none of Redisson's waits is kept for so long after the last visit.
const FAIR_QUEUE: Duration = Duration::from_secs(3600);

/// A label outlives leases of this length by so long.
const LABEL: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

/// Where Redisson keeps the queue of a fair lock.
const FAIR_LIST: &str = "redisson_lock_queue:";

fn is_of_fair(path: &str) -> bool {
    let redissons = [FAIR_LIST, "redisson_lock_timeout:"];
    redissons.iter().any(|prefix| path.starts_with(prefix))
        || path.starts_with("leasehold:") && path.ends_with(":fair:places")
}

/// A latch that was neither counted down nor deleted: that of a process that died, or one of which no answer says whether it was
/// set.
fn is_of_latch(name: &str, checker: &Checker) -> bool {
    let mut parts = name.split(':').skip(2);
    let process = parts.next().and_then(|process| process.parse().ok());
    name.starts_with("latch:")
        && (checker.doubtful.contains(name)
            || process.is_some_and(|process| checker.killed.contains(&process)))
}

fn judge(path: String, ttl_ms: i64, names: &[String], ends: Ends, checker: &Checker) -> Key {
    let tombstone = ends.lease.max(Duration::from_secs(30));
    // Neither has an end: the semaphore stays, and a permit's time is in the sorted set.
    let stays = names.iter().any(|name| match Kind::of(name) {
        Kind::Permit => path == *name || Kind::Permit.permits_out(name).as_ref() == Some(&path),
        _ => false,
    });
    let (kind, most) = if stays {
        ("of a semaphore", None)
    } else if is_of_latch(&path, checker) {
        ("of a latch", None)
    } else if names.contains(&path) {
        ("hold", Some(ends.lease))
    } else if path.starts_with("leasehold:client:") {
        ("label", Some(ends.lease.max(LABEL.0) * 2 + LABEL.1))
    } else if path.starts_with("leasehold:") && path.contains(":gone:") {
        ("tombstone", Some(tombstone))
    } else if path.starts_with("redisson_lock_token:") {
        ("last token", Some(RETENTION))
    } else if path.starts_with("leasehold:") && path.ends_with(":queue") {
        ("queue", Some(ends.poll * 3))
    } else if is_of_fair(&path) {
        ("fair queue", Some(FAIR_QUEUE))
    } else {
        ("unknown", None)
    };
    let ttl = u64::try_from(ttl_ms).map(Duration::from_millis);
    let allowed = match most {
        Some(most) => ttl.is_ok_and(|ttl| ttl <= most),
        None => kind != "unknown",
    };
    Key {
        path,
        kind,
        ttl_ms,
        allowed,
    }
}

/// How the server sees the names that are held or queued for. Looks twice: a hold that is renewed
/// without a guard looks good once.
pub(crate) fn held(server: &Server, names: &[String]) -> Vec<String> {
    let mut connection = server.connection();
    let mut seen = Vec::new();
    for _ in 0..2 {
        for name in names {
            let kind: String = ask(&mut connection, &["TYPE", name]);
            let holders: Vec<String> = match kind.as_str() {
                "hash" => ask(&mut connection, &["HGETALL", name]),
                "string" => ask(&mut connection, &["MGET", name]),
                _ => Vec::new(),
            };
            let queues = format!("leasehold:{{{name}}}:*queue");
            let mut queues: Vec<String> = ask(&mut connection, &["KEYS", &queues]);
            queues.push(format!("{FAIR_LIST}{{{name}}}"));
            let mut waiting = Vec::new();
            for queue in queues {
                let places: Vec<String> = ask(&mut connection, &["LRANGE", &queue, "0", "-1"]);
                waiting.extend(places);
            }
            if !holders.is_empty() || !waiting.is_empty() {
                let ttl_ms: i64 = ask(&mut connection, &["PTTL", name]);
                seen.push(format!(
                    "on the server {name} is held by {holders:?} for {ttl_ms} ms more, in its queue {waiting:?}"
                ));
            }
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    seen
}

/// The channels that still have a subscriber.
pub(crate) fn channels(server: &Server) -> Vec<String> {
    let mut connection = server.connection();
    let mut channels: Vec<String> = ask(&mut connection, &["PUBSUB", "CHANNELS"]);
    // Before Redis 7 there are none.
    let sharded = redis::cmd("PUBSUB")
        .arg("SHARDCHANNELS")
        .query(&mut connection);
    channels.extend(sharded.unwrap_or_else(|_| Vec::<String>::new()));
    channels.retain(|channel| !channel.starts_with("__sentinel__"));
    channels
}

/// The library's connections, by name.
pub(crate) fn connections(server: &Server) -> Vec<String> {
    let list: String = ask(&mut server.connection(), &["CLIENT", "LIST"]);
    let named = list.lines().filter(|line| line.contains(" name=leasehold"));
    named.map(str::to_owned).collect()
}

/// How many kinds of commands are told.
const SHOWN: usize = 4;

/// The replicas of this server that have not acknowledged all that it has told them.
pub(crate) fn behind(server: &Server) -> Vec<String> {
    let info: String = ask(&mut server.connection(), &["INFO", "replication"]);
    let told = info
        .lines()
        .find_map(|line| line.strip_prefix("master_repl_offset:"));
    let told: u64 = told.and_then(|told| told.parse().ok()).unwrap_or(0);
    let replicas = info.lines().filter(|line| line.contains(",state=online,"));
    let is_behind = |line: &&str| {
        let mut fields = line.split(',');
        let heard = fields.find_map(|field| field.strip_prefix("offset="));
        heard.is_none_or(|heard| heard.parse().unwrap_or(0) < told)
    };
    replicas.filter(is_behind).map(str::to_owned).collect()
}

/// Commands that clients send although nothing is held or asked for, when they are more than an idle client's
/// due: how many in a second, and which.
pub(crate) fn unrest(server: &Server) -> Option<String> {
    const IDLE: u64 = 20;
    let (before, of_each) = (server.commands_processed(), server.calls());
    std::thread::sleep(Duration::from_secs(1));
    let (sent, calls) = (server.commands_processed() - before, server.calls());
    (sent > IDLE).then(|| {
        let since = calls
            .iter()
            .map(|(name, count)| (count - of_each.get(name).unwrap_or(&0), name));
        let mut since: Vec<_> = since.filter(|(count, _)| *count > 0).collect();
        since.sort_unstable_by(|one, other| other.cmp(one));
        let most = since.iter().take(SHOWN);
        let most: Vec<String> = most
            .map(|(count, name)| format!("{count} × {name}"))
            .collect();
        format!("{sent} ({})", most.join(", "))
    })
}

fn ask<T: redis::FromRedisValue>(connection: &mut Connection, command: &[&str]) -> T {
    let (program, args) = command.split_first().expect("a command has a name");
    let reply = redis::cmd(program).arg(args).query(connection);
    reply.unwrap_or_else(|error| panic!("{command:?} failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_needs_a_name_and_an_end() {
        let names = ["mutex:1", "permit:2", "latch:4"].map(str::to_owned);
        let mut checker = Checker::default();
        checker.doubtful.insert("latch:4:7:13".to_owned());
        checker.killed.insert(8);
        let ends = Ends {
            lease: Duration::from_secs(2),
            poll: Duration::from_secs(10),
        };
        for (key, ttl, allowed) in [
            ("mutex:1", 1_500, true),
            ("mutex:1", -1, false),
            ("mutex:1", 2_001, false),
            ("leasehold:{mutex:1}:queue", 30_000, true),
            ("leasehold:{mutex:1}:queue", -1, false),
            ("leasehold:{mutex:1}:gone:12", 30_000, true),
            ("leasehold:{mutex:1}:gone:12", 30_001, false),
            ("permit:2", -1, true),
            ("{permit:2}:timeout", -1, true),
            ("redisson_unlock_latch:{mutex:1}", 10, false),
            ("latch:4:7:12", -1, false),
            ("latch:4:7:13", -1, true),
            ("latch:4:8:12", -1, true),
            ("leasehold:{latch:4:8:12}:latch:gone:9", -1, false),
            ("leasehold:client:1c03d47e-bb03", 75_000, true),
            ("leasehold:client:1c03d47e-bb03", 75_001, false),
            ("redisson_lock_queue:{mutex:1}", 3_600_000, true),
            ("redisson_lock_timeout:{mutex:1}", -1, false),
            ("leasehold:{mutex:1}:fair:places", 3_600_001, false),
        ] {
            let judged = judge(key.to_owned(), ttl, &names, ends, &checker);
            assert_eq!(judged.allowed, allowed, "{judged:?}");
        }
    }
}
