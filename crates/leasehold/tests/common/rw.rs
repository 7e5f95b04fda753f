//! Read-write locks: who waits, and Redisson's on the wire, played by the scripts of its source.

use std::time::Instant;

use leasehold::{Client, Status};
use leasehold_testkit::Server;

use super::SOON;

async fn until(client: &Client, what: &str, happened: impl Fn(&Status) -> bool) {
    let deadline = Instant::now() + SOON;
    while !happened(&client.rw_lock("name").status().await.unwrap()) {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::task::yield_now().await;
    }
}

/// Until so many tasks of the client wait for the lock `name`.
pub async fn until_waiting_here(client: &Client, tasks: usize) {
    let what = format!("{tasks} tasks wait");
    until(client, &what, |status| status.waiting_here == tasks).await;
}

/// Until so many clients listen for the lock `name`.
pub async fn until_listening(client: &Client, clients: u64) {
    let what = format!("{clients} clients listen");
    until(client, &what, |status| status.waiting_clients == clients).await;
}

const CHANNEL: &str = "redisson_rwlock:{name}";
pub const JAVA: &str = "6f1c1a0e-0000-4000-8000-000000000000:42";
pub const JAVA_LEASE: &str = "{name}:6f1c1a0e-0000-4000-8000-000000000000:42:rwlock_timeout:1";

/// `RedissonReadLock.tryLockInnerAsync`.
const JAVA_READS: &str = "local mode = redis.call('hget', KEYS[1], 'mode') \
    if (mode == false) then \
      redis.call('hset', KEYS[1], 'mode', 'read') redis.call('hset', KEYS[1], ARGV[2], 1) \
      redis.call('set', KEYS[2] .. ':1', 1) redis.call('pexpire', KEYS[2] .. ':1', ARGV[1]) \
      redis.call('pexpire', KEYS[1], ARGV[1]) return nil end \
    if (mode == 'read') or (mode == 'write' and redis.call('hexists', KEYS[1], ARGV[3]) == 1) then \
      local ind = redis.call('hincrby', KEYS[1], ARGV[2], 1) local key = KEYS[2] .. ':' .. ind \
      redis.call('set', key, 1) redis.call('pexpire', key, ARGV[1]) \
      local remainTime = redis.call('pttl', KEYS[1]) \
      redis.call('pexpire', KEYS[1], math.max(remainTime, ARGV[1])) return nil end \
    return redis.call('pttl', KEYS[1])";

/// `RedissonReadLock.unlockInnerAsync`, without its latch.
const JAVA_LEAVES: &str = "local mode = redis.call('hget', KEYS[1], 'mode') \
    if (mode == false) then redis.call('publish', KEYS[2], ARGV[1]) return nil end \
    if (redis.call('hexists', KEYS[1], ARGV[2]) == 0) then return nil end \
    local counter = redis.call('hincrby', KEYS[1], ARGV[2], -1) \
    if (counter == 0) then redis.call('hdel', KEYS[1], ARGV[2]) end \
    redis.call('del', KEYS[3] .. ':' .. (counter+1)) \
    if (redis.call('hlen', KEYS[1]) > 1) then \
      local maxRemainTime = -3 local keys = redis.call('hkeys', KEYS[1]) \
      for n, key in ipairs(keys) do counter = tonumber(redis.call('hget', KEYS[1], key)) \
        if type(counter) == 'number' then for i=counter, 1, -1 do \
          local remainTime = redis.call('pttl', KEYS[4] .. ':' .. key .. ':rwlock_timeout:' .. i) \
          maxRemainTime = math.max(remainTime, maxRemainTime) end end end \
      if maxRemainTime > 0 then redis.call('pexpire', KEYS[1], maxRemainTime) return 0 end \
      if mode == 'write' then return 0 end end \
    redis.call('del', KEYS[1]) redis.call('publish', KEYS[2], ARGV[1]) return 1";

/// `RedissonWriteLock.tryLockInnerAsync`.
const JAVA_WRITES: &str = "local mode = redis.call('hget', KEYS[1], 'mode') \
    if (mode == false) then redis.call('hset', KEYS[1], 'mode', 'write') \
      redis.call('hset', KEYS[1], ARGV[2], 1) redis.call('pexpire', KEYS[1], ARGV[1]) return nil end \
    return redis.call('pttl', KEYS[1])";

pub fn java_reads(server: &Server, lease_ms: &str) -> redis::Value {
    let timeouts = format!("{{name}}:{JAVA}:rwlock_timeout");
    let writer = format!("{JAVA}:write");
    let call = ["EVAL", JAVA_READS, "2", "name", &timeouts];
    server.cli(&[&call[..], &[lease_ms, JAVA, &writer]].concat())
}

/// 0: others read still.
pub fn java_leaves(server: &Server) -> redis::Value {
    let timeouts = format!("{{name}}:{JAVA}:rwlock_timeout");
    let keys = ["name", CHANNEL, &timeouts, "{name}"];
    let call = ["EVAL", JAVA_LEAVES, "4"];
    server.cli(&[&call[..], &keys[..], &["0", JAVA]].concat())
}

pub fn java_writes(server: &Server, lease_ms: &str) -> redis::Value {
    let writer = format!("{JAVA}:write");
    server.cli(&["EVAL", JAVA_WRITES, "1", "name", lease_ms, &writer])
}
