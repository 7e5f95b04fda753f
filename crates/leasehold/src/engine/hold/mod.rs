//! A lease of this process, from the grant to the end: the state machine behind every guard.
//!
//! A hold has one lease id from its grant to its end, and ends once: nothing that is answered after a release or a loss
//! brings it back (B1), so a renewal cannot outlive a release (redisson#7272). In-memory hand-off changes the holder, not
//! the hold.
//!
//! Locks are taken in this order: queue, hold, watchdog list.

pub(crate) mod acknowledged;
pub(crate) mod confirm;
pub(crate) mod held;
pub(crate) mod lease;
pub(crate) mod spec;
pub(crate) mod watchdog;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Error, LostReason, Released,
    backend::{self, Renewal, Voted, fenced::Tokens},
    clock::{Span, Tick},
    durability::{Acknowledged, Durability},
    engine::env::Env,
    engine::env::finish::Finish,
    engine::hold::lease::{End, LeaseTerm, Standing},
    engine::hold::spec::Spec,
    engine::hold::watchdog::Watchdog,
    engine::hold::watchdog::list::{Watched, WatchedAt, slot},
    events::EventKind,
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
    story,
};

#[derive(Debug)]
pub(crate) struct Hold {
    sink: Arc<dyn HoldSink>,
    pub(crate) lease: LeaseId,
    pub(crate) term: LeaseTerm,
    /// Wakes the tasks that wait for the loss.
    pub(crate) over: Notify,
    pub(crate) watched_at: WatchedAt,
    /// A copy of a request that could take the name under this lease id may still be under way (B4).
    copies: bool,
    /// Something was heard that says that it may not be ours any more, and the server has not been asked since.
    doubted: AtomicBool,
    /// A server has made it last longer than it was granted for, and the one that takes its place may not know.
    is_prolonged: AtomicBool,
    /// The server is being told, or need not be told, that this lease id is given up (B5).
    settled: AtomicBool,
    /// How many permits it has, from its grant to its end; zero of another kind. It fits into the struct's padding, and costs no memory.
    permits: u16,
    /// Which replicas, or whether the disk, must have it, from its grant to its end. In the padding, too.
    pub(crate) durability: Durability,
    /// After which restart of the server it was ours last. In the padding, too.
    confirmed: AtomicU32,
    state: Mutex<HoldState>,
}

/// The queue that a hold belongs to: it is told how the hold goes, and takes it back.
pub(crate) trait HoldSink: fmt::Debug + Send + Sync {
    fn env(&self) -> &Arc<Env>;
    fn watchdog(&self) -> &Arc<Watchdog>;
    fn id(&self) -> &LockId;

    /// The holder has lost the name or left it to expire: the next may ask for it.
    fn over(self: Arc<Self>, hold: &Arc<Hold>);

    /// Has the lease id given up on the server (B5).
    fn abandon(&self, hold: &Hold);

    /// The lease id is left to expire on the server, at the latest `within` from now.
    fn note_detached(&self, lease: LeaseId, within: Duration);

    /// A guard goes; its caller waits for the answer, or not.
    fn give_back(self: Arc<Self>, hold: Arc<Hold>, guard: Gone) -> GivenBack;
    fn drop_guard(self: Arc<Self>, hold: Arc<Hold>, guard: Gone);

    /// A guard leaves the name held on the server, unless others share the hold.
    fn detach(self: Arc<Self>, hold: Arc<Hold>, guard: Gone);
}

/// A guard that has gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    /// Its entry is counted on the server, not in memory only.
    pub(crate) counted: bool,
    /// It only read, under a hold that writes.
    pub(crate) reads: bool,
}

/// The answer to a guard that was given back.
pub(crate) enum GivenBack {
    Done(Result<Released, Error>),
    UnderWay(Finish<Result<Released, Error>>),
}

#[derive(Debug)]
struct HoldState {
    spec: Spec,
    /// Guards of the present holder. Zero: the last one is on its way out.
    guards: u32,
    /// How many of them are counted on the server.
    counted: u32,
    /// How many of them only read, although the hold writes.
    readers: u32,
    /// When the present holder came in; `max_hold` counts from here.
    since: Tick,
    /// The longest lease that the server was asked for under this lease id.
    longest: Span,
    /// The present holder's fencing token, and those for the next.
    tokens: Tokens,
    /// Its acknowledgements; `None` until a server has told of them, and where no server is asked.
    acknowledged: Option<Box<Acknowledged>>,
}

