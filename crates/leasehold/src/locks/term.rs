//! The term of a leader: its hold, and what it may do with it.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    run::HoldWatch,
    seat::{Seat, SeatText},
};
use crate::{Error, FencedMutexGuard, LostReason, Released};

/// The time for which a candidate leads. Made by [`Election::campaign`](crate::Election::campaign).
///
/// It is valid for as long as its lease is renewed. Give it up with [`resign`](Term::resign), or drop it: the next candidate leads at
/// once. A term that [`Election::run`](crate::Election::run) hands out ends with the work instead.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Term};
///
/// async fn schedule(term: Term) {
///     println!("leads for {:?} and longer, by token {}", term.remaining(), term.token());
/// }
///
/// let client = Client::connect("memory:").await?;
/// client.election("scheduler").run(schedule).await?;
///
/// let term = client.election("scheduler").campaign().await?; // by hand
/// assert!(term.is_valid());
/// tokio::select! {
///     reason = term.lost() => println!("lost: {reason}"),
///     () = async {} => println!("the work has ended"),
/// }
/// term.resign().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lead is given up as soon as the term is dropped: bind it, as in `let term =`"]
pub struct Term {
    lead: Arc<Lead>,
    watch: HoldWatch,
    token: u64,
}

/// The hold of a term, until it is given back.
pub(super) struct Lead {
    guard: Mutex<Option<Leading>>,
    seat: Seat,
    text: SeatText,
    /// It was given back.
    ended: CancellationToken,
}

/// The hold, and what keeps its value on the server meanwhile.
struct Leading {
    guard: FencedMutexGuard,
    _keeps_value: Option<DropGuard>,
}

impl Lead {
    fn end(&self) -> Option<Leading> {
        let leading = self.guard.lock().take()?;
        self.ended.cancel();
        Some(leading)
    }

    /// `None`: it was given back before.
    pub(super) async fn resign(&self) -> Option<Result<Released, Error>> {
        let Leading { guard, .. } = self.end()?;
        // Both at once: a value without its holder does not count, and the fence keeps this delete from that of the next leader.
        let (released, _) = tokio::join!(guard.release(), self.seat.leave(&self.text));
        Some(released)
    }
}

/// Gives the lead back when it goes, also where another keeps the term.
pub(super) struct EndsWithWork(Arc<Lead>);

impl EndsWithWork {
    pub(super) fn new(term: &Term) -> EndsWithWork {
        EndsWithWork(Arc::clone(&term.lead))
    }

    /// The work has ended.
    pub(super) async fn resign(&self) -> Option<Result<Released, Error>> {
        self.0.resign().await
    }
}

impl Drop for EndsWithWork {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

impl Term {
    pub(super) fn new(guard: FencedMutexGuard, seat: &Seat, text: SeatText) -> Term {
        let (watch, token) = (guard.watch(), guard.token());
        let leading = Leading {
            guard,
            _keeps_value: seat.keep(text.clone()),
        };
        Term {
            watch,
            token,
            lead: Arc::new(Lead {
                guard: Mutex::new(Some(leading)),
                seat: seat.clone(),
                text,
                ended: CancellationToken::new(),
            }),
        }
    }

    pub(super) fn watch(&self) -> &HoldWatch {
        &self.watch
    }

    /// The fencing token of this term: larger than those of all terms before. See [`Guard::token`](crate::Guard::token).
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether this candidate leads now. Once `false`, `false` for ever. No I/O; as [`Guard::is_valid`](crate::Guard::is_valid).
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the term lasts if no renewal follows; zero if it is over.
    pub fn remaining(&self) -> Duration {
        self.watch.remaining()
    }

    /// Waits until the term is lost, and says how. Completes before the server can give the name to the next candidate.
    ///
    /// So it does when [`Election::run`](crate::Election::run) has ended, whose term this was: [`LostReason::Unconfirmed`].
    ///
    /// # Cancel safety
    /// Cancel safe. Made for `select!`.
    pub async fn lost(&self) -> LostReason {
        tokio::select! {
            biased;
            () = self.lead.ended.cancelled() => LostReason::Unconfirmed,
            reason = self.watch.lost() => reason,
        }
    }

    /// Runs `work`, and drops it the moment the term is lost, or the [`Election::run`](crate::Election::run) has ended whose term this was. The
    /// term goes on afterwards.
    ///
    /// # Errors
    /// [`Error::Lost`]: do not conclude that nothing of the work happened; see [`Guard::run`](crate::Guard::run).
    ///
    /// # Cancel safety
    /// As cancel safe as `work`.
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Error> {
        tokio::select! {
            biased;
            () = self.lead.ended.cancelled() => Err(self.watch.lost_error(LostReason::Unconfirmed)),
            output = self.watch.run(work) => output,
        }
    }

    /// Gives up the lead: the value is deleted, and the next candidate leads at once.
    ///
    /// If the server does not answer, the release is repeated in the background, as that of a guard.
    ///
    /// # Errors
    /// [`Error::Lost`]: the term was lost before; another may have led meanwhile.
    ///
    /// # Cancel safety
    /// Cancel safe: once polled, the release is carried out whether or not its caller waits. The value may be left; it does not count any more.
    ///
    /// # Source
    /// etcd `Election.Resign`.
    #[doc(alias("Resign"))]
    pub async fn resign(self) -> Result<Released, Error> {
        // Given back before: `Election::run` has ended, and this term was kept.
        self.lead.resign().await.unwrap_or(Ok(Released::Freed))
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("token", &self.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
