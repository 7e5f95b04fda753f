//! The state of a queue: its waiters, who may come in, holds that are shared, and what its holds tell it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    Error,
    backend::{Acquired, Counted, Failure, Permits},
    clock::Tick,
    engine::claim::pending_release,
    engine::claim::pending_release::PendingRelease,
    engine::claim::remote::Remote,
    engine::claim::ticket::Ticket,
    engine::env::Env,
    engine::hold::held::Held,
    engine::hold::spec::{Spec, Terms},
    engine::hold::watchdog::Watchdog,
    engine::hold::{GivenBack, Gone, Hold, HoldSink, Left},
    engine::local::answer,
    engine::local::answer::WaitResult,
    engine::local::locked::Locked,
    engine::local::sharers::is_fresh,
    engine::local::waiters::Waiter,
    engine::queue::enter::WaitTicket,
    engine::queue::map::Queues,
    engine::queue::release::{
        ReleaseStep, begin_downgrade, begin_release, write_count, write_count_in_background,
    },
    engine::queue::{Life, Phase, Queue, QueueState, Start},
    kind::Access,
    name::LockId,
    owner::{LeaseId, OwnerId},
    user_callback,
};

// The waiters of a queue: which is next, and how each is answered.

impl QueueState {
    /// How many numbers have been given to those that came.
    pub(crate) fn given(&self) -> i64 {
        self.numbers.end
    }

    /// The request of the first live waiter.
    pub(crate) fn first_live_waiter(&mut self) -> Option<Spec> {
        // A dropped `lock()` closes its slot, and then takes its entry out (`WaitTicket::drop`). A check of the front in between does so first.
        while self.waiters.front().is_some_and(|w| w.answer.is_closed()) {
            self.pop_waiter();
        }
        self.waiters.front().map(|w| w.spec)
    }

    /// Whether the first live waiter, if there is one, has to wait for the next turn of this process.
    pub(crate) fn turn_is_over(&mut self) -> bool {
        let next = self.first_number();
        let turn = self.remote.as_ref().map(|remote| &remote.turns);
        turn.is_some_and(|turn| next.is_some_and(|next| turn.is_over_for(next)))
    }

    /// The number of the first live waiter.
    pub(crate) fn first_number(&mut self) -> Option<i64> {
        self.first_live_waiter()?;
        self.waiters.front().map(|first| first.number)
    }

    pub(crate) fn first_asks_once(&mut self) -> bool {
        self.first_live_waiter().is_some() && self.waiters.front().is_some_and(|first| first.once)
    }

    pub(crate) fn pop_waiter(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front()?;
        self.try_once -= u32::from(waiter.once);
        Some(waiter)
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.remote
            .as_ref()
            .is_some_and(|remote| remote.subscription.is_open())
    }

    /// Whether this process asks under this lease id.
    pub(crate) fn asks_under(&self, lease: LeaseId) -> bool {
        let ticket = self
            .remote
            .as_ref()
            .and_then(|remote| remote.ticket.as_ref());
        ticket.is_some_and(|ticket| ticket.lease() == lease)
    }

    /// The terms on which the server is asked, or was.
    pub(crate) fn asked(&self) -> Option<Terms> {
        let remote = self.remote.as_ref()?;
        remote.ticket.as_ref().map(Ticket::terms)
    }

    pub(crate) fn remote(&mut self) -> &mut Remote {
        self.remote.get_or_insert_with(|| Box::new(Remote::new()))
    }
}

