//! The story of a lock for `tracing`: spans around acquisitions and holds, and lines about what a caller does. The lines about the
//! hold itself are told by `events.rs`, in their order.
//!
//! All of it is under the target `leasehold`, at the levels debug and trace; but the span of a hold is at the level info, so that what is
//! logged under a lock says under which. A subscriber is the user's code: it is not called under a lock,
//! and its panics end here (`user_callback.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    num::NonZeroU32,
    panic::Location,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tracing::{
    Span,
    field::{Empty, display},
    level_filters::LevelFilter,
};

use crate::{
    LostReason,
    durations::about,
    error::Cause,
    events::Outcome,
    kind::Access,
    name::{LockId, Name},
    owner::LeaseId,
    user_callback,
};

/// Whether a subscriber may want to hear the story. Costs a load, and calls no subscriber.
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
    by_lease: BTreeSet::new(),
});

struct Spans {
    last: NonZeroU32,
    by_number: BTreeMap<NonZeroU32, OpenSpan>,
    /// Of holds: each is told what happens to its lease.
    by_lease: BTreeSet<(LeaseId, NonZeroU32)>,
}

struct OpenSpan {
    span: Arc<Span>,
    leases: SmallVec<[LeaseId; 1]>,
}

impl Spans {
    fn open(&mut self, span: Span, leases: SmallVec<[LeaseId; 1]>) -> NonZeroU32 {
        // Numbers begin again after four billion, and an old span may be open still.
        while self.by_number.contains_key(&self.last) {
            self.last = self.last.checked_add(1).unwrap_or(NonZeroU32::MIN);
        }
        let number = self.last;
        self.by_lease
            .extend(leases.iter().map(|lease| (*lease, number)));
        let span = Arc::new(span);
        self.by_number.insert(number, OpenSpan { span, leases });
        number
    }

    fn close(&mut self, number: NonZeroU32) -> Option<OpenSpan> {
        let open = self.by_number.remove(&number)?;
        for lease in &open.leases {
            self.by_lease.remove(&(*lease, number));
        }
        Some(open)
    }

    /// The spans of the guards that share this lease.
    fn of_lease(&self, lease: LeaseId) -> Vec<Arc<Span>> {
        let all = (lease, NonZeroU32::MIN)..=(lease, NonZeroU32::MAX);
        let open = self.by_lease.range(all);
        open.filter_map(|(_, number)| self.by_number.get(number))
            .map(|open| Arc::clone(&open.span))
            .collect()
    }
}

impl Scope {
    fn new(is_on: bool, make: impl FnOnce() -> Span) -> Scope {
        Scope::under(is_on, make, SmallVec::new)
    }

    /// The same for a span that is to be told what happens to these leases.
    fn under(
        is_on: bool,
        make: impl FnOnce() -> Span,
        leases: impl FnOnce() -> SmallVec<[LeaseId; 1]>,
    ) -> Scope {
        let mut span = None;
        if is_on {
            // Made before `OPEN` is locked: this calls the subscriber.
            user_callback::catch_panic(|| span = Some(make()));
        }
        // A subscriber may want no spans of this kind: such a scope costs nothing from here on.
        let span = span.filter(|span| !span.is_disabled());
        Scope(span.map(|span| {
            let leases = leases();
            OPEN.lock().open(span, leases)
        }))
    }

    fn span(&self) -> Option<Arc<Span>> {
        let number = self.0?;
        let spans = OPEN.lock();
        let open = spans.by_number.get(&number);
        // A pointer of its own: the subscriber is called with it once `OPEN` is unlocked.
        open.map(|open| Arc::clone(&open.span))
    }

    /// Around the wait for a lock.
    pub(crate) fn of_lock(id: &LockId, access: Access) -> Scope {
        Scope::new(is_on(), || {
            let kind = id.kind;
            tracing::debug_span!(
                target: "leasehold",
                "lock",
                lock.name = %id.name,
                lock.kind = %kind,
                lock.access = ?access,
                lock.outcome = Empty,
                lock.wait_ms = Empty,
                lock.held_by = Empty,
                otel.status_code = Empty,
            )
        })
    }

    /// Around the wait for several.
    pub(crate) fn of_locks<'a>(names: impl Iterator<Item = &'a str>) -> Scope {
        Scope::new(is_on(), || {
            let names: Vec<_> = names.collect();
            tracing::debug_span!(
                target: "leasehold",
                "lock",
                lock.names = ?names,
                lock.outcome = Empty,
                lock.wait_ms = Empty,
                otel.status_code = Empty,
            )
        })
    }

    /// Around a hold. A token of zero stands for none.
    pub(crate) fn of_hold(
        id: &LockId,
        lease: LeaseId,
        owner: impl FnOnce() -> String,
        token: impl FnOnce() -> u64,
    ) -> Scope {
        let make = || {
            // Zero stands for a kind without tokens, and is no field of its span.
            let token = Some(token()).filter(|token| *token > 0);
            tracing::info_span!(
                target: "leasehold",
                "hold",
                lock.name = %id.name,
                lock.kind = %id.kind,
                lock.owner = owner(),
                lock.token = token,
                otel.status_code = Empty,
            )
        };
        Scope::under(has_holds(), make, || smallvec![lease])
    }

    /// Around a hold of several.
    pub(crate) fn of_holds<'a>(
        names: impl Iterator<Item = &'a str>,
        leases: impl Iterator<Item = LeaseId>,
    ) -> Scope {
        let make = || {
            let names: Vec<_> = names.collect();
            tracing::info_span!(target: "leasehold", "hold", lock.names = ?names, otel.status_code = Empty)
        };
        Scope::under(has_holds(), make, || leases.collect())
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

    /// The call of this span has its answer.
    pub(crate) fn answered(&self, outcome: Outcome, wait: Duration) {
        if let Some(span) = self.span() {
            user_callback::catch_panic(|| {
                span.record("lock.outcome", outcome.as_str());
                span.record("lock.wait_ms", millis(wait));
                if outcome == Outcome::Failed {
                    span.record("otel.status_code", "ERROR");
                }
            });
        }
    }
}