/// The result of the watchdog's check of a hold.
pub(crate) enum WatchdogCheck {
    /// Ask the server: renew it, or see whether it is still ours; once in this interval. And check again at the end of its lease.
    Ask { every: Duration, end: Tick },
    /// Nothing to do before.
    Later(Tick),
    /// It is over.
    Over,
}

/// The state of a hold after one of its guards has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Holds {
        holds: u32,
        /// The count to write on the server, if it changed.
        count: Option<u32>,
    },
    /// Only guards that read are left of a hold that writes.
    Readers {
        holds: u32,
    },
    Nothing,
}

/// A lease that the server gave to this client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) lease: LeaseId,
    /// Until when it is believed (B1).
    pub(crate) until: Tick,
    /// When the request that it answers was sent: renewals count from here.
    pub(crate) sent: Tick,
    /// See [`Hold::copies`].
    pub(crate) copies: bool,
    pub(crate) tokens: Tokens,
}

impl Hold {
    /// A new hold, with one guard for the holder that asked for `spec`.
    pub(crate) fn new(
        sink: Arc<dyn HoldSink>,
        granted: Granted,
        spec: Spec,
        now: Tick,
    ) -> Arc<Hold> {
        let state = HoldState {
            spec,
            guards: 1,
            counted: 1,
            readers: 0,
            since: now,
            longest: spec.lease,
            tokens: granted.tokens,
            acknowledged: None,
        };
        // By the send, not by now: a server that restarted in between may have forgotten the lease.
        let confirmed = sink.watchdog().restarts.reported_at(granted.sent);
        Arc::new(Hold {
            sink,
            lease: granted.lease,
            // B2: `max_hold` caps what is believed here. The server keeps the lease at its length, and is told by a release.
            term: LeaseTerm::until(state.capped(granted.until)),
            over: Notify::new(),
            watched_at: WatchedAt::default(),
            copies: granted.copies,
            doubted: AtomicBool::new(false),
            is_prolonged: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            permits: match spec.access {
                Access::Permits(permits) => permits,
                _ => 0,
            },
            durability: spec.durability,
            confirmed: AtomicU32::new(confirmed),
            state: Mutex::new(state),
        })
    }

    /// The next holder comes in, with one guard. Only one whose terms the lease serves as it is. `false` if no fencing
    /// token is left for it: then nothing was changed.
    pub(crate) fn hand_over(&self, spec: Spec, now: Tick) -> bool {
        let mut state = self.state.lock();
        // Each holder has a token of its own, and the server has given only so many for this lease.
        let Some(tokens) = state.tokens.next() else {
            return false;
        };
        state.tokens = tokens;
        // Neither holder has a `max_hold` (`Spec::serves`), so the term needs no other end.
        state.spec = spec;
        state.guards = 1;
        state.counted = 1;
        state.readers = 0;
        // Not `longest`: it belongs to the lease id, which goes on, and an earlier request may have made it last so long (bug 44).
        state.since = now;
        true
    }

    /// The present holder's fencing token; zero of a kind that has none.
    pub(crate) fn token(&self) -> u64 {
        self.state.lock().tokens.own()
    }

    /// Puts the hold on the watchdog's list. `sent` is when its lease was last asked for.
    pub(crate) fn watch(self: &Arc<Self>, sent: Tick) {
        let (next, longest) = {
            let state = self.state.lock();
            (state.next(sent), state.longest.get())
        };
        self.needs_label(longest);
        match next {
            // The answer that gave it may be from before the server forgot.
            // Bug 224: an address may lead to another server by now, which has never heard of this lease.
            _ if !self.is_confirmed() => self.verify_soon(),
            NextStep::Renew(every) => self.sink.watchdog().renew(self, every, sent),
            NextStep::Check(at) => {
                // At its end at the latest: of a hold that is not renewed only a check finds that it is over, and tells the loss.
                let end = self.term.ends_at().unwrap_or(at);
                self.sink.watchdog().check_at(self, at.min(end));
            }
        }
    }

    /// A caller has it: it is watched from now on.
    pub(crate) fn installed(self: &Arc<Self>, granted: &Granted) {
        // Watched first: `tell` calls observers, which are the user's code and may take their time.
        self.watch(granted.sent);
        self.env().events.tell();
    }

