//! Distributed locks on Redis and Valkey.
mod backend;
mod client;
mod clock;
mod config;
mod error;
mod events;
mod guard;
mod hold;
mod lease;
mod locks;
mod name;
mod owner;
mod queue;
mod wakeup;
mod watchdog;

pub use backend::memory::MemoryServer;
pub use client::{Client, ClientBuilder, Footprint, Holder, Shutdown, Status};
pub use config::{
    CONNECT_TIMEOUT_DEFAULT, Handoff, LEASE_DEFAULT, OPERATION_TIMEOUT_DEFAULT, POLL_EVERY_DEFAULT,
};
pub use error::{Cause, Error, ErrorKind, Invalid, LostReason};
pub use events::{Event, EventKind};
pub use guard::{Detached, Guard, ReleaseError, Released};
pub use locks::Mutex;
pub use owner::Owner;
