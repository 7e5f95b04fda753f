//! The scripts of the leased semaphore, one by one: what they do with a part of a hold, with late and second copies, and with
//! what the server refuses.

use crate::common::{int, servers};
use leasehold_testkit::Server;
use redis::{FromRedisValue, RedisError, RedisResult, Value};

const OUT: &str = "{name}:timeout";
const CHANNEL: &[u8] = b"redisson_sc:{name}";
/// The first permit of a hold.
const FIRST: &[u8; 16] = b"client\0\0\0\0\0lease";
const GONE: &str = "gone";
/// When a permit ends.
const END: &str = "return redis.call('ZSCORE', KEYS[1], ARGV[1])";
const NEVER: &str = "922337203685477";

macro_rules! script {
    ($file:literal) => {
        concat!(
            include_str!("../../src/backend/redis/scripts/refuse.lua"),
            include_str!("../../src/backend/redis/scripts/waiting.lua"),
            include_str!("../../src/backend/redis/scripts/number/number.lua"),
            include_str!("../../src/backend/redis/scripts/leased_semaphore/pool.lua"),
            include_str!(concat!(
                "../../src/backend/redis/scripts/leased_semaphore/",
                $file
            ))
        )
    };
}

fn permit(number: u8) -> Vec<u8> {
    let mut id = FIRST.to_vec();
    id[7] = number;
    id
}

/// A connection that calls scripts.
struct Caller(redis::Connection);

impl Caller {
    /// A user that may do everything.
    fn of(server: &Server) -> Caller {
        Caller(server.connection())
    }

