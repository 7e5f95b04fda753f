//! The engine: how a hold of this process begins, lasts and ends.
//!
//! It knows neither guards nor the redis crate. Of a kind it knows what a request says (`Access`, `Waits`), and little more: a latch
//! has a list of waiters, a fair mutex has a queue for each task, the writer of a read-write lock may read on and its counts are bounded, and permits
//! without a lease never end. It gives out a [`Held`](hold::held::Held), whose drop gives the hold back.
//!
//! Its rooms stand on each other, and doors lead down only (`tests/house/tidy.rs`):
//!
//! ```text
//! core  multi  wakeup   what the handles of a client share · several locks · the backend's wake-ups, by kind
//! durable               a lock that others than the server must have, too
//! fair/  latch_waiters  one queue for each task that waits · the waiters for a latch
//! queue/                the phases of one name in this process: enter, driver, release, map
//! claim/                one lease id before it is held: its requests, and what the server may have of it
//! local/                who is next in this process: waiters, sharers, turns, answers
//! hold/                 one lease from grant to end, and its renewals; tells a sink
//! env/                  clock, settings, backend, spawn, sleep, finish
//! ```

pub(crate) mod claim;
pub(crate) mod core;
pub(crate) mod durable;
pub(crate) mod env;
pub(crate) mod fair;
pub(crate) mod hold;
pub(crate) mod latch_waiters;
pub(crate) mod local;
pub(crate) mod multi;
pub(crate) mod queue;
pub(crate) mod wakeup;
