//! One holder's part of a hold, which a guard wraps. Its drop gives it back.

use std::sync::Arc;

use crate::engine::{
    hold::{Hold, Left},
    queue::{self, ReleaseStep},
};

#[derive(Debug)]
pub(crate) struct Held {
    hold: Arc<Hold>,
    /// Its entry is counted on the server; one made by [`reenter`](Held::reenter) is counted in memory only.
    counted: bool,
    /// Not given up yet.
    live: bool,
}

impl Held {
    /// For a holder whose entry is counted on the server.
    pub(crate) fn new(hold: Arc<Hold>) -> Held {
        Held {
            hold,
            counted: true,
            live: true,
        }
    }

    /// A second entry, counted in memory. The first is there, so the count is not zero.
    pub(crate) fn reenter(&self) -> Held {
        self.hold.enter();
        Held {
            hold: Arc::clone(&self.hold),
            counted: false,
            live: true,
        }
    }

    /// Another holder's part of a hold that is shared, counted in memory. `None` when the last one is on its way out.
    pub(crate) fn join(hold: &Arc<Hold>) -> Option<Held> {
        hold.enter()?;
        Some(Held {
            hold: Arc::clone(hold),
            counted: false,
            live: true,
        })
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The hold without its holder: the drop does nothing any more.
    pub(crate) fn defuse(mut self) -> Arc<Hold> {
        self.live = false;
        Arc::clone(&self.hold)
    }

    pub(crate) fn release(self) -> ReleaseStep {
        let counted = self.counted;
        queue::begin_release(self.defuse(), counted)
    }

    /// Leaves the name held on the server, unless others share the hold.
    pub(crate) fn detach(self) {
        let counted = self.counted;
        let hold = self.defuse();
        match hold.leave(counted) {
            Left::Nothing => hold.detach(),
            Left::Holds { count, .. } => queue::write_count_in_background(&hold, count),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let hold = Arc::clone(&self.hold);
        if let ReleaseStep::ToServer(release) = queue::begin_release(hold, self.counted) {
            release.in_background();
        }
    }
}