/// Polls it inside of the span, if there is one.
pub(crate) async fn around<F: Future>(scope: Option<&Scope>, mut work: Pin<Box<F>>) -> F::Output {
    match scope {
        // At each poll: a span that stayed entered between two polls would be that of the thread's other tasks.
        Some(scope) => poll_fn(|cx| scope.enter(|| work.as_mut().poll(cx))).await,
        None => work.await,
    }
}

/// Whole milliseconds and their parts, for numbers that are read.
fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(number) = self.0.take() {
            // Taken out under the lock, dropped without it: the last pointer to a span tells the subscriber that it has ended.
            let span = OPEN.lock().close(number);
            user_callback::catch_panic(|| drop(span));
        }
    }
}

/// Inside of a span, until its drop.
struct Inside<'a>(&'a Span);

impl Inside<'_> {
    fn new(span: &Span) -> Inside<'_> {
        user_callback::catch_panic(|| {
            // By hand: the guard of `Span::enter` would let a panic of the subscriber through, here and in its drop.
            span.with_subscriber(|(id, subscriber)| subscriber.enter(id));
        });
        Inside(span)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        user_callback::catch_panic(|| {
            self.0
                .with_subscriber(|(id, subscriber)| subscriber.exit(id));
        });
    }
}

/// A caller begins to ask for a lock.
pub(crate) fn asks(id: &LockId) {
    if is_on() {
        user_callback::catch_panic(
            || tracing::debug!(target: "leasehold", name = %id.name, "asks for the lock"),
        );
    }
}

/// A caller waits in the queue of this process: `here` behind others of it, or until the server says that the lock is free.
pub(crate) fn waits(id: &LockId, here: bool) {
    if is_on() {
        user_callback::catch_panic(|| {
            let waits_for = if here { "this process" } else { "the server" };
            tracing::debug!(target: "leasehold", name = %id.name, waits_for, "queued");
        });
    }
}

/// A caller has not got the lock in its time: `here` says where this process holds it, else another does. The holder's lease has `left` to go.
pub(crate) fn busy(name: &Name, here: Option<&'static Location<'static>>, left: Option<Duration>) {
    if is_on() {
        user_callback::catch_panic(|| {
            let held = if here.is_some() {
                "in this process"
            } else {
                "at the server"
            };
            let held_at = here.map(display);
            // In the span of the caller that asks.
            if let Some(here) = here {
                Span::current().record("lock.held_by", display(here));
            }
            let lease_left = left.map(|left| display(about(left)));
            tracing::debug!(target: "leasehold", %name, held, held_at, lease_left, "busy");
        });
    }
}

/// A lease is lost: a warning, in the span of its hold, whose status says so.
pub(crate) fn lost(id: &LockId, lease: LeaseId, reason: LostReason) {
    let name = &id.name;
    let spans = spans_of(lease);
    user_callback::catch_panic(|| {
        for span in &spans {
            span.record("otel.status_code", "ERROR");
        }
        // A line has one parent: of several spans of this lease the first gets the line, and each the status.
        if let Some(span) = spans.first() {
            tracing::warn!(target: "leasehold", parent: &**span, %name, %reason, "lease lost");
        } else {
            tracing::warn!(target: "leasehold", %name, %reason, "lease lost");
        }
    });
    // A guard may have gone meanwhile: then this is the last pointer, and the subscriber is called.
    user_callback::catch_panic(|| drop(spans));
}

/// A renewal got no answer: told in the span of the hold, which has `left` of its lease.
pub(crate) fn is_at_risk(id: &LockId, lease: LeaseId, left: Duration) {
    if !is_on() {
        return;
    }
    let name = &id.name;
    let spans = spans_of(lease);
    if let Some(span) = spans.first() {
        user_callback::catch_panic(|| {
            let left = display(about(left));
            tracing::debug!(target: "leasehold", parent: &**span, %name, left, "at risk");
        });
    }
    user_callback::catch_panic(|| drop(spans));
}

fn spans_of(lease: LeaseId) -> Vec<Arc<Span>> {
    if has_holds() {
        OPEN.lock().of_lease(lease)
    } else {
        Vec::new()
    }
}

/// A request for a lock is sent.
pub(crate) fn sends(id: &LockId, lease: LeaseId) {
    if LevelFilter::current() >= LevelFilter::TRACE {
        user_callback::catch_panic(|| {
            tracing::trace!(target: "leasehold", name = %id.name, lease = lease.get(), "asks the server");
        });
    }
}

/// The server has not answered it, or has refused.
pub(crate) fn is_not_answered(id: &LockId, lease: LeaseId, cause: &Cause) {
    if LevelFilter::current() >= LevelFilter::TRACE {
        user_callback::catch_panic(|| {
            tracing::trace!(target: "leasehold", name = %id.name, lease = lease.get(), %cause, "the server has not granted it");
        });
    }
}

/// The server has answered it: not now; the holder has it for `ttl` more.
pub(crate) fn is_held(id: &LockId, lease: LeaseId, ttl: Option<Duration>) {
    if LevelFilter::current() >= LevelFilter::TRACE {
        user_callback::catch_panic(|| {
            tracing::trace!(target: "leasehold", name = %id.name, lease = lease.get(), ?ttl, "the server says: held");
        });
    }
}