    pub(crate) fn env(&self) -> &Arc<Env> {
        self.sink.env()
    }

    fn sink(&self) -> Arc<dyn HoldSink> {
        Arc::clone(&self.sink)
    }

    pub(crate) fn id(&self) -> &LockId {
        self.sink.id()
    }

    pub(crate) fn spec(&self) -> Spec {
        self.state.lock().spec
    }

    /// Whether copies of requests under its lease id may still be under way (B4).
    pub(crate) fn may_have_copies(&self) -> bool {
        self.copies
    }

    /// How long at most an earlier request may let the lease last.
    pub(crate) fn longest(&self) -> Duration {
        self.state.lock().longest.get()
    }

    /// A lease of this length names its holder also after a crash. Where the server knows no holder there is none to name.
    fn needs_label(&self, lease: Duration) {
        if !self.id().kind.never_ends() {
            self.sink.watchdog().needs_label(lease);
        }
    }

    /// The server is about to be asked for a lease of this length.
    pub(crate) fn asks_for(&self, lease: Duration) {
        self.needs_label(lease);
        let mut state = self.state.lock();
        // Before the send: a request without an answer may have made the lease that long (bug 44).
        state.longest = state.longest.get().max(lease).into();
    }

    /// The present holder's request, and when it came in.
    pub(crate) fn spec_and_since(&self) -> (Spec, Tick) {
        let state = self.state.lock();
        (state.spec, state.since)
    }

    /// Notes that the server gave it to a caller that has waited since `began`; before that one can see it.
    pub(crate) fn note_start(&self, began: Tick) {
        let events = &self.env().events;
        if events.is_watched() {
            let (_, since) = self.spec_and_since();
            let wait = events.waited(began, since);
            events.note(self.id(), self.lease, [EventKind::Acquired { wait }]);
        }
    }

    /// Notes that it passes to a caller that has waited since `began`, before that one can see it. The state's lock keeps this
    /// in order with a loss: one that was told before was the old holder's end, and then the new one's time has no start.
    pub(crate) fn note_hand_over(&self, held: Duration, began: Tick) {
        let events = &self.env().events;
        if events.is_watched() {
            // An end that was told first leaves nothing to pass on.
            let state = self.state.lock();
            if !self.is_over() {
                let wait = events.waited(began, state.since);
                let both = [
                    EventKind::HandedOver { held },
                    EventKind::TakenOver { wait },
                ];
                events.note(self.id(), self.lease, both);
            }
        }
    }

    /// Notes the end of a hold that is over; by the caller that ended it.
    fn note_end(&self, kind: impl FnOnce(Duration) -> EventKind) {
        let events = &self.env().events;
        if events.is_watched() {
            let now = self.env().clock.now();
            let state = self.state.lock();
            let kind = kind(now.since(state.since));
            events.note(self.id(), self.lease, [kind]);
        }
    }

    /// Tells what happens while it lasts.
    fn note_between(&self, kind: EventKind) {
        let events = &self.env().events;
        if events.is_watched() {
            // Under the lock that `note_end` takes, too: nothing is told of a hold after its end.
            let state = self.state.lock();
            if !self.is_over() {
                events.note(self.id(), self.lease, [kind]);
            }
            drop(state);
            events.tell();
        }
    }

    pub(crate) fn lost_error(&self, reason: LostReason) -> Error {
        Error::Lost {
            name: self.id().name.shared(),
            reason,
        }
    }

    /// The owner field of the hold on the server.
    pub(crate) fn owner(&self) -> String {
        let access = self.spec().access;
        let kind = self.id().kind;
        self.env().backend.owner(kind, access, self.lease)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.term.is_over()
    }

    /// Whether its lease lasts still. Not a check, so it can be asked under the queue's lock.
    pub(crate) fn is_believed(&self) -> bool {
        let until = self.term.ends_at();
        until.is_some_and(|until| self.env().clock.now() < until)
    }

    /// The cost of its renewal to the server, in names.
    pub(crate) fn work(&self) -> usize {
        usize::from(self.permits.max(1))
    }

    /// Adds a guard for the present holder, counted in memory; perhaps one that only reads. `None` when the last guard is on its
    /// way out.
    pub(crate) fn enter(&self, reads: bool) -> Option<()> {
        self.state.lock().enter(reads)
    }