/// Each method that answers a waiter also wakes it, after the unlock.
impl Locked<'_, QueueState> {
    /// Answers the waiters that ask only once.
    pub(crate) fn answer_try_once(&mut self, answer: &Result<(), Error>) {
        if self.try_once == 0 {
            return;
        }
        self.try_once = 0;
        let (once, patient): (VecDeque<_>, VecDeque<_>) =
            self.waiters.drain(..).partition(|w| w.once);
        self.waiters = patient;
        for waiter in once {
            self.answer(waiter, answer.clone().map(|()| None));
        }
    }

    /// The server says that `asked` cannot be had, in reply to a request that was sent when this many numbers had been given. Refuses
    /// a waiter that asks only once if it had come by then and wants no less, or if one that waits on stands before it. Exception: it says
    /// how many permits there are, and the server is to be told that first.
    pub(crate) fn refuse_try_once(&mut self, queue: &Queue, asked: Access, given: i64) {
        if self.try_once == 0 {
            return;
        }
        let unsaid = self.is_unreported(self.permits_to_report());
        let (mut rest, mut overtakes) = (VecDeque::new(), false);
        for waiter in std::mem::take(&mut self.waiters) {
            overtakes |= !waiter.once && !waiter.answer.is_closed();
            let is_refused = waiter.number < given && waiter.spec.access.wants_no_less_than(asked);
            let is_unheard = unsaid && waiter.spec.permits.is_some();
            if waiter.once && (overtakes || is_refused) && !is_unheard {
                self.try_once -= 1;
                let busy = queue.busy(self, waiter.spec);
                self.answer(waiter, busy);
            } else {
                rest.push_back(waiter);
            }
        }
        self.waiters = rest;
    }

    /// The server gave the name to `hold`; the count of hand-offs starts anew.
    pub(crate) fn took(&mut self, queues: &Queues, hold: &Arc<Hold>) {
        // The budget counts from a grant of the server: only that has asked the other processes.
        self.handoffs = 0;
        self.unset = false;
        self.since = queues.clock.now();
        let now = self.since;
        let round = self.numbers.end;
        queues.redisson_fairness.took(hold.id(), now);
        if let Some(remote) = &mut self.remote {
            // To all other waiters of this process the name is taken from here on.
            remote.note_held_by_another(now);
            remote.turns.round = round;
        }
        if let Some(fair_queue) = queues.fair_queue(hold.id()) {
            fair_queue.now_held_by(hold);
        }
        if hold.spec().access.is_exclusive() {
            self.held_by(hold);
        } else {
            self.shared.add(hold);
            // An owner first: it would wait for itself behind a writer.
            self.admit_owner_of(hold);
            self.admit_readers(hold);
        }
    }

    /// A holder has the name in this process from now on.
    pub(crate) fn held_by(&mut self, hold: &Arc<Hold>) {
        self.phase = Phase::Held(Arc::clone(hold));
        self.admit_owner_of(hold);
        // Their answer is known now, without a request: a task of this process has the name.
        self.answer_try_once(&Ok(()));
    }

    fn admit_owner_of(&mut self, hold: &Arc<Hold>) {
        let owner = hold.spec().owner;
        if owner.is_some() && self.waiters.iter().any(|w| w.spec.owner == owner) {
            self.admit_same_owner(hold, owner);
        }
    }

    /// Waiters of the same owner enter with it, or they would wait for themselves.
    pub(crate) fn admit_same_owner(&mut self, hold: &Arc<Hold>, owner: Option<OwnerId>) {
        let mut rest = VecDeque::new();
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.spec.owner != owner || waiter.answer.is_closed() {
                rest.push_back(waiter);
            } else if let Some(remedy) = waiter.spec.is_to_stay_out(&hold.spec()) {
                let error = Error::Reentered {
                    name: hold.id().name.shared(),
                    held_at: hold.spec().place,
                    remedy,
                };
                self.answer(waiter, Err(error));
            } else if hold
                .enter_counted(waiter.spec.reads_under(&hold.spec()))
                .is_some()
            {
                let reads = waiter.spec.reads_under(&hold.spec());
                self.deliver_shared(waiter, Held::inside(Arc::clone(hold), reads));
            } else {
                // It has its turn with the others then.
                rest.push_back(waiter); // the holder has left already
            }
        }
        self.try_once = u32::try_from(rest.iter().filter(|w| w.once).count()).unwrap_or(0);
        self.waiters = rest;
    }

    /// Gives a waiter its guard, and notes `start` before. `false` if the waiter left at this very moment.
    pub(crate) fn deliver(
        &mut self,
        waiter: Waiter,
        hold: &Arc<Hold>,
        start: impl FnOnce(Tick),
    ) -> bool {
        let part = Held::new(Arc::clone(hold));
        let note = || start(waiter.began);
        match waiter.answer.send_after(note, Ok(Some(part))) {
            Ok(waker) => {
                self.wake_later(waker);
                true
            }
            // Q5: the guard's drop must do nothing.
            // The caller left between the check and the answer. The hold goes to the next waiter, so it must not be released here.
            Err(Ok(Some(guard))) => {
                drop(guard.defuse());
                false
            }
            Err(_) => false,
        }
    }

    /// Gives a waiter its part of a hold that others share.
    pub(crate) fn deliver_shared(&mut self, waiter: Waiter, held: Held) {
        match waiter.answer.send(Ok(Some(held))) {
            Ok(waker) => self.wake_later(waker),
            Err(Ok(Some(held))) => self.drop_later(held),
            Err(_) => {}
        }
    }

    /// Answers a waiter otherwise than by a guard.
    fn answer(&mut self, waiter: Waiter, answer: WaitResult) {
        if let Ok(waker) = waiter.answer.send(answer) {
            self.wake_later(waker);
        }
    }

    /// Every waiter gets the same answer.
    pub(crate) fn answer_all(&mut self, error: &Error) {
        self.try_once = 0;
        // Taken out first: a waker of one answer may lead to the next call (bug 48).
        for waiter in std::mem::take(&mut self.waiters) {
            self.answer(waiter, Err(error.clone()));
        }
    }

    /// Answers the first live waiter, and only that one: its request concerns no other (L4).
    pub(crate) fn answer_first(&mut self, error: Error) {
        if self.first_live_waiter().is_some()
            && let Some(waiter) = self.pop_waiter()
        {
            self.answer(waiter, Err(error));
        }
    }

    /// Passes a lease of this process on in memory, to the first live waiter if it serves that one as it is. Its holder has had it
    /// since `since`.
    pub(crate) fn hand_over(
        &mut self,
        hold: &Arc<Hold>,
        from: &Spec,
        since: Tick,
        now: Tick,
    ) -> bool {
        while let Some(next) = self.first_live_waiter()
            // A waiter that wants another lease or access needs the server (bug 15).
            && from.serves(&next)
            // If that waiter is gone, the next one overwrites this; without a next one the hold is released, and its terms do not matter.
            && hold.hand_over(next, now)
        {
            // Not reached: a live waiter stands at the front.
            let Some(waiter) = self.pop_waiter() else {
                return false;
            };
            let note = |began| hold.note_hand_over(now.since(since), began);
            if self.deliver(waiter, hold, note) {
                if from.access.is_exclusive() {
                    self.held_by(hold);
                }
                return true;
            }
        }
        false
    }
}

