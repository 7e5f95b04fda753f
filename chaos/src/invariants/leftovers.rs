//! L3: nothing is left behind that docs/keys.md does not name, with its end.

use std::time::Duration;

use leasehold_testkit::Server;
use redis::Connection;
use serde::Serialize;

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
pub(crate) fn keys(server: &Server, names: &[String], ends: Ends) -> Vec<Key> {
    let mut connection = server.connection();
    let mut found: Vec<String> = ask(&mut connection, &["KEYS", "*"]);
    found.sort_unstable();
    found
        .into_iter()
        .filter_map(|key| {
            let ttl_ms: i64 = ask(&mut connection, &["PTTL", &key]);
            // -2: it has ended since.
            (ttl_ms != -2).then(|| judge(key, ttl_ms, names, ends))
        })
        .collect()
}

fn judge(path: String, ttl_ms: i64, names: &[String], ends: Ends) -> Key {
    let tombstone = ends.lease.max(Duration::from_secs(30));
    let (kind, most) = if names.contains(&path) {
        ("hold", Some(ends.lease))
    } else if path.starts_with("leasehold:") && path.contains(":gone:") {
        ("tombstone", Some(tombstone))
    } else if path.starts_with("leasehold:") && path.ends_with(":queue") {
        ("queue", Some(ends.poll * 3))
    } else {
        ("unknown", None)
    };
    let ttl = u64::try_from(ttl_ms).map(Duration::from_millis);
    let allowed = most.is_some_and(|most| ttl.is_ok_and(|ttl| ttl <= most));
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
            let holders: Vec<String> = ask(&mut connection, &["HGETALL", name]);
            let queue = format!("leasehold:{{{name}}}:queue");
            let queue: Vec<String> = ask(&mut connection, &["LRANGE", &queue, "0", "-1"]);
            if !holders.is_empty() || !queue.is_empty() {
                let ttl_ms: i64 = ask(&mut connection, &["PTTL", name]);
                seen.push(format!(
                    "on the server {name} is held by {holders:?} for {ttl_ms} ms more, in its queue {queue:?}"
                ));
            }
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    seen
}

/// The channels that still have a subscriber.
pub(crate) fn channels(server: &Server) -> Vec<String> {
    ask(&mut server.connection(), &["PUBSUB", "CHANNELS"])
}

/// The library's connections, by name.
pub(crate) fn connections(server: &Server) -> Vec<String> {
    let list: String = ask(&mut server.connection(), &["CLIENT", "LIST"]);
    let named = list.lines().filter(|line| line.contains(" name=leasehold"));
    named.map(str::to_owned).collect()
}

/// Commands that clients send although nothing is held or asked for, when they are more than an idle client's
/// due: commands per second.
pub(crate) fn unrest(server: &Server) -> Option<u64> {
    const IDLE: u64 = 20;
    let before = server.commands_processed();
    std::thread::sleep(Duration::from_secs(1));
    let sent = server.commands_processed() - before;
    (sent > IDLE).then_some(sent)
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
        let names = ["stock:1".to_owned()];
        let ends = Ends {
            lease: Duration::from_secs(2),
            poll: Duration::from_secs(10),
        };
        for (key, ttl, allowed) in [
            ("stock:1", 1_500, true),
            ("stock:1", -1, false),
            ("stock:1", 2_001, false),
            ("leasehold:{stock:1}:queue", 30_000, true),
            ("leasehold:{stock:1}:queue", -1, false),
            ("leasehold:{stock:1}:gone:12", 30_000, true),
            ("leasehold:{stock:1}:gone:12", 30_001, false),
            ("redisson_unlock_latch:{stock:1}", 10, false),
        ] {
            let judged = judge(key.to_owned(), ttl, &names, ends);
            assert_eq!(judged.allowed, allowed, "{judged:?}");
        }
    }
}
