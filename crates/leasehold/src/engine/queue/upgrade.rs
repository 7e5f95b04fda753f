//! A hold that may upgrade becomes the writer's, once it is the only one.
//!
//! Its request waits as any other does: in front of all, for none of them can have the name before, under a ticket of its own.
//! The hold keeps its lease id, and its term: what is believed is that the lease lasts, and the server's word that it writes
//! holds for as long (a lease id goes from a reader that may upgrade to a writer, and from there to a reader, and never back). So
//! a grant that is heard late proves no more than it should, and a request that is given up leaves the hold as it was.

use std::{panic::Location, sync::Arc, time::Duration};

use super::{Locked, Patience, Queue, Spec, WaitResult, Waits, enter::acquire};
use crate::{
    Error, LostReason,
    config::Backoff,
    engine::{core::Core, held::Held, hold::Hold},
    kind::Access,
};

/// Makes an upgradeable hold the writer's. `None`: others read still. The caller watches for the end of the hold.
pub(crate) async fn upgrade(
    hold: &Arc<Hold>,
    patience: Patience,
    place: &'static Location<'static>,
) -> WaitResult {
    let spec = Spec {
        access: Access::Upgrade(hold.lease.get()),
        owner: None,
        ahead: false,
        // Redisson's readers tell no waiter when they leave a reader of ours behind.
        waits: Waits::ToldOrLooks(Backoff::PLAIN),
        place,
        ..hold.spec()
    };
    loop {
        hold.check()?;
        let got = acquire(&hold.core, &hold.queue.id, spec, patience).await;
        if matches!(got, Err(Error::Lost { .. })) {
            hold.check()?; // which says how
        }
        let got = got?;
        if got.is_some() || patience != Patience::Forever {
            hold.check()?;
            return Ok(got);
        }
        // The hold is just ending. Its end is told in a moment.
        hold.core.sleep_here(Duration::from_millis(10)).await;
    }
}

impl Queue {
    /// The server says that a hold of ours writes from now on: for the waiters that asked for it under the present ticket. `None` if it
    /// is over, or its last holder on the way out.
    pub(super) fn seat_upgraded(
        self: &Arc<Self>,
        core: &Arc<Core>,
        state: &mut Locked<'_>,
        access: Access,
    ) -> Option<Arc<Hold>> {
        let (hold, part) = state.becomes_writers(access)?;
        let remote = state.remote();
        remote.ticket = None;
        remote.granted = false;
        remote.answered();
        let first = state.first_live_waiter().map(|first| first.access);
        let waiter = (first == Some(access)).then(|| state.pop_waiter());
        match waiter.flatten() {
            Some(waiter) => state.deliver_shared(waiter, part),
            None => state.drop_later(part), // it has left
        }
        state.serve_upgraded(&hold, access);
        drop(self.stop_listening(core, state));
        Some(hold)
    }

    /// The hold to upgrade is over: so is the wait for that, also of a future that is not polled.
    pub(super) fn upgrades_nothing(&self, state: &mut Locked<'_>, access: Access) {
        let first = state.first_live_waiter().map(|first| first.access);
        if access.upgrades().is_some() && first == Some(access) {
            state.answer_first(Error::Lost {
                name: self.id.name.shared(),
                reason: LostReason::Replaced,
            });
        }
    }

    /// The server says that the hold to upgrade is over. Not under the queue's lock.
    pub(super) fn lose_upgradeable(&self, access: Access) {
        let Some(lease) = access.upgrades() else {
            return;
        };
        let hold = self.lock().shared.of_lease(lease).cloned();
        if let Some(hold) = hold {
            hold.lose(LostReason::Replaced);
        }
    }
}

impl Locked<'_> {
    /// The same, for a caller that asked for it: its part of the hold.
    pub(super) fn upgraded(&mut self, access: Access) -> Option<Held> {
        let (hold, part) = self.becomes_writers(access)?;
        self.serve_upgraded(&hold, access);
        Some(part)
    }

    /// It is not shared any more. With the writer's part of it.
    fn becomes_writers(&mut self, access: Access) -> Option<(Arc<Hold>, Held)> {
        let hold = Arc::clone(self.shared.of_lease(access.upgrades()?)?);
        let part = Held::upgrade(&hold)?;
        self.shared.remove(&hold);
        Some((hold, part))
    }

    /// Other guards of the hold may wait for the same; then it is the holder in this process.
    fn serve_upgraded(&mut self, hold: &Arc<Hold>, access: Access) {
        while self.first_live_waiter().map(|first| first.access) == Some(access)
            && let Some(part) = Held::join(hold)
        {
            match self.pop_waiter() {
                Some(waiter) => self.deliver_shared(waiter, part),
                None => self.drop_later(part),
            }
        }
        self.took(hold);
    }
}