// Newcomers: where one waits, and what it may be told without a request.
//
// `None` in answer to a newcomer that does not wait rests on what is so now: a task of this process has the lock, or waits for it and is
// served before; or the server said so in reply to a request that was sent after the newcomer had come.

impl QueueState {
    /// Whether the caller of the attempt under way still waits for its outcome. Else no hold begins: others would be told of it.
    pub(crate) fn is_wanted(&self) -> bool {
        match &self.phase {
            Phase::InFlight(Some(caller)) => caller.strong_count() > 0,
            _ => true,
        }
    }

    /// No caller of this process wants the lock here any more, and the server has not been told so yet.
    pub(crate) fn is_leaving(&mut self) -> bool {
        match &self.phase {
            Phase::Releasing(..) => true,
            Phase::InFlight(Some(_)) => !self.is_wanted(),
            // A newcomer that begins its attempt has nothing at the server yet.
            Phase::InFlight(None) | Phase::WaitingRemote => {
                self.remote.is_some() && self.first_live_waiter().is_none()
            }
            Phase::Idle | Phase::Held(_) => false,
        }
    }

    /// Whether a newcomer that does not wait can be refused without a request: a task of this process has the name, or waits for it and
    /// is served before. A driver without a waiter knows nothing: it has not polled since the last one left. Nor does it know what the
    /// server will say once a newcomer has told it how many permits there are.
    pub(crate) fn is_taken(&mut self, spec: &Spec) -> bool {
        match &self.phase {
            Phase::WaitingRemote => {
                self.first_live_waiter().is_some() && !self.is_unreported(spec.permits)
            }
            phase => phase.is_held(),
        }
    }

