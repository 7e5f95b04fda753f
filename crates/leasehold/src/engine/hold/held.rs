//! A holder's part of a hold, which a guard wraps. Its drop gives it back.

use std::{
    future::{Future, ready},
    sync::Arc,
};

use futures_util::future::Either;

use crate::{
    Error, Released,
    engine::hold::{GivenBack, Gone, Hold},
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
    /// Around the time in which its guard lives, if `tracing` is to tell of it. It fits into the struct's padding.
    pub(crate) scope: Scope,
}

impl Held {
    /// For a holder whose entry is counted on the server.
    pub(crate) fn new(hold: Arc<Hold>) -> Held {
        Held::inside(hold, false)
    }

    /// As [`new`](Held::new), for an owner that has entered again, perhaps only to read.
    pub(crate) fn inside(hold: Arc<Hold>, reads: bool) -> Held {
        // A guard counts as a handle of its client: the drop of the last of all waits until dropped guards are given back (bug 172).
        hold.env().handle_made();
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
        hold.env().handle_made();
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
        // No `drain` after it, even for the last handle: the release of this hold has not begun, so there is nothing to wait for yet.
        self.hold.env().handle_gone();
        Arc::clone(&self.hold)
    }

    /// For a caller that waits for the answer. It is carried out whether or not that is polled.
    pub(crate) fn give_back(self) -> impl Future<Output = Result<Released, Error>> {
        let guard = self.gone();
        let hold = self.defuse();
        match hold.sink().give_back(hold, guard) {
            GivenBack::Done(answer) => Either::Left(ready(answer)),
            GivenBack::UnderWay(release) => Either::Right(release),
        }
    }

    /// Leaves the name held on the server, unless others share the hold.
    pub(crate) fn detach(self) {
        let guard = self.gone();
        let hold = self.defuse();
        hold.sink().detach(hold, guard);
    }

    fn gone(&self) -> Gone {
        Gone {
            counted: self.counted,
            reads: self.reads,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let hold = Arc::clone(&self.hold);
        // The release comes first: the last handle's drop waits for it, and a program that ends leaves no name taken (bug 172).
        hold.sink().drop_guard(hold, self.gone());
        let env = self.hold.env();
        if env.handle_gone() {
            env.drain();
        }
    }
}

// There is one for each name that is held (docs/performance.md, P9).
const _: () = assert!(size_of::<Held>() <= 16);
