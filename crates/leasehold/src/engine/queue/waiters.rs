//! The waiters of a queue: which is next, and how each is answered.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    Error,
    clock::Tick,
    engine::claim::remote::{Remote, Subscription},
    engine::claim::ticket::Ticket,
    engine::hold::Hold,
    engine::hold::held::Held,
    engine::hold::spec::{Spec, Terms},
    engine::local::answer::WaitResult,
    engine::local::locked::Locked,
    engine::local::waiters::Waiter,
    engine::queue::map::Queues,
    engine::queue::{Phase, Queue, QueueState},
    kind::Access,
    owner::{LeaseId, OwnerId},
};

impl QueueState {
    /// How many numbers have been given to those that came.
    pub(crate) fn given(&self) -> i64 {
        self.numbers.end
    }

    /// The request of the first live waiter.
    pub(crate) fn first_live_waiter(&mut self) -> Option<Spec> {
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
            .is_some_and(|remote| remote.subscription == Subscription::Open)
    }

    /// Whether this process asks under this lease id.
    pub(crate) fn asks_under(&self, lease: LeaseId) -> bool {
        let ticket = self
            .remote
            .as_ref()
            .and_then(|remote| remote.ticket.as_ref());
        ticket.is_some_and(|ticket| ticket.lease() == lease)
    }

    /// What the server is asked for, or was.
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

    /// The server says that `asked` cannot be had, in reply to a request that was sent when this many numbers had been given. Answers
    /// the waiters that ask only once if they had come by then and want no less, or if they would overtake one that waits on. Not one
    /// that says how many permits there are, if the server is to be told that first.
    pub(crate) fn refuse_try_once(&mut self, queue: &Queue, asked: Access, given: i64) {
        if self.try_once == 0 {
            return;
        }
        let unsaid = self.is_unsaid(self.permits_to_say());
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
    pub(crate) fn took(&mut self, core: &Queues, hold: &Arc<Hold>) {
        self.handoffs = 0;
        self.unset = false;
        self.since = core.clock.now();
        let now = self.since;
        let round = self.numbers.end;
        core.beside.took(hold.id(), now);
        if let Some(remote) = &mut self.remote {
            remote.is_anothers(now); // for all others
            remote.turns.round = round;
        }
        if let Some(lineup) = core.lineup(hold.id()) {
            lineup.now_held_by(hold);
        }
        if hold.spec().access.is_exclusive() {
            self.held_by(hold);
        } else {
            self.shared.add(hold);
            self.admit_owner_of(hold);
            self.admit_readers(hold);
        }
    }

    /// A holder has the name in this process from now on.
    pub(crate) fn held_by(&mut self, hold: &Arc<Hold>) {
        self.phase = Phase::Held(Arc::clone(hold));
        self.admit_owner_of(hold);
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
            && from.serves(&next)
            && hold.hand_over(next, now)
        {
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
