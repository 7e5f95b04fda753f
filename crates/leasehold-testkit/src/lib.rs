//! Real servers, a fault proxy and a history checker for testing distributed locks.
//!
//! - [`Server`]: a `redis-server` or `valkey-server` of the test's own, on a free loopback port; with TLS, by certificates of an
//!   [`Authority`] of the test's own.
//! - [`SentinelGroup`]: a primary, two replicas and three sentinels; killed, frozen, failed over, promoted by hand, restarted empty.
//! - [`Primaries`]: servers that know nothing of each other, for locks on a majority; each behind a proxy, if asked for.
//! - [`Cluster`]: three primaries and a replica of each; killed, frozen, failed over, their slots moved or left between two of them.
//! - [`Proxy`]: stands in front of a server and cuts, delays, stalls or loses what passes.
//! - [`Recorder`], [`History`]: the holds of a test, and whether two holders ever held a lock at once.
//! - [`wait_until`], [`wait_until_async`]: wait for an event, and say which one never came.
//!
//! The kit knows Redis and TCP, not Leasehold: it can test any lock on Redis. A kit that cannot
//! do what it was asked panics and says what to do about it; a test has no better answer.
//!
//! ```
//! use std::time::Duration;
//! use leasehold_testkit::{Flavor, Proxy, Server, wait_until};
//!
//! for flavor in Flavor::available() {
//!     let server = Server::start(flavor);
//!     let proxy = Proxy::start(server.addr());
//!     let client = redis::Client::open(proxy.url())?;
//!     let mut connection = client.get_connection()?;
//!     redis::cmd("SET").arg("invoice:42").arg("ours").exec(&mut connection)?;
//!
//!     // The command runs, its reply is lost.
//!     proxy.lose_replies(b"DEL", 1);
//!     assert!(redis::cmd("DEL").arg("invoice:42").exec(&mut connection).is_err());
//!     assert_eq!(server.cli(&["EXISTS", "invoice:42"]), redis::Value::Int(0));
//!     wait_until(Duration::from_secs(5), "the proxy closed", || proxy.connections() == 0);
//! }
//! # Ok::<(), redis::RedisError>(())
//! ```

mod cluster;
mod history;
mod login;
mod look;
mod primaries;
mod proxy;
mod sentinels;
mod server;
mod wait;

pub use cluster::{Cluster, ClusterSettings, Failover};
pub use history::{Claim, Event, History, Hold, Kind, Recorder, Summary, Violation, now};
pub use primaries::Primaries;
pub use proxy::{Lane, Proxy, Way};
pub use sentinels::{SentinelGroup, SentinelSettings};
pub use server::{Authority, Certificate, Flavor, Server, TlsFiles};
pub use wait::{wait_until, wait_until_async};