    /// Adds a waiter: behind the others, or as the `first` of them.
    pub(crate) fn line_up(
        &mut self,
        queue: &Arc<Queue>,
        spec: Spec,
        once: bool,
        first: bool,
        began: Tick,
    ) -> WaitTicket {
        let (answer, answered) = answer::slot();
        let number = if first {
            // A number below all others keeps the waiters in order, and `WaitTicket::drop` searches by it.
            self.numbers.start -= 1;
            self.numbers.start
        } else {
            self.numbers.end += 1;
            self.numbers.end - 1
        };
        let last = self.waiters.back();
        // Nearly always all say the same number, and nothing needs to be searched.
        self.differ = last.is_some_and(|last| self.differ || last.spec.permits != spec.permits);
        let waiter = Waiter {
            number,
            spec,
            began,
            once,
            answer,
        };
        self.try_once += u32::from(once);
        if first {
            self.waiters.push_front(waiter);
        } else {
            self.waiters.push_back(waiter);
        }
        // The driver sleeps only for what it has said.
        if matches!(self.phase, Phase::WaitingRemote) && self.is_unreported(spec.permits) {
            queue.driver_wake().notify_one();
        }
        WaitTicket {
            queue: Arc::clone(queue),
            number,
            answered,
        }
    }
}

// Holds that share the lock with others: readers', and permits'.
//
// They are no phase of the queue (Q1): while they last, an attempt or a driver may ask the server for more. The readers of
// this process share one hold. Within the hand-off budget the next one joins it in memory; when that is used up, it asks
// the server whether a writer waits.

impl QueueState {
    /// The hold of this process that another reader can share; the budget is not checked.
    fn hold_to_share(&self, spec: &Spec, now: Tick) -> Option<&Arc<Hold>> {
        if spec.access != Access::Shared || spec.owner.is_some() {
            return None;
        }
        // The latest first: it has the most of its lease left.
        self.shared.all().iter().rev().find(|hold| {
            let there = hold.spec();
            is_fresh(hold, &there, now) && there.owner.is_none() && there.serves(spec)
        })
    }

    /// Lets a reader in without asking the server, if no task of this process waits that it would keep out and the budget
    /// allows it.
    pub(crate) fn join(&mut self, spec: &Spec, now: Tick) -> Option<Held> {
        let budget = spec.handoff.is_on()
            && self.handoffs < spec.handoff.max_in_row
            && now.since(self.since) < spec.handoff.max_time();
        // A writer may wait among them: a reader that joined would keep it out for ever.
        if !budget || !self.waiters.is_empty() {
            return None;
        }
        let held = Held::join(self.hold_to_share(spec, now)?)?;
        self.handoffs += 1;
        Some(held)
    }
}

impl Queue {
    /// Whether the first waiter asks only once, and a release is under way that it may wait for: the queue goes on when the
    /// release is answered. Leaves it the queue.
    pub(crate) fn leave_to_release(&self) -> bool {
        let mut state = self.lock();
        let once = state.first_asks_once();
        let latest = state.shared.latest_release();
        let asked = state
            .remote
            .as_ref()
            .is_some_and(|remote| remote.may_have());
        let Some(lease) = latest.filter(|_| once && !asked) else {
            return false;
        };
        state.phase = Phase::Releasing(lease);
        true
    }
}

