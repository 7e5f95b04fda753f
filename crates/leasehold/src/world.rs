//! The world of a simulation, in place of the real one: a client's clock and uuid, the lease ids, the owners, and the timers' times.
//!
//! Outside a simulation ([`enter`] was not called on this thread) nothing here does anything.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

/// The clock that a simulated client's leases are measured on: a number that the simulation writes.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// The clock shows `nanos` from here on, unless it is past that.
    pub fn set(&self, nanos: u64) {
        self.0.fetch_max(nanos, Ordering::Relaxed);
    }

    /// The engine's reading. Each reading is a nanosecond later than the one before, so that nothing depends on which
    /// of two equal instants comes first.
    pub(crate) fn read(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// The reading, which grows each time that the engine takes it.
    pub fn reading(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Which client the code that runs now belongs to.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// Its uuid.
    pub client: Arc<str>,
    /// Its clock.
    pub clock: SimClock,
}

thread_local! {
    static IDENTITY: RefCell<Option<ClientIdentity>> = const { RefCell::new(None) };
    static LEASES: Cell<Option<u64>> = const { Cell::new(None) };
    static OWNERS: Cell<Option<u64>> = const { Cell::new(None) };
    static TIMERS: RefCell<Vec<Instant>> = const { RefCell::new(Vec::new()) };
}

/// In a simulation: something happens on this thread's runtime then. tokio does not say when its next timer is due.
pub fn set_timer(end: Instant) {
    // Outside of a simulation no code takes the timers, and they would pile up.
    if LEASES.get().is_some() {
        TIMERS.with_borrow_mut(|timers| timers.push(end));
    }
}

/// The timers that were set since this was called last.
pub fn take_timers(mut each: impl FnMut(Instant)) {
    TIMERS.with_borrow_mut(|timers| timers.drain(..).for_each(&mut each));
}

/// A simulation begins on this thread: lease ids count on from this one, owners from 1.
pub fn enter(before: u64) {
    LEASES.set(Some(before));
    OWNERS.set(Some(0));
}

/// A client that connects to a simulated server from here on is this one.
pub fn identify(identity: Option<ClientIdentity>) {
    IDENTITY.set(identity);
}

pub(crate) fn uuid() -> Option<Arc<str>> {
    IDENTITY.with_borrow(|identity| identity.as_ref().map(|is| Arc::clone(&is.client)))
}

pub(crate) fn clock() -> Option<SimClock> {
    IDENTITY.with_borrow(|identity| identity.as_ref().map(|is| is.clock.clone()))
}

pub(crate) fn next_lease() -> Option<u64> {
    LEASES.with(next)
}

pub(crate) fn next_owner() -> Option<u64> {
    OWNERS.with(next)
}

fn next(numbers: &Cell<Option<u64>>) -> Option<u64> {
    let next = numbers.get()? + 1;
    numbers.set(Some(next));
    Some(next)
}
