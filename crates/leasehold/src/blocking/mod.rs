//! The locks for threads: every kind with every verb, for programs and libraries without async code.
//!
//! ```
//! # fn sell() -> Result<u32, leasehold::Error> { Ok(7) }
//! # fn main() -> Result<(), leasehold::Error> {
//! use std::time::Duration;
//! use leasehold::blocking::Client;
//!
//! let client = Client::connect("memory:")?; // or redis://127.0.0.1/
//! let sold = client.mutex("order:42").run(|guard| {
//!     guard.ensure(Duration::from_secs(1))?; // enough of the lease is left for what follows
//!     sell()
//! })?; // Err(Lost), if the lease was lost meanwhile
//! assert_eq!(sold?, 7);
//! # Ok(()) }
//! ```
//!
//! The types have the names and verbs of the async ones, and are the same locks: a thread and a task exclude each other.
//! [`Client::from`] makes a blocking client of an async one, and `into()` leads back. The async verbs, to which these link, say
//! what each promises, sends and leaves on the server.
//!
//! # How a thread waits
//!
//! It polls the request itself, and parks; there is no task and no second runtime. Sockets and timers are those of the background thread
//! of this library, which the process has anyway. A client of `memory:` gets a thread with a runtime of its own; one that is made
//! [`from`](Client::from) an async client of `memory:` waits on that one's runtime, which must be driven meanwhile.
//!
//! A wait cannot be interrupted from outside; the verbs that end in `_for` bound it, and
//! [`shutdown`](Client::shutdown) ends all waits of a client.
//!
//! # Where it is refused
//!
//! Where a tokio scheduler polls: in a task, in `block_on`, in a `LocalSet`, and in the `drop` of a value there. A call that blocks would
//! stop the tasks beside it, and maybe the one that it waits for. It is answered at once with [`Error::Invalid`](crate::Error::Invalid),
//! and nothing is sent: use the async API there, or `spawn_blocking`.
//!
//! It works in `spawn_blocking`, in `block_in_place`, on plain threads, and inside a runtime that is entered
//! (`Handle::enter`), whether or not that is driven. Code under tokio's `unconstrained` cannot be told from these, and other
//! executors than tokio's are not known: there a call blocks the executor's thread.

#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod attribute;
mod client;
mod guards;
mod locks;
mod table;
mod wait;

pub use client::{Client, EventListener, Find, scope};
pub use guards::{
    FairMutexGuard, FencedMutexGuard, Guard, MultiGuard, MutexGuard, PermitGuard, PlainMutexGuard,
    ReadGuard, SemaphoreGuard, SpinMutexGuard, WriteGuard,
};
pub use locks::{
    FairMutex, FencedMutex, FencedStore, Latch, LeasedSemaphore, MultiLock, Mutex, PlainMutex,
    RwLock, Semaphore, SpinMutex,
};