impl Locked<'_, QueueState> {
    /// The release of a shared hold begins. A newcomer waits for it first, if nothing else is there.
    pub(crate) fn share_ends(&mut self, hold: &Arc<Hold>, now: Tick) {
        let began = self.since;
        if let Some(remote) = &mut self.remote
            && matches!(hold.spec().access, Access::Permits(_))
        {
            remote.turns.gives_back(now, began);
        }
        self.shared.release(hold);
        // An actor that is at work keeps the queue (Q1): newcomers wait for it, not for this release.
        let rests = match &self.phase {
            Phase::Idle => true,
            Phase::Releasing(lease) => self.waiters.is_empty() && self.shared.is_releasing(*lease),
            _ => false,
        };
        if rests {
            self.phase = Phase::Releasing(hold.lease);
        }
    }

    /// Lets in the next waiting readers, up to the first waiter that cannot share the hold.
    pub(crate) fn admit_readers(&mut self, hold: &Arc<Hold>) {
        let there = hold.spec();
        if there.access != Access::Shared || there.owner.is_some() {
            return;
        }
        while self
            .first_live_waiter()
            .is_some_and(|next| next.owner.is_none() && there.serves(&next))
        {
            // The entry comes first: if the hold is on its way out, the waiter keeps its place.
            let Some(entry) = Held::join(hold) else {
                return;
            };
            let Some(waiter) = self.pop_waiter() else {
                self.drop_later(entry);
                return;
            };
            self.deliver_shared(waiter, entry);
        }
    }
}

/// The budget for letting readers in unasked is used up: asks the server whether a writer waits. If none does, this one and
/// those behind it share the hold that this process has. `None`: ask for another hold.
pub(crate) async fn ask_to_join(
    queues: &Arc<Queues>,
    queue: &Arc<Queue>,
    spec: &Spec,
) -> Option<Held> {
    let asked = queues.clock.now();
    let hold = {
        let state = queue.lock();
        state.hold_to_share(spec, asked).cloned()
    };
    // An entry from here on, so that the hold is not released meanwhile.
    let entry = hold.as_ref().and_then(Held::join)?;
    let hold = Arc::clone(entry.hold());
    match write_count(queues, &hold).await {
        // A server whose place another has taken meanwhile may have said so (bug 326).
        Ok(Counted::Written) if hold.is_confirmed() && hold.standing().is_ok() => {}
        Ok(Counted::NotOurs) => {
            hold.answered_not_ours(asked);
            return None;
        }
        // A writer waits; or there is no usable answer, which the next request says as well.
        _ => return None,
    }
    let mut state = queue.lock();
    if state.life != Life::Open {
        // `entry` was made before the lock was taken, so its drop comes after the unlock (Q5).
        return None; // B6
    }
    // The server has said that no writer waits: a new budget begins.
    state.handoffs = 0;
    state.since = asked;
    state.admit_readers(&hold);
    queue.go_on(queues, state, Start::Ask);
    Some(entry)
}

// How many permits of a semaphore there are: what the waiters of this process say, and where no client has set it. There a caller whose
// time is up is told so, and one that waits on is warned.

#[derive(Debug, thiserror::Error)]
#[error(
    "the semaphore has no permits; set them: permits(n) does where no client has, or call try_set_permits(n)"
)]
struct NoPermits;

impl QueueState {
    /// The number of permits that the driver says for all waiters (L4), and not for the first alone: the latest that also counts where the
    /// server has a number, or else the latest.
    pub(crate) fn permits_to_report(&self) -> Option<Permits> {
        if !self.differ {
            return self.waiters.back()?.spec.permits;
        }
        let live = self.waiters.iter().rev().filter(|w| !w.answer.is_closed());
        let mut said = live.filter_map(|waiter| waiter.spec.permits);
        let counts = said.clone().find(|n| matches!(n, Permits::Set(_)));
        counts.or_else(|| said.next())
    }

