//! How a queue goes on after a release.

use std::sync::Arc;

use super::{Locked, Phase, Queue, driver::Start, release::ReleaseAnswer};
use crate::{
    backend::ReleaseReply, engine::core::Core, engine::hold::Hold, events::EventKind,
    owner::LeaseId,
};

impl Queue {
    /// The server answered a release.
    pub(super) fn released(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        next: Option<LeaseId>,
        answered: &ReleaseAnswer,
        silent: bool,
    ) {
        let core = &hold.core;
        let ReleaseAnswer {
            answer,
            sent,
            queued,
        } = *answered;
        let mut state = self.lock();
        if let Some(remote) = &mut state.remote {
            remote.answered();
            if matches!(answer, ReleaseReply::Granted { .. }) {
                remote.known.is_said(core.clock.now());
            }
        }
        if let Some(lease) = next
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
                        core.events
                            .tell(&self.id.name, kept.lease, EventKind::HandedOver);
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
            // Counted from the send: this process may be stopped before its driver begins.
            ReleaseReply::Granted { lease } => Start::Wait {
                until: sent.after(lease),
            },
            ReleaseReply::Freed { others } if others > 0 => Start::GiveWay,
            // Others that do not listen either cannot be seen.
            ReleaseReply::Freed { .. }
                if !state.waiters.is_empty() && !hold.spec().waits.listens() =>
            {
                Start::GiveWay
            }
            _ => Start::Ask,
        };
        self.after_release(core, state, hold.lease, start);
    }

    /// The queue goes on after this release, unless another actor has it meanwhile: then the hold was shared.
    pub(super) fn after_release(
        self: &Arc<Self>,
        core: &Arc<Core>,
        mut state: Locked<'_>,
        lease: LeaseId,
        start: Start,
    ) {
        let start = match (start, state.shared.released(lease)) {
            (Start::Ask, true) => Start::AskNow,
            (other, _) => other,
        };
        if matches!(&state.phase, Phase::Releasing(present, _) if *present == lease) {
            self.go_on(core, state, start);
        }
    }
}
