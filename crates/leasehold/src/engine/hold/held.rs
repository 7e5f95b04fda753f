//! One holder's part of a hold, which a guard wraps. Its drop gives it back.

use std::{
    future::{Future, ready},
    sync::Arc,
};

use futures_util::future::{Either, FutureExt};

use crate::{
    Error, Released,
    engine::{
        hold::{Hold, Left},
        queue::{
            downgrade::begin_downgrade,
            enter::write_count_in_background,
            release::{ReleaseStep, begin_release},
        },
    },
    story::Scope,
};

#[derive(Debug)]
pub(crate) struct Held {
    hold: Arc<Hold>,
    /// Its entry is counted on the server; one made by [`reenter`](Held::reenter) is counted in memory only.
    counted: bool,
    /// It only reads, under a hold that writes.
    reads: bool,
    /// Not given up yet.
    live: bool,
    /// Around the time in which its guard lives, if `tracing` is to tell of it. In the padding.
    pub(crate) scope: Scope,
}

impl Held {
    /// For a holder whose entry is counted on the server.
    pub(crate) fn new(hold: Arc<Hold>) -> Held {
        Held::inside(hold, false)
    }

    /// As [`new`](Held::new), for an owner that has entered again, perhaps only to read.
    pub(crate) fn inside(hold: Arc<Hold>, reads: bool) -> Held {
        hold.core.handle_made();
        Held {
            hold,
            counted: true,
            reads,
            live: true,
            scope: Scope::default(),
        }
    }

    /// A part of the hold that has been entered, counted in memory.
    fn of(hold: &Arc<Hold>) -> Held {
        hold.core.handle_made();
        Held {
            hold: Arc::clone(hold),
            counted: false,
            reads: false,
            live: true,
            scope: Scope::default(),
        }
    }

    /// A second entry, counted in memory. The first is there, so the count is not zero.
    pub(crate) fn reenter(&self) -> Held {
        self.hold.enter(self.reads);
        let mut again = Held::of(&self.hold);
        again.reads = self.reads;
        again
    }

    /// A second entry that only reads.
    pub(crate) fn read(&self) -> Held {
        self.hold.enter(true);
        let mut reads = Held::of(&self.hold);
        reads.reads = true;
        reads
    }

    /// Another holder's part of a hold that is shared, counted in memory. `None` when the last one is on its way out.
    pub(crate) fn join(hold: &Arc<Hold>) -> Option<Held> {
        hold.enter(false)?;
        Some(Held::of(hold))
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The hold without its holder: the drop does nothing any more, and waits for nothing.
    pub(crate) fn defuse(mut self) -> Arc<Hold> {
        self.live = false;
        self.hold.core.handle_gone();
        Arc::clone(&self.hold)
    }

    fn release(self) -> ReleaseStep {
        let (counted, reads) = (self.counted, self.reads);
        begin_release(self.defuse(), counted, reads)
    }

    /// For a caller that waits for the answer. It is carried out whether or not that is polled.
    pub(crate) fn give_back(self) -> impl Future<Output = Result<Released, Error>> {
        match self.release() {
            ReleaseStep::Done(answer) => Either::Left(ready(answer)),
            ReleaseStep::ToServer(release) => Either::Right(Either::Left(release.finish())),
            ReleaseStep::Downgrade(downgrade) => {
                Either::Right(Either::Right(downgrade.finish().map(Ok)))
            }
        }
    }

    /// Leaves the name held on the server, unless others share the hold.
    pub(crate) fn detach(self) {
        let (counted, reads) = (self.counted, self.reads);
        let hold = self.defuse();
        match hold.leave(counted, reads) {
            Left::Nothing => hold.detach(),
            Left::Holds { count, .. } => write_count_in_background(&hold, count),
            Left::Readers { .. } => {
                if let Some(downgrade) = begin_downgrade(&hold) {
                    downgrade.in_background();
                }
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let hold = Arc::clone(&self.hold);
        match begin_release(hold, self.counted, self.reads) {
            ReleaseStep::Done(_) => {}
            ReleaseStep::ToServer(release) => release.in_background(),
            ReleaseStep::Downgrade(downgrade) => downgrade.in_background(),
        }
        let core = &self.hold.core;
        if core.handle_gone() {
            core.linger();
        }
    }
}

// There is one for each name that is held (docs/performance.md, P9).
const _: () = assert!(size_of::<Held>() <= 16);
