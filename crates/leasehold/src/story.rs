//! The story of a lock for `tracing`: spans around acquisitions and holds, and lines about what a caller does. The lines about the
//! hold itself are told by `events.rs`, in their order.
//!
//! All of it is under the target `leasehold`, at the levels debug and trace; but the span of a hold is at the level info, so that what is
//! logged under a lock says under which. A subscriber is the user's code: it is not called under a lock,
//! and its panics end here (`callout.rs`).

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    num::NonZeroU32,
    panic::Location,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tracing::{Span, field::display, level_filters::LevelFilter};

use crate::{
    callout,
    durations::about,
    error::Cause,
    kind::Access,
    name::{LockId, Name},
    owner::LeaseId,
};

/// Whether a subscriber may want to hear it. One load; calls no subscriber.
pub(crate) fn is_on() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// The same of the span around a hold.
pub(crate) fn has_holds() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// A span, if a subscriber wants it. By its number: four bytes, for which the padding of a guard has room.
#[derive(Debug, Default)]
pub(crate) struct Scope(Option<NonZeroU32>);

/// The spans of this process that are open.
static OPEN: Mutex<Spans> = Mutex::new(Spans {
    last: NonZeroU32::MIN,
    by_number: BTreeMap::new(),
});

struct Spans {
    last: NonZeroU32,
    by_number: BTreeMap<NonZeroU32, Arc<Span>>,
}

impl Spans {
    fn open(&mut self, span: Span) -> NonZeroU32 {
        while self.by_number.contains_key(&self.last) {
            self.last = self.last.checked_add(1).unwrap_or(NonZeroU32::MIN);
        }
        self.by_number.insert(self.last, Arc::new(span));
        self.last
    }
}

impl Scope {
    fn new(is_on: bool, make: impl FnOnce() -> Span) -> Scope {
        let mut span = None;
        if is_on {
            callout::quietly(|| span = Some(make()));
        }
        let span = span.filter(|span| !span.is_disabled());
        Scope(span.map(|span| OPEN.lock().open(span)))
    }

    fn span(&self) -> Option<Arc<Span>> {
        let number = self.0?;
        OPEN.lock().by_number.get(&number).map(Arc::clone)
    }

    /// Around the wait for a lock.
    pub(crate) fn of_lock(id: &LockId, access: Access) -> Scope {
        Scope::new(is_on(), || {
            let kind = id.kind;
            tracing::debug_span!(target: "leasehold", "lock", name = %id.name, %kind, ?access)
        })
    }

    /// Around the wait for several.
    pub(crate) fn of_locks<'a>(names: impl Iterator<Item = &'a str>) -> Scope {
        Scope::new(is_on(), || {
            let names: Vec<_> = names.collect();
            tracing::debug_span!(target: "leasehold", "lock", ?names)
        })
    }

    /// Around a hold.
    pub(crate) fn of_hold(id: &LockId, lease: LeaseId) -> Scope {
        Scope::new(has_holds(), || {
            let kind = id.kind;
            tracing::info_span!(target: "leasehold", "hold", name = %id.name, %kind, lease = lease.get())
        })
    }

    /// Around a hold of several.
    pub(crate) fn of_holds<'a>(names: impl Iterator<Item = &'a str>) -> Scope {
        Scope::new(has_holds(), || {
            let names: Vec<_> = names.collect();
            tracing::info_span!(target: "leasehold", "hold", ?names)
        })
    }

    /// Calls it inside of the span.
    pub(crate) fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        let span = self.span();
        let _inside = span.as_deref().map(Inside::new);
        call()
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Polls it inside of the span.
    pub(crate) async fn around<F: Future>(self, mut work: Pin<Box<F>>) -> F::Output {
        poll_fn(|cx| self.enter(|| work.as_mut().poll(cx))).await
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(number) = self.0.take() {
            let span = OPEN.lock().by_number.remove(&number);
            callout::quietly(|| drop(span));
        }
    }
}

/// Inside of a span, until its drop.
struct Inside<'a>(&'a Span);

impl Inside<'_> {
    fn new(span: &Span) -> Inside<'_> {
        callout::quietly(|| {
            span.with_subscriber(|(id, subscriber)| subscriber.enter(id));
        });
        Inside(span)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        callout::quietly(|| {
            self.0
                .with_subscriber(|(id, subscriber)| subscriber.exit(id));
        });
    }
}

/// A caller begins to ask for a lock.
pub(crate) fn asks(id: &LockId) {
    if is_on() {
        callout::quietly(
            || tracing::debug!(target: "leasehold", name = %id.name, "asks for the lock"),
        );
    }
}

/// A caller waits in the queue of this process: `here` behind others of it, or until the server says that the lock is free.
pub(crate) fn waits(id: &LockId, here: bool) {
    if is_on() {
        callout::quietly(|| {
            let waits_for = if here { "this process" } else { "the server" };
            tracing::debug!(target: "leasehold", name = %id.name, waits_for, "queued");
        });
    }
}

/// A caller has not got the lock in its time: `here` says where this process holds it, else another does. The holder's lease has `left` to go.
pub(crate) fn busy(name: &Name, here: Option<&'static Location<'static>>, left: Option<Duration>) {
    if is_on() {
        callout::quietly(|| {
            let held = if here.is_some() {
                "in this process"
            } else {
                "at the server"
            };
            let held_at = here.map(display);
            let lease_left = left.map(|left| display(about(left)));
            tracing::debug!(target: "leasehold", %name, held, held_at, lease_left, "busy");
        });
    }
}

/// A request for a lock is sent.
pub(crate) fn sends(id: &LockId, lease: LeaseId) {
    if LevelFilter::current() >= LevelFilter::TRACE {
        callout::quietly(|| {
            tracing::trace!(target: "leasehold", name = %id.name, lease = lease.get(), "asks the server");
        });
    }
}

/// The server has not answered it, or has refused.
pub(crate) fn is_not_answered(id: &LockId, lease: LeaseId, cause: &Cause) {
    if LevelFilter::current() >= LevelFilter::TRACE {
        callout::quietly(|| {
            tracing::trace!(target: "leasehold", name = %id.name, lease = lease.get(), %cause, "the server has not granted it");
        });
    }
}

/// The server has answered it: not now; the holder has it for `ttl` more.
pub(crate) fn is_held(id: &LockId, lease: LeaseId, ttl: Option<Duration>) {
    if LevelFilter::current() >= LevelFilter::TRACE {
        callout::quietly(|| {
            tracing::trace!(target: "leasehold", name = %id.name, lease = lease.get(), ?ttl, "the server says: held");
        });
    }
}