    /// Whether the server is to be told this number, which may change how many permits there are.
    pub(crate) fn is_unreported(&self, number: Option<Permits>) -> bool {
        match number {
            None => false,
            Some(Permits::TrySet(_)) => self.unset,
            Some(_) => {
                let ticket = self.remote.as_ref().and_then(|r| r.ticket.as_ref());
                ticket.is_none_or(|ticket| ticket.said != number)
            }
        }
    }
}

impl Queue {
    /// Notes whether the server says so, and warns of it once.
    pub(crate) fn note_unset(&self, queues: &Queues, state: &mut QueueState, answer: &Acquired) {
        let before = std::mem::replace(&mut state.unset, *answer == Acquired::Unset);
        if state.unset && !before {
            let name = self.id.name.clone();
            // Not under the queue's lock, as other warnings.
            queues.spawn(async move {
                user_callback::catch_panic(|| {
                    tracing::warn!(target: "leasehold", %name, "waiting for a permit: {NoPermits}");
                });
            });
        }
    }

    /// The answer to a caller that waits no longer for what others have.
    pub(crate) fn busy(&self, state: &QueueState, spec: Spec) -> WaitResult {
        // A caller that says a number itself need not set it.
        if state.unset && spec.permits.is_none() {
            return Err(self.no_permits(spec));
        }
        Ok(None)
    }

    /// Warns of a caller that wants more permits than its own handle says there are. Other clients may have set more.
    pub(crate) fn warn_of_too_many_permits(&self, spec: Spec) {
        let (Access::Permits(wanted), Some(Permits::TrySet(said))) = (spec.access, spec.permits)
        else {
            return;
        };
        if u32::from(wanted) > said {
            let name = &self.id.name;
            user_callback::catch_panic(|| {
                tracing::warn!(
                    target: "leasehold", %name, wanted, said, at = %spec.place,
                    "waiting for more permits than permits(n) says there are: they come only if somebody adds permits"
                );
            });
        }
    }

    pub(crate) fn no_permits(&self, spec: Spec) -> Error {
        self.error(Failure::Rejected(Arc::new(NoPermits)), spec)
    }
}

// Holds tell their queue how they go.

impl HoldSink for Queue {
    fn env(&self) -> &Arc<Env> {
        &self.queues
    }

    fn watchdog(&self) -> &Arc<Watchdog> {
        &self.queues.watchdog
    }

    fn id(&self) -> &LockId {
        &self.id
    }

    fn over(self: Arc<Self>, hold: &Arc<Hold>) {
        self.holder_left(&self.queues, hold);
    }

    fn abandon(&self, hold: &Hold) {
        pending_release::abandon(&self.queues, &self.id, PendingRelease::of(hold));
    }

    fn note_detached(&self, lease: LeaseId, within: Duration) {
        self.queues.note_detached(lease, within);
    }

    fn give_back(self: Arc<Self>, hold: Arc<Hold>, guard: Gone) -> GivenBack {
        match begin_release(&self, hold, guard) {
            ReleaseStep::Done(answer) => GivenBack::Done(answer),
            ReleaseStep::ToServer(release) => GivenBack::UnderWay(release.finish()),
            ReleaseStep::Downgrade(downgrade) => GivenBack::UnderWay(downgrade.finish()),
        }
    }

    fn drop_guard(self: Arc<Self>, hold: Arc<Hold>, guard: Gone) {
        match begin_release(&self, hold, guard) {
            ReleaseStep::Done(_) => {}
            ReleaseStep::ToServer(release) => release.in_background(),
            ReleaseStep::Downgrade(downgrade) => downgrade.in_background(),
        }
    }

    fn detach(self: Arc<Self>, hold: Arc<Hold>, guard: Gone) {
        match hold.leave(guard) {
            Left::Nothing => hold.detach(),
            Left::Holds { count, .. } => write_count_in_background(&self.queues, &hold, count),
            Left::Readers { .. } => {
                if let Some(downgrade) = begin_downgrade(&self, &hold) {
                    downgrade.in_background();
                }
            }
        }
    }
}