    /// A user that may do everything but this.
    fn without(server: &Server, refused: &[&str]) -> Caller {
        let user = ["ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "&*"];
        server.cli(&[&user[..], &["+@all"], refused].concat());
        let mut connection = server.connection();
        let auth = redis::cmd("AUTH").arg("worker").arg("pw").clone();
        auth.exec(&mut connection).unwrap();
        Caller(connection)
    }

    fn eval<T: FromRedisValue>(
        &mut self,
        text: &str,
        keys: &[&str],
        args: &[&[u8]],
    ) -> RedisResult<T> {
        let mut call = redis::cmd("EVAL");
        call.arg(text).arg(keys.len()).arg(keys);
        for arg in args {
            call.arg(*arg);
        }
        call.query(&mut self.0)
    }

    fn acquire(&mut self, count: u8, lease_ms: u32) -> RedisResult<(i64, i64)> {
        let (count, lease_ms) = (count.to_string(), lease_ms.to_string());
        let (count, lease_ms) = (count.as_bytes(), lease_ms.as_bytes());
        let args = [&FIRST[..], count, lease_ms, CHANNEL, b"0", b"0"];
        self.eval(script!("acquire.lua"), &["name", OUT, GONE], &args)
    }

    fn release(&mut self, count: u8, gone_ms: u32) -> RedisResult<(i64, i64)> {
        let (count, gone_ms) = (count.to_string(), gone_ms.to_string());
        let args = [
            &FIRST[..],
            count.as_bytes(),
            CHANNEL,
            gone_ms.as_bytes(),
            b"0",
            b"leasehold:{name}:waits",
            b"1",
        ];
        let answer: Vec<i64> = self.eval(script!("release.lua"), &["name", OUT, GONE], &args)?;
        Ok((answer[0], answer[1]))
    }

    /// The exceptions.
    fn renew(&mut self, keys: &[&str], count: u8, lease_ms: u32) -> RedisResult<Vec<i64>> {
        let (count, lease_ms) = (count.to_string(), lease_ms.to_string());
        let holds = keys.len().to_string();
        let mut args = vec![lease_ms.as_bytes(), holds.as_bytes()];
        for _ in keys {
            args.extend([&FIRST[..], count.as_bytes()]);
        }
        self.eval(script!("renew.lua"), keys, &args)
    }

    fn extend(&mut self, count: u8, lease_ms: u32) -> RedisResult<i64> {
        let (count, lease_ms) = (count.to_string(), lease_ms.to_string());
        let args = [&FIRST[..], count.as_bytes(), lease_ms.as_bytes()];
        self.eval(script!("extend.lua"), &[OUT], &args)
    }

    fn force_unlock(&mut self) -> RedisResult<Vec<Vec<u8>>> {
        self.eval(script!("force_unlock.lua"), &["name", OUT], &[CHANNEL])
    }

    fn permits(&mut self, step: &str, permits: i32) -> RedisResult<i64> {
        let permits = permits.to_string();
        let args = [CHANNEL, step.as_bytes(), permits.as_bytes()];
        self.eval(script!("permits.lua"), &["name", OUT], &args)
    }

    /// Writes a permit as another client would: it ends at `end`.
    fn put(&mut self, permit: &[u8], end: &str) {
        let zadd = redis::cmd("ZADD").arg(OUT).arg(end).arg(permit).clone();
        zadd.exec(&mut self.0).unwrap();
    }

    fn take_away(&mut self, permit: &[u8]) {
        let zrem = redis::cmd("ZREM").arg(OUT).arg(permit).clone();
        zrem.exec(&mut self.0).unwrap();
    }
}

/// How many permits are free and out.
fn state(server: &Server) -> (i64, i64) {
    (int(server, &["GET", "name"]), int(server, &["ZCARD", OUT]))
}

/// The server's clock.
fn now_ms(server: &Server) -> i64 {
    let (seconds, _): (i64, i64) = redis::from_redis_value(server.cli(&["TIME"])).unwrap();
    seconds * 1000
}

/// A server with so many permits.
fn with(permits: &str) -> Vec<Server> {
    let servers = servers();
    for server in &servers {
        server.cli(&["SET", "name", permits]);
    }
    servers
}

#[test]
fn a_second_copy_of_an_acquisition_states_what_is_left_and_takes_nothing() {
    for server in with("5") {
        let mut caller = Caller::of(&server);
        assert_eq!(caller.acquire(3, 20_000).unwrap(), (1, 20_000));
        // Never sooner than it ends, and later if that is asked.
        let (held, left) = caller.acquire(3, 10_000).unwrap();
        assert!(held == 1 && (19_000..=20_000).contains(&left), "{left}");
        assert_eq!(caller.acquire(3, 30_000).unwrap(), (1, 30_000));
        assert_eq!(state(&server), (2, 3));
    }
}

#[test]
fn a_part_of_a_hold_is_none_and_goes_back_before_all_are_taken_again() {
    for server in with("3") {
        let mut caller = Caller::of(&server);
        caller.acquire(3, 20_000).unwrap();
        // Redisson's `release` of one id.
        caller.take_away(&permit(1));
        server.cli(&["INCR", "name"]);
        assert_eq!(caller.renew(&[OUT], 3, 20_000).unwrap(), [1, 0], "lost");
        assert_eq!(caller.extend(3, 20_000).unwrap(), 0);
        assert_eq!(caller.acquire(3, 10_000).unwrap(), (1, 10_000));
        assert_eq!(state(&server), (0, 3));
        // A part that is over.
        caller.put(&permit(2), "1");
        assert_eq!(caller.renew(&[OUT], 3, 20_000).unwrap(), [1, 0], "lost");
        assert_eq!(caller.acquire(3, 15_000).unwrap(), (1, 15_000));
        assert_eq!(state(&server), (0, 3));
        // And what is left of it is given back by a release.
        caller.put(&permit(0), "1");
        assert_eq!(caller.release(3, 0).unwrap(), (1, 0));
        assert_eq!(state(&server), (3, 0));
    }
}

#[test]
fn a_late_copy_after_a_release_with_a_tombstone_changes_nothing() {
    for server in with("3") {
        let mut caller = Caller::of(&server);
        caller.acquire(2, 20_000).unwrap();
        assert_eq!(caller.release(2, 5_000).unwrap(), (1, 0));
        let ttl = int(&server, &["PTTL", GONE]);
        assert!((4_000..=5_000).contains(&ttl), "{ttl}");
        assert_eq!(caller.acquire(2, 20_000).unwrap(), (2, 0));
        assert_eq!(caller.release(2, 0).unwrap(), (0, 0));
        assert_eq!(caller.extend(2, 20_000).unwrap(), 0);
        assert_eq!(state(&server), (3, 0));
    }
}

#[test]
fn ends_move_forward_only_and_one_bad_name_keeps_no_other_from_renewal() {
    for server in with("3") {
        let mut caller = Caller::of(&server);
        caller.acquire(2, 20_000).unwrap();
        server.cli(&["SET", "bad", "1"]);
        let keys = ["bad", "none", OUT];
        assert_eq!(caller.renew(&keys, 2, 10_000).unwrap(), [1, -1, 2, 0]);
        let left = caller.extend(2, 5_000).unwrap();
        assert!((19_000..=20_000).contains(&left), "{left}");
        assert_eq!(caller.renew(&keys, 2, 40_000).unwrap(), [1, -1, 2, 0]);
        let left = caller.extend(2, 5_000).unwrap();
        assert!((39_000..=40_000).contains(&left), "{left}");
        assert_eq!(caller.renew(&keys, 2, 0).unwrap(), [1, -1, 2, 0], "a look");
        // Redisson's `updateLeaseTime` of one of them.
        let far = (now_ms(&server) + 90_000).to_string();
        caller.put(&permit(1), &far);
        caller.extend(2, 60_000).unwrap();
        let end: String = caller.eval(END, &[OUT], &[&permit(1)]).unwrap();
        assert_eq!(end, far, "it comes no nearer");
    }
}

#[test]
fn a_semaphore_that_ends_promises_no_more_than_that() {
    for server in with("3") {
        let mut caller = Caller::of(&server);
        server.cli(&["PEXPIRE", "name", "10000"]);
        let (held, left) = caller.acquire(2, 20_000).unwrap();
        assert!(held == 1 && (9_000..=10_000).contains(&left), "{left}");
        let ttl = int(&server, &["PTTL", OUT]);
        assert!((9_000..=10_000).contains(&ttl), "as the number's: {ttl}");
        let (_, left) = caller.acquire(2, 20_000).unwrap();
        assert!((9_000..=10_000).contains(&left), "{left}");
        let left = caller.extend(2, 20_000).unwrap();
        assert!((9_000..=10_000).contains(&left), "{left}");
        assert_eq!(
            caller.renew(&[OUT], 2, 20_000).unwrap(),
            [1, -1],
            "not so far"
        );
        assert_eq!(caller.renew(&[OUT], 2, 5_000).unwrap(), [0_i64; 0]);
        // Redisson's `addPermits` drops the end; ours does not.
        assert_eq!(caller.permits("add", 2).unwrap(), 3);
        assert!(int(&server, &["PTTL", "name"]) > 0);
    }
}

#[test]
fn who_finds_too_few_is_told_when_the_next_ends() {
    for server in with("0") {
        let mut caller = Caller::of(&server);
        assert_eq!(caller.acquire(1, 1000).unwrap(), (0, -1), "none is out");
        caller.put(b"java's permanent", NEVER);
        assert_eq!(caller.acquire(1, 1000).unwrap(), (0, -1));
        let end = now_ms(&server) + 20_000;
        caller.put(b"java's other one", &end.to_string());
        let (held, left) = caller.acquire(1, 1000).unwrap();
        assert!(held == 0 && (18_000..=20_000).contains(&left), "{left}");
        // Its time is over: any client may have it.
        caller.put(b"java's other one", "1");
        assert_eq!(caller.acquire(1, 1000).unwrap(), (1, 1000));
        assert_eq!(state(&server), (0, 2));
    }
}

#[test]
fn the_number_of_permits_is_as_redisson_counts_it() {
    for server in servers() {
        let mut caller = Caller::of(&server);
        assert_eq!(caller.permits("available", 0).unwrap(), 0);
        assert_eq!(int(&server, &["EXISTS", "name"]), 0, "only looked");
        assert_eq!(caller.permits("try_set", 5).unwrap(), 1);
        assert_eq!(caller.permits("try_set", 7).unwrap(), 0);
        caller.acquire(2, 20_000).unwrap();
        assert_eq!(caller.permits("set", 10).unwrap(), 8);
        assert_eq!(caller.permits("set", 1).unwrap(), -1);
        assert_eq!(caller.permits("add", 3).unwrap(), 2);
        assert_eq!(caller.permits("add", -1).unwrap(), 1);
        // The number was deleted: permits that are out are not free.
        server.cli(&["DEL", "name"]);
        assert_eq!(caller.permits("try_set", 5).unwrap(), 1);
        assert_eq!(caller.permits("available", 0).unwrap(), 3);
        assert_eq!(
            caller.force_unlock().unwrap(),
            [permit(0), permit(1)],
            "those that were out"
        );
        assert_eq!(state(&server), (5, 0));
        assert_eq!(caller.force_unlock().unwrap(), [b""; 0]);
    }
}

#[test]
fn a_name_of_another_kind_is_refused_in_the_words_of_both() {
    for server in servers() {
        let mut caller = Caller::of(&server);
        server.cli(&["HSET", "name", "owner", "1"]);
        let refused = |what: &str, error: RedisError| {
            let error = error.to_string();
            let both = error.contains("a mutex") && error.contains("leased_semaphore");
            assert!(both, "{what}: {error}");
        };
        refused("acquire", caller.acquire(1, 1000).unwrap_err());
        refused("permits", caller.permits("set", 3).unwrap_err());
        refused("permits", caller.permits("add", 3).unwrap_err());
        refused("force", caller.force_unlock().unwrap_err());
        let args = [CHANNEL, b"1000"];
        let inspected: RedisResult<Value> =
            caller.eval(script!("inspect.lua"), &["name", OUT], &args);
        refused("inspect", inspected.unwrap_err());
        assert_eq!(int(&server, &["HLEN", "name"]), 1);
        // A text is no number.
        server.cli(&["SET", "name", "text"]);
        let error = caller.acquire(1, 1000).unwrap_err().to_string();
        let both = error.contains("a plain_mutex") && error.contains("a leased_semaphore");
        assert!(both, "{error}");
    }
}

/// All that the scripts call that changes something.
const CHANGES: [&str; 7] = [
    "-incrby",
    "-zadd",
    "-zrem",
    "-zremrangebyscore",
    "-zremrangebyrank",
    "-publish",
    "-get",
];

#[test]
fn whatever_is_refused_no_permit_is_lost_and_none_counted_twice() {
    for server in servers() {
        for refused in CHANGES {
            for expired in [false, true] {
                let case = format!("{}, {refused}, {expired}", server.flavor());
                let total = || {
                    let (free, out) = state(&server);
                    assert!(free >= 0 && out >= 0, "{case}: {free} free, {out} out");
                    free + out
                };
                server.cli(&["FLUSHALL"]);
                server.cli(&["SET", "name", "4"]);
                let mut good = Caller::of(&server);
                if expired {
                    server.cli(&["DECR", "name"]);
                    good.put(b"java's, and over", "1");
                }
                let mut bad = Caller::without(&server, &[refused]);
                let acquired = bad.acquire(2, 20_000);
                assert_eq!(total(), 4, "{case}: {acquired:?}");
                assert_eq!(
                    acquired.is_ok(),
                    bad.renew(&[OUT], 2, 0).unwrap().is_empty(),
                    "{case}: it knows what it has"
                );
                good.acquire(2, 20_000).unwrap();
                // A part of it is missing: that is given back first.
                good.take_away(&permit(1));
                server.cli(&["INCR", "name"]);
                let acquired = bad.acquire(2, 20_000);
                assert_eq!(total(), 4, "{case}: a part, {acquired:?}");
                good.acquire(2, 20_000).unwrap();
                let released = bad.release(2, 0);
                assert_eq!(total(), 4, "{case}: {released:?}");
                let kept = good.renew(&[OUT], 2, 0).unwrap().is_empty();
                assert_eq!(released.is_err(), kept, "{case}: {released:?}");
                let forced = bad.force_unlock();
                assert_eq!(total(), 4, "{case}: {forced:?}");
                let set = bad.permits("set", 4);
                assert_eq!(total(), 4, "{case}: {set:?}");
            }
        }
    }
}

#[test]
fn a_full_server_gives_no_permit_but_renews_them_and_takes_them_back() {
    for server in with("4") {
        let mut caller = Caller::of(&server);
        caller.acquire(2, 20_000).unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let out = caller.eval::<Value>(
            script!("acquire.lua"),
            &["name", OUT, GONE],
            &[
                b"others\0\0\0\0\0lease",
                b"2",
                b"20000",
                CHANNEL,
                b"0",
                b"0",
            ],
        );
        let full = out.unwrap_err().to_string();
        assert!(full.contains("OOM"), "{full}");
        assert_eq!(state(&server), (2, 2));
        assert_eq!(caller.renew(&[OUT], 2, 30_000).unwrap(), [0_i64; 0]);
        assert_eq!(caller.release(2, 5_000).unwrap(), (1, 0));
        assert_eq!(int(&server, &["EXISTS", GONE]), 1);
        assert_eq!(state(&server), (4, 0));
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    }
}
