//! Distributed locks on Redis and Valkey that renew themselves and say before they are lost.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use leasehold::{Client, Released};
//!
//! # async fn charge() -> u32 { 42 }
//! let client = Client::connect("memory:").await?; // or redis://127.0.0.1/
//! let mutex = client.mutex("order:42"); // a handle; no I/O
//!
//! // Waits its turn, runs the work under a lease that is renewed meanwhile, and gives the lock back.
//! let charged = mutex.run(charge()).await?; // cancels the work if the lease is lost
//! assert_eq!(charged, 42);
//!
//! let guard = mutex.lock().await?; // or hold it for as long as the guard lives
//! assert!(guard.is_valid());
//! assert_eq!(guard.release().await?, Released::Freed); // or drop it, which tells no result
//! # Ok(()) }
//! ```
//!
//! # You hold a lease
//!
//! A distributed lock is leased, not owned. The server gives a *lease* on a *name* to an *owner*, for a time; the
//! [`Guard`] is the proof of it, and the *watchdog* of the [`Client`] renews it while the guard lives. When
//! renewals do not get through, the guard knows before the server can give the name to another owner:
//!
//! | to stop in time | |
//! |---|---|
//! | [`mutex.run(future)`](Mutex::run), [`run_for(d, future)`](Mutex::run_for) | locks, runs the future, drops it when the lease is lost, releases |
//! | [`guard.run(future)`](Guard::run) | drops the future when the lease is lost |
//! | [`guard.lost()`](Guard::lost) | a future for `select!` |
//! | [`guard.at_risk(d)`](Guard::at_risk) | completes when no more than `d` of the lease remains |
//! | [`guard.is_valid()`](Guard::is_valid), [`ensure(d)`](Guard::ensure) | a check before a step that counts |
//!
//! [`docs::guarantees`] states the guarantees, failure by failure; [`docs::choosing`] says which lock to take, [`docs::topologies`] on
//! which servers, and [`docs::keys`] lists every key on the server.
//!
//! # Dropping futures
//!
//! Every future of this crate may be dropped at any time; each says under *Cancel safety* what that does.
//! A dropped future leaves no lock, no place in the queue and no subscription behind; at most a tombstone that refuses late copies of
//! a request that may or may not have been carried out, and that ends by itself ([`docs::keys`]).
//!
//! # Events and logs
//!
//! [`Client::events`] tells of each hold one start and one end, for counters. `leasehold=debug` tells the story of each lock to
//! `tracing`, with a span around each wait and each hold; [`docs::observing`] shows it.
//!
//! # Trade-offs
//!
//! - A lease can end while its holder believes in it, if the server forgets it (failover, eviction, flush).
//! - One waiting process costs the server two channels per name, and one connection for all.
//! - Hand-off in memory lets a process hold a contended name for up to 64 turns or 20 ms, whichever ends first, before the next
//!   process gets it; [`Handoff`] changes that.
//! - A release that is not awaited is carried out in the background, and reports no result.
//!
//! # Features
//!
//! Only `macros` is on by default: a program that speaks no TLS compiles no TLS library.
//!
//! | feature | |
//! |---|---|
//! | `macros` | [`#[locked]`](macro@locked): a line above a function; [`set_global`], `Client::scope` |
//! | `blocking` | `leasehold::blocking`: every lock and verb for threads without async code |
//! | `tls` | `rediss://` and `valkeys://`, with rustls and ring; `Tls` and `ClientBuilder::tls` for certificates |
//! | `serde` | [`ClientBuilder`] can be read from a configuration file |
//! | `redis-1` | `ClientBuilder::redis_info` takes a `ConnectionInfo` of the crate `redis`, version 1 |
//! | `metrics` | `ClientBuilder::metrics`: counters, gauges and histograms by the crate `metrics` ([`docs::metrics`]) |
//!
//! # Runtime
//!
//! tokio, with I/O *and* time enabled (`enable_all`, or `enable_io` and `enable_time`): each runtime that a client is used
//! from, not only the one that connects. On one that lacks either, calls panic or fail. Without any runtime calls work, too:
//! then all runs on the thread of this library. Any runtime may use a client and its guards, wherever they were made. On a
//! real server a client does its background work on one thread per process, with a connection of its own: a
//! runtime that is blocked, busy or ended costs no lease. The drawback: a process that hangs keeps its locks,
//! unless [`max_hold`](Mutex::max_hold) ends them. A client of `memory:` lives on the runtime that connected it.
//!
//! On a paused clock (`tokio::time::pause`, `start_paused`) use `memory:`. The clock jumps ahead whenever a runtime waits for its
//! socket, so there a real server never answers in time, and a client that finds none dials without a pause.
//!
//! After a `fork` the child connects a new client; the old one answers [`Error::ThreadGone`]
//! ([`docs::guarantees`]). On a runtime that never ends and is never polled again, the connection that it
//! used stays open.

