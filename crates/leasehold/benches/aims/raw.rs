//! The reference: the very same scripts, sent by the redis crate with nothing of ours around them.

use std::time::{Duration, Instant};

use redis::{
    AsyncConnectionConfig, IntoConnectionInfo as _, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};

const ACQUIRE: &str = include_str!("../../src/backend/redis/scripts/mutex/acquire.lua");
const RELEASE: &str = include_str!("../../src/backend/redis/scripts/mutex/release.lua");

/// As long as a client's uuid.
const CLIENT: &str = "00000000-0000-4000-8000-000000000000";

/// As long as a lease id is on the wire.
const FIRST_LEASE: u64 = 1_800_000_000_000_000_000;

/// A client's default.
const LEASE_MS: u64 = 30_000;

/// One connection, with a client's settings.
#[derive(Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    acquire: String,
    release: String,
}

/// The keys of one name.
pub(crate) struct Keys {
    name: String,
    queue: String,
    channel: String,
    grants: String,
    lease: u64,
}

impl Keys {
    pub(crate) fn new(name: &str) -> Keys {
        Keys {
            name: name.to_owned(),
            queue: format!("leasehold:{{{name}}}:queue"),
            channel: format!("redisson_lock__channel:{{{name}}}"),
            grants: format!("leasehold:{{{name}}}:grant:"),
            lease: FIRST_LEASE,
        }
    }

    fn gone(&self) -> String {
        format!("leasehold:{{{}}}:gone:{}", self.name, self.lease)
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
        for script in [ACQUIRE, RELEASE] {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script);
            let hash: String = load.query_async(&mut connection).await.expect("a hash");
            hashes.push(hash);
        }
        let release = hashes.pop().expect("two of them");
        let acquire = hashes.pop().expect("two of them");
        Raw {
            connection,
            acquire,
            release,
        }
    }

    /// Takes a name and gives it back, as one who does not wait and for whom nobody waits. Returns how long
    /// either took.
    pub(crate) async fn pair(&mut self, keys: &mut Keys) -> [Duration; 2] {
        keys.lease += 1;
        let owner = format!("{CLIENT}:{}", keys.lease);
        let began = Instant::now();
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(&self.acquire).arg(3);
        acquire.arg(&keys.name).arg(keys.gone()).arg(&keys.queue);
        acquire.arg(&owner).arg(LEASE_MS).arg("").arg(0);
        let answer: (i64, i64) = acquire
            .query_async(&mut self.connection)
            .await
            .expect("an answer");
        assert_eq!(answer.0, 1, "the name was free");
        let acquired = began.elapsed();

        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(3);
        release.arg(&keys.name).arg(&keys.queue).arg(keys.gone());
        release.arg(&owner).arg(&keys.channel).arg(&keys.grants);
        release.arg(0).arg(0).arg("").arg(0).arg("").arg(0);
        let answer: (i64, i64) = release
            .query_async(&mut self.connection)
            .await
            .expect("an answer");
        assert_eq!(answer.0, 1, "the name was ours");
        [acquired, began.elapsed().saturating_sub(acquired)]
    }
}
