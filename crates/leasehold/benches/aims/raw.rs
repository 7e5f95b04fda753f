//! The reference: the very same scripts, sent by the redis crate with nothing of ours around them.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use redis::{
    AsyncConnectionConfig, IntoConnectionInfo as _, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};

macro_rules! scripts {
    ($($part:literal),+) => {
        concat!($(include_str!(concat!("../../src/backend/redis/scripts/", $part, ".lua"))),+)
    };
}

pub(crate) const ACQUIRE: &str = concat!(
    scripts!("exclusive/free_hash", "exclusive/holder_hash"),
    "local function contended(KEYS, ARGV)\n",
    scripts!(
        "refuse",
        "waiting",
        "places",
        "exclusive/places",
        "exclusive/others_hash",
        "exclusive/hand_over",
        "exclusive/contended"
    ),
    "end\n",
    scripts!("exclusive/acquire")
);
pub(crate) const RELEASE: &str = concat!(
    scripts!("exclusive/left_hash", "exclusive/holder_hash"),
    "local function contended(KEYS, ARGV)\n",
    scripts!(
        "waiting",
        "places",
        "exclusive/places",
        "exclusive/hand_over",
        "exclusive/released"
    ),
    "end\n",
    scripts!("exclusive/release")
);

const RENEW: &str = scripts!("exclusive/holder_hash", "exclusive/renew");
const PUBLISH: &str = "return redis.call('PUBLISH', KEYS[1], ARGV[1])";

/// As long as a client's uuid.
const CLIENT: &str = "00000000-0000-4000-8000-000000000000";

/// As long as a lease id is on the wire.
const FIRST_LEASE: u64 = 57_000_000_000_000;

/// A client's default.
const LEASE_MS: u64 = 30_000;

/// One connection, with a client's settings.
#[derive(Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    acquire: String,
    release: String,
    renew: String,
    publish: String,
}

/// Two hundred names to a script, as a client renews.
fn batches(names: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..names)
        .step_by(200)
        .map(move |first| first..(first + 200).min(names))
}

/// An order that has nothing to do with that of their making.
fn shuffled(number: usize, names: usize) -> usize {
    const PRIME: usize = 48_271;
    number * PRIME % names
}

fn owner(number: usize) -> String {
    format!("{CLIENT}:{}", FIRST_LEASE + number as u64)
}

/// The keys of one name.
pub(crate) struct Keys {
    name: String,
    queue: String,
    channel: String,
    lease: u64,
}

impl Keys {
    pub(crate) fn new(name: &str) -> Keys {
        Keys {
            name: name.to_owned(),
            queue: format!("leasehold:{{{name}}}:queue"),
            channel: format!("redisson_lock__channel:{{{name}}}"),
            lease: FIRST_LEASE,
        }
    }

    pub(crate) fn next_lease(&mut self) {
        self.lease += 1;
    }
}

impl Raw {
    pub(crate) async fn connect(url: &str) -> Raw {
        let info = url.into_connection_info().expect("the kit's URL");
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = redis::Client::open(info).expect("the kit's URL");
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(5)))
            .set_response_timeout(Some(Duration::from_secs(2)));
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("our own server takes us");
        let mut hashes = Vec::new();
        for script in [ACQUIRE, RELEASE, RENEW, PUBLISH] {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script);
            let hash: String = load.query_async(&mut connection).await.expect("a hash");
            hashes.push(hash);
        }
        let [acquire, release, renew, publish] = hashes.try_into().expect("four of them");
        Raw {
            connection,
            acquire,
            release,
            renew,
            publish,
        }
    }

    /// Says something on a channel, from a script.
    pub(crate) async fn publish(&mut self, channel: &str, what: &str) {
        let mut publish = redis::cmd("EVALSHA");
        publish.arg(&self.publish).arg(1).arg(channel).arg(what);
        publish
            .exec_async(&mut self.connection)
            .await
            .expect("an answer");
    }

    /// Puts so many names on the server, as leases do.
    pub(crate) async fn hold(&mut self, prefix: &str, names: usize) {
        for some in batches(names) {
            let mut pipe = redis::pipe();
            for number in some {
                let name = format!("{prefix}:{number:06}");
                pipe.hset(&name, owner(number), 1).ignore();
                pipe.pexpire(&name, 600_000).ignore();
            }
            pipe.exec_async(&mut self.connection).await.expect("room");
        }
    }

    /// Renews them all, so many scripts under way at once.
    pub(crate) async fn renew(&self, prefix: &str, names: usize, lanes: usize, at_random: bool) {
        let renewals = batches(names).map(|some| {
            let mut connection = self.connection.clone();
            let mut renew = redis::cmd("EVALSHA");
            renew.arg(&self.renew).arg(some.len());
            let some = some.map(|number| {
                if at_random {
                    shuffled(number, names)
                } else {
                    number
                }
            });
            for number in some.clone() {
                renew.arg(format!("{prefix}:{number:06}"));
            }
            renew.arg(LEASE_MS).arg(some.len());
            for number in some {
                renew.arg(owner(number));
            }
            async move {
                let lost: Vec<i64> = renew.query_async(&mut connection).await.expect("answers");
                assert!(lost.is_empty(), "all are ours");
            }
        });
        let mut under_way = futures_util::stream::iter(renewals).buffer_unordered(lanes);
        while under_way.next().await.is_some() {}
    }

    /// Takes a name and gives it back, as a client that does not wait, on a name without waiters. Returns how long
    /// either took.
    pub(crate) async fn pair(&mut self, keys: &mut Keys) -> [Duration; 2] {
        keys.next_lease();
        let began = Instant::now();
        self.acquire(keys).await;
        let acquired = began.elapsed();
        self.release(keys).await;
        [acquired, began.elapsed().saturating_sub(acquired)]
    }

    pub(crate) async fn acquire(&mut self, keys: &Keys) {
        let owner = format!("{CLIENT}:{}", keys.lease);
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(&self.acquire).arg(2);
        acquire.arg(&keys.name).arg(&keys.queue);
        acquire.arg(&owner).arg(LEASE_MS);
        let left: u64 = acquire
            .query_async(&mut self.connection)
            .await
            .expect("an answer");
        assert_eq!(left, LEASE_MS, "the name was free");
    }

    pub(crate) async fn release(&mut self, keys: &Keys) {
        let owner = format!("{CLIENT}:{}", keys.lease);
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(2);
        release.arg(&keys.name).arg(&keys.queue);
        release.arg(&owner).arg(&keys.channel);
        let others: i64 = release
            .query_async(&mut self.connection)
            .await
            .expect("an answer");
        assert_eq!(others, 0, "the name was ours");
    }
}
