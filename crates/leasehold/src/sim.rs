//! Hooks for the deterministic simulation in `sim/`, and for no other user: no promise of this crate covers them.
//!
//! The simulation runs the real engine over the real scripts. It carries every request itself, says what time it is, hands out the numbers, and
//! looks at guards and at the keys from outside without changing either.
//! Outside a simulation ([`enter`] was not called on this thread) nothing here does anything.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    Access, Guard, LostReason,
    clock::{Clock, Tick},
    engine::hold::{
        Hold,
        lease::{End, Standing},
    },
};

pub use crate::{
    backend::{
        redis::{AnswerForm, PlayedConnection, Value},
        simulated::{
            hint::Hint,
            keys::{Published, ScriptServer},
            request::{Answer, Kind, Network, NoAnswer, Request},
            server::SimulatedServer,
            snapshot::{Held, Snapshot},
        },
    },
    world::{ClientIdentity as Identity, SimClock, enter, identify, set_timer, take_timers},
};

/// Looks at a guard from outside, without keeping it or its client alive and without changing anything.
#[derive(Clone, Debug)]
pub struct Probe(Weak<Hold>);

/// The result of a look through a [`Probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// `is_valid()` would answer `true` now, and for this long.
    Valid(Duration),
    /// Its time is over.
    Expired,
    /// Lost, and noticed.
    Lost(LostReason),
    /// Released, or gone altogether.
    Released,
}

impl Probe {
    /// The answer that [`Guard::is_valid`] would give at this moment of its client's clock.
    pub fn look(&self) -> Look {
        let Some(hold) = self.0.upgrade() else {
            return Look::Released;
        };
        let Clock::Simulated(clock) = &hold.env().clock else {
            return Look::Released;
        };
        // `reading`, not `read`: a look from outside must not move the clock, or a world with more looks plays otherwise.
        let now = Tick::from_nanos(clock.reading());
        match hold.term.peek(now) {
            Standing::Valid(until) => Look::Valid(until.since(now)),
            Standing::JustExpired => Look::Expired,
            Standing::Ended(End::Lost(reason)) => Look::Lost(reason),
            Standing::Ended(End::Released) => Look::Released,
        }
    }

    /// How it shares its name with others.
    pub fn access(&self) -> Access {
        let hold = self.0.upgrade();
        hold.map_or(Access::Exclusive, |hold| hold.spec().access)
    }

    /// The fencing token of the present holder; zero of a kind that has none.
    pub fn token(&self) -> u64 {
        self.0.upgrade().map_or(0, |hold| hold.token())
    }

    /// The lease id of the hold, as it is now.
    pub fn lease(&self) -> u64 {
        self.0.upgrade().map_or(0, |hold| hold.lease.get())
    }
}

impl<K> Guard<K> {
    /// The same guard, without its kind.
    pub fn erased(self) -> Guard {
        Guard::new(self.into_held())
    }

    /// The same guard, of the kind that it was before it was [`erased`](Guard::erased).
    pub fn retyped<J>(self) -> Guard<J> {
        Guard::new(self.into_held())
    }

    /// See [`Probe`].
    pub fn probe(&self) -> Probe {
        Probe(Arc::downgrade(self.hold()))
    }
}