    /// Adds a guard that is counted on the server too; answers the count to write there.
    pub(crate) fn enter_counted(&self, reads: bool) -> Option<u32> {
        let mut state = self.state.lock();
        state.enter(reads)?;
        state.counted += 1;
        Some(self.count(&state))
    }

    /// Counts a guard that has gone.
    pub(crate) fn leave(&self, guard: Gone) -> Left {
        let mut state = self.state.lock();
        let Gone { counted, reads } = guard;
        state.guards = state.guards.saturating_sub(1);
        if counted {
            state.counted = state.counted.saturating_sub(1);
        }
        // Saturating: a hold that has turned to read has counted its readers to zero, while their guards are still out (`turn_to_read`).
        if reads {
            state.readers = state.readers.saturating_sub(1);
        }
        match state.guards {
            0 => Left::Nothing,
            holds if state.only_reads() => Left::Readers { holds },
            holds => Left::Holds {
                holds,
                // The server counts at least one as long as there is a guard.
                count: (counted && state.counted > 0).then(|| self.count(&state)),
            },
        }
    }

    /// From here on it is a reader's like any other, and never again more (B4). `false` if a guard is left, or came, that may write.
    pub(crate) fn turn_to_read(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        if !state.only_reads() {
            return false;
        }
        state.spec.access = Access::Shared;
        state.readers = 0;
        // From here on Redisson's readers may come: less is believed of the lease (`Config::believed`). It is asked for as before (B2).
        let config = &self.env().config;
        let lease = config.believed(Access::Shared, state.spec.lease());
        if lease < state.spec.lease() {
            if !state.spec.is_fixed() {
                state.spec.renew_every = config.renew_every(lease).into();
            }
            // Counted from here: while the hold wrote, no reader of Redisson's was let in that could shorten the lease.
            let now = self.env().clock.now();
            self.term.shorten(lease::valid_until(now, lease));
            // A lease that is renewed stands on the list by its old, longer interval: the answer to this puts it there by the new one.
            drop(state);
            self.verify_soon();
        }
        true
    }

    /// Whether an owner field on the server is this hold's, in whichever of the forms that a hold of a read-write lock can have.
    pub(crate) fn is_owner(&self, owner: &str) -> bool {
        let kind = self.id().kind;
        let forms = [Access::Exclusive, Access::Shared];
        // A writer that reads as well stands there in two forms (bug 151).
        let is = |access| self.env().backend.owner(kind, access, self.lease) == owner;
        is(self.spec().access) || kind == LockKind::RwLock && forms.into_iter().any(is)
    }

    /// Whether the holder may rely on it now. The check that finds its end tells all tasks that wait for the loss.
    pub(crate) fn standing(self: &Arc<Self>) -> Result<Duration, End> {
        let now = self.env().clock.now();
        match self.term.check(now) {
            Standing::Valid(until) => Ok(until.since(now)),
            Standing::JustExpired => {
                self.on_lost(LostReason::Expired);
                Err(End::Lost(self.reason(LostReason::Expired)))
            }
            Standing::Ended(End::Lost(reason)) => Err(End::Lost(self.reason(reason))),
            Standing::Ended(End::Released) => Err(End::Released),
        }
    }

    /// The time left of it, or the error that says that it is over.
    pub(crate) fn check(self: &Arc<Self>) -> Result<Duration, Error> {
        self.standing().map_err(|end| match end {
            End::Lost(reason) => self.lost_error(reason),
            // Its own release is under way, and no answer has confirmed it.
            End::Released => self.lost_error(LostReason::Unconfirmed),
        })
    }

    /// Ends the hold here without telling the server, where the name frees itself when its lease ends.
    pub(crate) fn detach(self: &Arc<Self>) {
        // Two may end it at once: the first tells it, the other finds it over.
        if self.term.end(End::Released) {
            // The server is to keep the name until its lease ends: a check that comes later gives nothing up.
            self.settled.store(true, Ordering::Release);
            // By the longest lease that was asked for: an extension without an answer may have been carried out (bug 44).
            let within = lease::free_within(self.longest());
            // Before the queue lets go: a grant of this lease that is heard later is then left alone (bug 41).
            self.sink.note_detached(self.lease, within);
            self.sink.watchdog().forget(self);
            self.note_end(|held| EventKind::Detached { held });
            self.env().events.tell();
            self.sink().over(self);
        }
    }

