//! How a queue goes on after a release.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{ReleaseReply, Stays},
    engine::hold::Hold,
    engine::local::locked::Locked,
    engine::queue::map::Queues,
    engine::queue::release::ReleaseAnswer,
    engine::queue::{Phase, Queue, QueueState, Start},
    kind::Access,
    owner::LeaseId,
};

impl Queue {
    /// The server answered a release.
    pub(crate) fn released(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        next: Option<(LeaseId, Stays)>,
        answered: &ReleaseAnswer,
        silent: bool,
    ) {
        let core = &self.core;
        let ReleaseAnswer {
            answer,
            sent,
            queued,
        } = *answered;
        let among_racers = next.is_some_and(|(_, stays)| stays == Stays::AmongRacers);
        let is_permits = matches!(hold.spec().access, Access::Permits(_));
        let mut state = self.lock();
        let began = state.since;
        if let Some(remote) = &mut state.remote {
            remote.answered();
            match answer {
                ReleaseReply::Granted { .. } => {
                    remote.held = Some(core.clock.now());
                    remote.turns.is_theirs(core.clock.now());
                }
                ReleaseReply::Kept { .. } if among_racers => {}
                ReleaseReply::Kept { .. } | ReleaseReply::Freed { others: 0 } => {
                    remote.turns.is_not_shared();
                }
                ReleaseReply::Freed { .. } if is_permits => {
                    remote.turns.races(core.clock.now(), began);
                }
                _ => {}
            }
        }
        if let Some((lease, _)) = next
            && let Some(ticket) = state.remote().ticket(lease)
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
                ReleaseReply::Freed { others: 0 } | ReleaseReply::NotOurs if !silent => {
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
            ReleaseReply::Freed { others } if others > 0 && hold.spec().access.is_exclusive() => {
                let (now, next) = (core.clock.now(), state.first_number());
                let ours = (state.handoffs + 1, now.since(sent));
                let way = state.remote().turns.gives_way(now, next, ours);
                way.map_or(Start::Ask, Start::GiveWay)
            }
            ReleaseReply::Freed { others } if others > 0 && is_permits => Start::Ask, // after a while: `Turns::left`
            ReleaseReply::Freed { others } if others > 0 => Start::GiveWay(Duration::ZERO),
            // Others that do not listen either cannot be seen.
            ReleaseReply::Freed { .. }
                if !state.waiters.is_empty() && !hold.spec().waits.listens() =>
            {
                Start::GiveWay(Duration::ZERO)
            }
            _ => Start::Ask,
        };
        self.after_release(core, state, hold.lease, start);
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
