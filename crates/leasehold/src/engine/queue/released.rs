//! How a queue goes on after a release.

use std::sync::Arc;

use crate::{
    backend::{InARow, ReleaseReply},
    clock::Tick,
    engine::{
        hold::{Hold, spec::Spec},
        local::{locked::Locked, turns::Turns},
        queue::{Life, Phase, Queue, QueueState, Start, map::Queues, release::ReleaseAnswer},
    },
    kind::Access,
    owner::LeaseId,
};

impl Queue {
    /// The server answered a release.
    pub(crate) fn released(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        (next, holds): (Option<NextTicket>, Option<InARow>),
        answered: &ReleaseAnswer,
        silent: bool,
    ) {
        let core = &self.core;
        let ReleaseAnswer {
            answer,
            sent,
            queued,
        } = *answered;
        self.look_for_classic(core);
        let is_permits = matches!(hold.spec().access, Access::Permits(_));
        let now = core.clock.now();
        let mut state = self.lock();
        self.note_who_waits(&mut state, answered, holds, is_permits, now);
        if let Some(next) = next
            && let Some(ticket) = state.remote().ticket(next.lease)
        {
            match answer {
                ReleaseReply::Kept { remaining, tokens } => {
                    // B1: the time left is that of the reply to this very send.
                    let granted = ticket.granted(sent, remaining, tokens);
                    if let Some(kept) = self.seat(core, &mut state, granted) {
                        if kept.spec().access.is_exclusive() {
                            drop(state);
                        } else {
                            self.go_on(core, state, Start::Ask);
                        }
                        kept.watch(sent);
                        core.events.tell();
                        return;
                    }
                }
                // Not queued, and not kept: the server does not have it, unless by an earlier copy.
                ReleaseReply::Freed { others: 0, .. } | ReleaseReply::NotOurs if !silent => {
                    ticket.refused();
                }
                _ if !queued && !silent => ticket.refused(),
                _ => {}
            }
        }
        let start = match answer {
            // It has no place.
            _ if hold.spec().waits.is_in_turn() => Start::Ask,
            // Counted from the send: this process may be stopped before its driver begins.
            ReleaseReply::Granted { lease } => Start::Wait {
                until: sent.after(lease),
            },
            // Others that do not listen either cannot be seen.
            ReleaseReply::Freed { turns, .. }
                if !state.waiters.is_empty() && !hold.spec().waits.listens() =>
            {
                core.beside.leave_turns(&self.id, turns.max(1), now, None);
                Start::Ask
            }
            _ => Start::Ask,
        };
        self.after_release(core, state, hold.lease, start);
    }

    /// What the answer to a release says of other processes, and of Redisson's waiters.
    fn note_who_waits(
        &self,
        state: &mut QueueState,
        answered: &ReleaseAnswer,
        holds: Option<InARow>,
        is_permits: bool,
        now: Tick,
    ) {
        let core = &self.core;
        let ReleaseAnswer { answer, sent, .. } = *answered;
        let began = state.since;
        if let ReleaseReply::Freed { others, turns } = answer
            && others + u64::from(turns) > 0
        {
            // Among ours, and where the server does not tell who waits, one turn; after turns that none took, and where it was not asked,
            // none.
            let asked = holds.is_some_and(|it| it.holds > 0) && !is_permits;
            let turns = turns.max(u32::from(asked));
            if turns > 0 {
                let unseen = others == 0 && holds.is_some_and(|it| it.beside_unseen);
                core.beside.are_unseen(&self.id, unseen);
                core.beside.leave_turns(&self.id, turns, now, Some(sent));
            }
            if is_permits && others > 0 {
                core.beside.lets_ours_first(&self.id, now, sent);
            }
        }
        if let Some(remote) = &mut state.remote {
            remote.answered();
            match answer {
                ReleaseReply::Granted { .. } => {
                    remote.is_anothers(now);
                    remote.turns.shared = true;
                }
                ReleaseReply::Kept { .. } => {
                    remote.turns.shared = core.beside.holds_to_tell(&self.id, 1, now).is_some();
                }
                ReleaseReply::Freed {
                    others: 0,
                    turns: 0,
                } => remote.turns = Turns::new(),
                ReleaseReply::Freed { others, .. } => {
                    remote.turns.shared = true;
                    if is_permits && others > 0 {
                        remote.turns.races(now, began);
                    }
                }
                ReleaseReply::NotOurs => {}
            }
        }
    }

    /// The queue goes on after this release, unless another actor has it meanwhile: then the hold was shared.
    pub(crate) fn after_release(
        self: &Arc<Self>,
        core: &Arc<Queues>,
        mut state: Locked<'_, QueueState>,
        lease: LeaseId,
        start: Start,
    ) {
        let start = match (start, state.shared.released(lease)) {
            (Start::Ask, true) => Start::AskNow,
            (other, _) => other,
        };
        if matches!(&state.phase, Phase::Releasing(present) if *present == lease) {
            self.go_on(core, state, start);
        }
    }
}

/// The ticket under which this process goes on after a release, which is its ask.
#[derive(Clone, Copy)]
pub(crate) struct NextTicket {
    pub(crate) lease: LeaseId,
    /// The name may stay with this process.
    pub(crate) stays: bool,
}

/// How this process goes on after the release, if a waiter is left: under a ticket of its own, whose first ask the release
/// is (B3).
pub(crate) fn next(
    core: &Arc<Queues>,
    state: &mut Locked<'_, QueueState>,
    spec: &Spec,
) -> Option<NextTicket> {
    if state.life != Life::Open {
        return None; // B6
    }
    let waiter = state.first_live_waiter()?;
    let held_until = state.since;
    let remote = state.remote();
    remote.is_anothers(held_until);
    if !waiter.waits.listens() || waiter.waits.is_in_turn() {
        // Clients that do not listen cannot be seen: what is kept here would be kept from them for ever. And where the
        // order is the server's, the next ask is one of many.
        return None;
    }
    // A holder's queue has no ticket (B5), so there is none with other terms.
    let ticket = remote.ticket_for(core, waiter.terms())?;
    Some(NextTicket {
        lease: ticket.lease(),
        stays: spec.serves(&waiter) && spec.handoff.is_on(),
    })
}