    /// The server's count for the present holder: its entries; of readers, how many share the hold.
    pub(crate) fn counted(&self) -> u32 {
        self.count(&self.state.lock())
    }

    fn count(&self, state: &HoldState) -> u32 {
        let shared = state.spec.access == Access::Shared && state.spec.owner.is_none();
        let count = if shared { state.guards } else { state.counted };
        let most = match self.id().kind {
            LockKind::RwLock => ENTRIES_COUNTED_MOST,
            _ => u32::MAX,
        };
        count.clamp(1, most)
    }

    /// The guards that only read, of a hold that writes.
    pub(crate) fn readers(&self) -> u32 {
        self.state.lock().readers.min(ENTRIES_COUNTED_MOST)
    }

    /// Whether the server has said that it is ours, since it may have forgotten.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire) == self.sink.watchdog().restarts.present()
    }

    /// The server has said that it is ours, in its reply to a request that was sent at `sent`.
    fn confirm(&self, sent: Tick) {
        let reported_at = self.sink.watchdog().restarts.reported_at(sent);
        // An answer from before a restart may be that of the old server (bug 224).
        if reported_at == self.sink.watchdog().restarts.present() {
            self.confirmed.store(reported_at, Ordering::Release);
        }
    }

    /// Whether the server may have forgotten since then.
    pub(crate) fn is_from_before(&self, sent: Tick) -> bool {
        self.sink.watchdog().restarts.is_from_before(sent)
    }

    /// Whether the end that is believed was prolonged by a server that was replaced since: its successor may have a shorter one (bug 300).
    pub(super) fn is_from_another(&self) -> bool {
        self.is_prolonged.load(Ordering::Acquire) && !self.is_confirmed()
    }

    /// Whether a lease that is believed until then needs no renewal any more.
    pub(super) fn lasts(&self, until: Tick) -> bool {
        self.state.lock().lasts(until)
    }

    /// It may have been taken from its holder: it is verified at `at`, by a renewal that comes early.
    pub(crate) fn doubt(self: &Arc<Self>, at: Tick) {
        // The mark comes first: the check may begin at once, and must find it.
        self.doubted.store(true, Ordering::Release);
        // A check finds its end, too, and there is only one on the list.
        let at = self.term.ends_at().map_or(at, |end| at.min(end));
        self.sink.watchdog().check_at(self, at);
    }

    /// Whether the server is to be asked, whenever its next renewal would be due.
    fn is_to_be_verified(&self) -> bool {
        !self.is_confirmed() || self.doubted.load(Ordering::Acquire)
    }

    fn verify_soon(self: &Arc<Self>) {
        // The earliest that a check can be asked for: zero says that it stands on no list.
        self.sink.watchdog().check_at(self, Tick::from_nanos(1));
    }

    /// How the hold was lost of which the server says that it is not ours.
    pub(crate) fn not_ours(&self) -> LostReason {
        if self.is_confirmed() {
            LostReason::Replaced
        } else {
            LostReason::Failover
        }
    }

    /// The answer to a request that was sent at `sent`: the hold is not ours. Whether that counts, and the hold is lost: a server that was
    /// replaced since says nothing of what its successor has, which is asked instead.
    pub(crate) fn answered_not_ours(self: &Arc<Self>, sent: Tick) -> bool {
        // A primary that stood still answers what lay in its socket, and its own copy of the lease has expired meanwhile (bug 310).
        let counts = !self.is_from_before(sent);
        if counts {
            self.lose(self.not_ours());
        } else {
            self.verify_soon();
        }
        counts
    }

    /// Ends the hold as lost, unless it has ended before.
    pub(crate) fn lose(self: &Arc<Self>, reason: LostReason) {
        if self.term.end(End::Lost(reason)) {
            self.on_lost(reason);
        }
    }

    fn on_lost(self: &Arc<Self>, reason: LostReason) {
        let reason = self.reason(reason);
        self.sink.watchdog().forget(self);
        // The holder is told before any observer, which is the user's code and may take its time.
        self.over.notify_waiters();
        self.note_end(|held| EventKind::Lost { reason, held });
        self.env().events.tell();
        story::lost(self.id(), self.lease, reason);
        // Whether the server may still have this id. Then it is given up there, a margin later: `run` may still be dropping its work.
        let leaves = match reason {
            // The server has said that the name is not ours, after the last send that could have taken it.
            // After a failover the id may still have an entry in the queue that was copied from the server of before.
            // Of a quorum a minority may have it still.
            LostReason::Replaced => {
                self.copies || self.env().backend.voted(self.lease) == Some(Voted::Open)
            }
            // Permits without a lease would never be free again.
            LostReason::ClientShutdown => !self.env().lets_expire() || self.id().kind.never_ends(),
            _ => true,
        };
        // Until then the server may call the name held.
        let settling = leaves.then(|| self.env().unsettled.begin(&self.id().name));
        // After `begin`: a waiter that asks next may be told of this very lease (bug 257).
        self.sink().over(self);
        if leaves {
            let hold = Arc::clone(self);
            self.env().spawn(async move {
                let _settling = settling;
                // The server keeps the name for as long as after an end that it was not told of: work that `run`
                // is dropping at this moment is gone by then.
                let margin = lease::margin(hold.spec().lease());
                let most = match reason {
                    LostReason::ClientShutdown => SHUTDOWN_MARGIN,
                    // A lease that stands for none is very long, and so would be its margin.
                    _ if hold.id().kind.never_ends() => SHUTDOWN_MARGIN,
                    _ => margin,
                };
                hold.env().sleep(margin.min(most)).await;
                hold.settle();
            });
        } else {
            // A guard that is given back after this calls `settle`, and is not to give the lease id up either.
            self.settled.store(true, Ordering::Release);
        }
    }

    /// Has the lost lease id given up on the server, unless that has begun (B4, B5).
    pub(crate) fn settle(self: &Arc<Self>) {
        // Two may come here for one lease id: the task that a loss has begun, and the guard that is given back after it.
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.sink.abandon(self);
        }
    }

    /// Leaves it to a release to settle this lease id with the server: no other request about it will be sent.
    pub(crate) fn settled_by_release(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// A term that ran out because of `max_hold` says so.
    fn reason(&self, reason: LostReason) -> LostReason {
        let state = self.state.lock();
        match (reason, state.cap()) {
            // By the clock: the term keeps a single end, and does not say whether the lease or `max_hold` set it.
            (LostReason::Expired, Some(cap)) if self.env().clock.now() >= cap => {
                LostReason::MaxHold
            }
            _ => reason,
        }
    }

    /// The watchdog's check: ask, wait, or it is over.
    pub(crate) fn watchdog_check(self: &Arc<Self>, now: Tick) -> WatchdogCheck {
        let Some(until) = self.valid_until(now) else {
            return WatchdogCheck::Over;
        };
        let state = self.state.lock();
        let every = state.spec.ask_every();
        if state.lasts(until) && until <= now.after(every / 2) && !self.is_to_be_verified() {
            // It lasts up to its cap, and the end is near: no renewal could prolong it, so the next check is at the end.
            return WatchdogCheck::Later(until);
        }
        WatchdogCheck::Ask { every, end: until }
    }

    /// How often it is asked about, and the end of its lease, of a hold that is to be asked about now; `None`: it is over.
    pub(crate) fn verification(self: &Arc<Self>, now: Tick) -> Option<(Duration, Tick)> {
        let until = self.valid_until(now)?;
        Some((self.spec().ask_every(), until))
    }

    /// The request to send when its time has come; `None` if the hold is over. `policy` says who must acknowledge this request: if the hold
    /// has another, the request asks only whether the hold is ours, and its renewal follows.
    pub(crate) fn due(self: &Arc<Self>, now: Tick, policy: Durability) -> Option<Due> {
        let until = self.valid_until(now)?;
        // Before the send: a doubt that comes later wants another answer than this request's.
        self.doubted.store(false, Ordering::Release);
        let state = self.state.lock();
        let lasts = state.lasts(until);
        // Where replicas are to acknowledge, two requests go out: first "is it ours?" to the primary alone, then the renewal.
        let is_first = policy != self.durability && !lasts;
        let lease_ms = if lasts || is_first {
            0
        } else {
            // B2: always the same, also when `max_hold` is near: `max_hold` ends a hold by release, not by a shorter lease.
            state.spec.lease_ms()
        };
        let every = state.spec.ask_every();
        let config = &self.env().config;
        let mut patience = patience(every, config.operation_timeout);
        // With time to spare.
        let mut may_end = until < now.after(2 * patience);
        if !policy.is_primary() {
            // An acknowledgement may take that long, and counts. The hold is on the list meanwhile, and so verified after a restart.
            patience = patience.max(config.durability_timeout + config.operation_timeout / 8);
            may_end = true;
        }
        Some(Due {
            access: state.spec.access,
            lease_ms,
            patience,
            // The hold is on no list until the answer comes: a lease that may end before that has its end checked.
            end: may_end.then_some(until),
            is_first,
        })
    }

    /// Until when it can be relied on; `None` if it is over. The first check to find that tells it.
    fn valid_until(self: &Arc<Self>, now: Tick) -> Option<Tick> {
        match self.term.check(now) {
            Standing::Valid(until) => Some(until),
            Standing::JustExpired => {
                self.on_lost(LostReason::Expired);
                None
            }
            Standing::Ended(_) => None,
        }
    }

    /// The answer to a renewal that was sent at `sent`. Returns what the watchdog is to do next, unless that is to check it.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        asked: &Due,
        renewal: Renewal,
        sent: Tick,
    ) -> Option<Onward> {
        match renewal {
            Renewal::Extended if asked.is_first => {
                // Bug 246: the primary is asked first, and alone. Its word that it has forgotten the lock is not to wait for replicas.
                self.confirm(sent);
                if !self.is_to_be_verified() {
                    return Some(Onward::Acknowledged);
                }
                // A restart or a doubt came while the answer was under way: the primary is asked once more, before any replica is.
                self.verify_soon();
            }
            Renewal::Extended
                if asked.lease_ms == 0 && self.is_from_another() && !self.is_from_before(sent) =>
            {
                // Its end is told in time, also if the question takes longer.
                if let Some(until) = self.valid_until(self.env().clock.now()) {
                    self.sink.watchdog().check_at(self, until);
                }
                // In a task of its own: this answer came with those of a whole batch, which are not to wait for another round trip.
                let hold = Arc::clone(self);
                self.env().spawn(async move { hold.restore().await });
            }
            Renewal::Extended => {
                let every = self.extended(Duration::from_millis(asked.lease_ms), sent);
                return every.map(Onward::Again);
            }
            Renewal::Lost => {
                self.answered_not_ours(sent);
            }
            Renewal::Unknown | Renewal::Shortened(_) => {
                if let Renewal::Shortened(within) = renewal {
                    self.term.shorten(lease::valid_until(sent, within));
                }
                // At once after a silence, soon after a refusal; and one that is to be verified as soon as may be.
                let now = self.env().clock.now();
                let again = now.after(asked.patience / 8);
                let again = if self.is_confirmed() {
                    again.max(sent.after(asked.patience))
                } else if self.is_from_before(sent) {
                    // It left before the restart was noticed, and the silence was the old server's: the new one is asked at once.
                    now
                } else {
                    again
                };
                // Whether it is ours is open still, also near its end, where a fixed lease is asked about no more.
                if asked.lease_ms == 0 {
                    self.doubted.store(true, Ordering::Release);
                }
                self.note_between(EventKind::RenewalFailed);
                if let Some(until) = self.valid_until(now) {
                    story::is_at_risk(self.id(), self.lease, until.since(now));
                    self.sink.watchdog().check_at(self, again.min(until));
                }
            }
        }
        None
    }

    /// The server said, in its reply to the request sent at `sent`, that `remaining` was left (B1); zero: that the lease is
    /// still ours. Returns the interval, if the only thing left to do is to renew it again.
    pub(crate) fn extended(self: &Arc<Self>, remaining: Duration, sent: Tick) -> Option<Duration> {
        if self.is_from_before(sent) {
            // B1: a primary that stood still may say so, and its successor has never heard of this end (bug 300).
            self.verify_soon();
            return None;
        }
        self.confirm(sent);
        let now = self.env().clock.now();
        // Read before `prolong` moves the end: the event tells how much of the lease was left when its renewal landed.
        let left = self.term.ends_at().map(|end| end.since(now));
        let (until, next) = {
            let state = self.state.lock();
            let config = &self.env().config;
            let remaining = config.believed(state.spec.access, remaining);
            let until = lease::valid_until(sent, remaining);
            (state.capped(until), state.next(sent))
        };
        match self.term.prolong(until, now) {
            Standing::Valid(until) => {
                // Zero says only that the lease is still ours: no end has moved, and there is no renewal to tell of.
                if !remaining.is_zero() {
                    self.is_prolonged.store(true, Ordering::Release);
                    self.note_between(EventKind::Renewed {
                        left: left.unwrap_or_default(),
                        lease: remaining,
                    });
                }
                match next {
                    // A restart or a doubt came while it was under way, and the answer may be older.
                    _ if self.is_to_be_verified() => self.verify_soon(),
                    NextStep::Renew(every) => return Some(every),
                    NextStep::Check(at) => self.sink.watchdog().check_at(self, at.min(until)),
                }
            }
            Standing::JustExpired => self.on_lost(LostReason::Expired),
            Standing::Ended(_) => {}
        }
        None
    }
}

