//! Looks at the servers of a group, some of which may be dead.

use std::thread::sleep;
use std::time::Duration;

use redis::FromRedisValue;

use crate::server::Server;

/// Between looks: each is a connection to each server.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The answer of a server; `None` if there is none of this type.
pub(crate) fn look<T: FromRedisValue>(server: &Server, command: &[&str]) -> Option<T> {
    redis::from_redis_value(server.ask(command).ok()?).ok()
}

/// The `INFO replication` of a server; empty if it does not answer.
pub(crate) fn replication(server: &Server) -> String {
    look(server, &["INFO", "replication"]).unwrap_or_default()
}

/// Sleeps between two looks. Returns false, as the first look has.
pub(crate) fn pause() -> bool {
    sleep(LOOK_EVERY);
    false
}
