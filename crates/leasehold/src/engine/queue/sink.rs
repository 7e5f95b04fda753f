//! A queue is what its holds tell.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::claim::debt,
    engine::claim::debt::Debt,
    engine::env::Env,
    engine::hold::watchdog::Watchdog,
    engine::hold::{GivenBack, Gone, Hold, HoldSink, Left},
    engine::queue::Queue,
    engine::queue::count::write_count_in_background,
    engine::queue::downgrade::begin_downgrade,
    engine::queue::release::{ReleaseStep, begin_release},
    name::LockId,
    owner::LeaseId,
};

impl HoldSink for Queue {
    fn env(&self) -> &Arc<Env> {
        &self.core
    }

    fn watchdog(&self) -> &Arc<Watchdog> {
        &self.core.watchdog
    }

    fn id(&self) -> &LockId {
        &self.id
    }

    fn over(self: Arc<Self>, hold: &Arc<Hold>) {
        self.holder_left(&self.core, hold);
    }

    fn abandon(&self, hold: &Hold) {
        debt::abandon(&self.core, &self.id, Debt::of(hold));
    }

    fn detached(&self, lease: LeaseId, within: Duration) {
        self.core.detached(lease, within);
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
            Left::Holds { count, .. } => write_count_in_background(&self.core, &hold, count),
            Left::Readers { .. } => {
                if let Some(downgrade) = begin_downgrade(&self, &hold) {
                    downgrade.in_background();
                }
            }
        }
    }
}
