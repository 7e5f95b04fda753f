//! What a driver asks for, on behalf of the first waiter.

use crate::{
    backend::Acquire,
    clock::Tick,
    engine::claim::ask::TooLate,
    engine::hold::spec::Spec,
    engine::queue::{Queue, map::Queues},
    kind::Access,
};

/// A request of a driver, and how things stood when it was sent.
pub(crate) struct Sending {
    pub(crate) step: Acquire,
    pub(crate) sent: Tick,
    pub(crate) was_granted: bool,
    pub(crate) given: i64,
    pub(crate) listening: bool,
}

impl Sending {
    /// What is asked for the first waiter; `None`: there is none, or one with other terms than the ticket's.
    pub(crate) fn of_first(
        core: &Queues,
        queue: &Queue,
        late: &mut Option<TooLate>,
    ) -> Option<Sending> {
        let mut state = queue.lock();
        let spec = state.first_live_waiter()?;
        if late
            .as_ref()
            .is_none_or(|late| late.limit() != spec.limit())
        {
            *late = Some(TooLate::new(spec));
        }
        let (listening, given) = (state.is_listening(), state.given());
        let permits = state.permits_to_say();
        let remote = state.remote();
        let ticket = remote.ticket_for(core, spec.terms())?;
        let sent = core.clock.now();
        let ask = ticket.ask(sent);
        // They may differ from ask to ask, since no belief rests on them: a late copy says a number late, and changes no hold.
        let spec = Spec { permits, ..spec };
        let mut step = spec.request(&queue.id, ticket.lease());
        // Permits are raced for.
        step.place = (listening && !matches!(spec.access, Access::Permits(_)))
            .then(|| ticket.place(core, ask));
        let was_granted = remote.granted;
        // It is asked for again, by one that waits.
        remote.leaving = None;
        remote.asks();
        Some(Sending {
            step,
            sent,
            was_granted,
            given,
            listening,
        })
    }
}