impl Watched for Hold {
    fn watched_at(&self) -> &WatchedAt {
        &self.watched_at
    }

    fn lease(&self) -> LeaseId {
        self.lease
    }

    fn work(&self) -> usize {
        Hold::work(self)
    }
}

/// The next step for a hold that is ours.
pub(crate) enum Onward {
    /// Its renewal, once in this interval, and nothing else.
    Again(Duration),
    /// Its renewal now, to be acknowledged by replicas: the primary has just said that it is ours.
    Acknowledged,
}

/// A request that is due.
pub(crate) struct Due {
    access: Access,
    /// Zero: only whether it is still ours.
    lease_ms: u64,
    /// How long the answer may take.
    pub(crate) patience: Duration,
    /// If the lease may end before the answer is due: when.
    pub(crate) end: Option<Tick>,
    /// If it is ours, its renewal follows.
    is_first: bool,
}

impl Due {
    pub(crate) fn renew(&self, hold: &Hold) -> backend::Renew {
        backend::Renew {
            id: hold.id().clone(),
            access: self.access,
            lease: hold.lease,
            lease_ms: self.lease_ms,
        }
    }
}

/// The next step for a lease.
enum NextStep {
    /// Its renewal, once in this interval, and nothing else.
    Renew(Duration),
    /// A check of it.
    Check(Tick),
}