// docs.rs says of each item which feature it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
#[doc(hidden)]
pub mod at_least;
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod attribute;
mod backend;
mod background;
mod backoff;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod client;
mod clock;
mod cluster;
mod config;
mod connection;
mod credentials;
pub mod docs;
mod durability;
mod durations;
mod engine;
mod error;
mod events;
mod examine;
mod find;
mod kind;
mod locks;
#[cfg(feature = "metrics")]
pub mod metrics;
mod name;
mod outage;
mod owner;
mod sentinel;
#[cfg(feature = "serde")]
mod settings;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
mod status;
mod stderr_warning;
mod story;
#[cfg(feature = "tls")]
mod tls;
mod user_callback;
#[cfg(feature = "sim")]
mod world;

#[cfg(feature = "macros")]
pub use attribute::set_global;
pub use backend::memory::MemoryServer;
pub use builder::ClientBuilder;
pub use client::{Client, Footprint, Shutdown};
pub use cluster::ClusterNodes;
pub use config::{
    CONNECT_TIMEOUT_DEFAULT, FAIR_WAIT_TIMEOUT_DEFAULT, Handoff, LEASE_DEFAULT, LINGER_DEFAULT,
    OPERATION_TIMEOUT_DEFAULT, POLL_EVERY_DEFAULT, SCAN_INTERVAL_DEFAULT, TOKEN_RETENTION_DEFAULT,
};
pub use connection::{ConnectionSettings, Protocol};
pub use credentials::{Credentials, CredentialsProvider};
pub use durability::{Acknowledged, DURABILITY_TIMEOUT_DEFAULT, Durability, Unmet};
pub use error::{Cause, Error, ErrorKind, Invalid, LostReason, Released};
pub use events::{Event, EventKind, EventListener, Outcome};
pub use examine::{Finding, Level};
pub use find::Find;
pub use kind::{Access, LockKind};
/// The function runs under a lock: it waits for it, runs, and gives it back.
///
/// ```
/// use leasehold::{Error, locked};
///
/// struct Request { user: u64, order: u64 }
///
/// #[locked("pay:{}:{}", request.user, request.order, wait = "5s")]
/// async fn pay(request: &Request) -> Result<String, Error> {
///     // … only one in the world is here for this user and this order …
///     Ok(format!("paid {}", request.order))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// leasehold::set_global(leasehold::Client::connect("memory:").await?)?; // once per program
/// assert_eq!(pay(&Request { user: 7, order: 42 }).await?, "paid 42");
/// # Ok(()) }
/// ```
#[cfg(feature = "macros")]
#[doc(inline)]
pub use leasehold_macros::locked;
pub use locks::{
    Detached, Election, Exclusive, Fair, FairMutex, FairMutexGuard, Fenced, FencedMutex,
    FencedMutexGuard, FencedStore, Guard, Latch, Leader, LeaderWatch, LeasedSemaphore, MultiGuard,
    MultiLock, Mutex, MutexGuard, Part, Permit, PermitGuard, Plain, PlainMutex, PlainMutexGuard,
    PlainPermit, Read, ReadGuard, RwLock, Semaphore, SemaphoreGuard, Spin, SpinMutex,
    SpinMutexGuard, Term, Write, WriteGuard,
};
pub use owner::Owner;
pub use sentinel::Sentinel;
pub use status::{Holder, QueuedClient, ServerVote, Status};
#[cfg(feature = "tls")]
pub use tls::Tls;

#[cfg(not(unix))]
compile_error!(
    "leasehold runs on Unix systems (Linux, macOS, the BSDs) and not on Windows: leases are measured on a clock that this library \
     reads on Unix only, and nothing is tested elsewhere; build for Linux, for instance in WSL or a container"
);

/// The README's example compiles. (The repository's README has the same: tests/house/links.rs.)
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