impl HoldState {
    fn enter(&mut self, reads: bool) -> Option<()> {
        if self.guards == 0 {
            return None;
        }
        self.guards += 1;
        // Under a hold that only reads, a guard that reads is like all others.
        if reads && self.spec.access != Access::Shared {
            self.readers += 1;
        }
        Some(())
    }

    /// Whether no guard is left that may write, of a hold that does.
    fn only_reads(&self) -> bool {
        self.spec.access != Access::Shared && self.guards > 0 && self.readers == self.guards
    }

    /// When `max_hold` ends the present holder's time.
    fn cap(&self) -> Option<Tick> {
        self.spec.max_hold().map(|most| self.since.after(most))
    }

    fn capped(&self, until: Tick) -> Tick {
        self.cap().map_or(until, |cap| until.min(cap))
    }

    /// Whether a lease that is believed until then needs no renewal any more.
    fn lasts(&self, until: Tick) -> bool {
        self.spec.is_fixed() || self.cap().is_some_and(|cap| until >= cap)
    }

    /// The next step for a lease that was asked for at `sent`.
    fn next(&self, sent: Tick) -> NextStep {
        let every = self.spec.ask_every();
        if self.spec.is_fixed() || self.cap().is_some() {
            // Fixed leases that were taken at about the same time are verified by one script.
            NextStep::Check(self.capped(slot(sent, every, 0)))
        } else {
            NextStep::Renew(every)
        }
    }
}

/// The server is told of at most this many entries into a hold of a read-write lock: Redisson looks at a key for each of a
/// reader's, and our own scripts at no more than 1,000 (`holders.lua`).
const ENTRIES_COUNTED_MOST: u32 = 100;

/// A shutdown has told the holders already, and does not wait for long margins.
pub(crate) const SHUTDOWN_MARGIN: Duration = Duration::from_millis(500);

/// A renewal gets a third of the interval, so that at least three fit into what is left of the lease.
fn patience(every: Duration, operation_timeout: Duration) -> Duration {
    // A lease of 3 ms is renewed each millisecond, and no answer comes in a third of that. After the operation timeout
    // the connection counts as silent, and another request takes another one.
    (every / 3)
        .max(Duration::from_millis(1))
        .min(operation_timeout)
}
