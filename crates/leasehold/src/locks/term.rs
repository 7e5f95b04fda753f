//! The term of a leader: its hold, and what it may do with it.

use std::{
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    leader_record::{LeaderRecord, WrittenRecord},
    run::HoldWatch,
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
    record: LeaderRecord,
    text: WrittenRecord,
    /// It is no term any more, for a reason of this process.
    ended: CancellationToken,
    reason: OnceLock<LostReason>,
}

/// The hold, and what goes on beside it.
struct Leading {
    guard: FencedMutexGuard,
    /// Keeps the value on the server.
    _keeps_value: Option<DropGuard>,
    /// Waits for the shutdown of the client.
    _ends_at_closing: DropGuard,
}

impl Lead {
    /// It is over for all who look. The hold is still there: the next leader cannot begin yet.
    fn over(&self, reason: LostReason) {
        // The reason comes first: a task that hears the end asks for it. A second reason changes nothing.
        let _ = self.reason.set(reason);
        self.ended.cancel();
    }

    fn end(&self) -> Option<Leading> {
        // The first caller takes the guard, and so the guard is given back once.
        let leading = self.guard.lock().take()?;
        self.over(LostReason::Unconfirmed);
        Some(leading)
    }

    /// Why it is over, if that is known before its lease ends.
    fn ended(&self) -> Option<LostReason> {
        self.ended.is_cancelled().then(|| self.why())
    }

    async fn until_ended(&self) -> LostReason {
        self.ended.cancelled().await;
        self.why()
    }

    fn why(&self) -> LostReason {
        self.reason
            .get()
            .copied()
            .unwrap_or(LostReason::Unconfirmed)
    }

    /// `None`: it was given back before.
    pub(super) async fn resign(&self) -> Option<Result<Released, Error>> {
        let Leading { guard, .. } = self.end()?;
        // Both at once: a value without its holder does not count, and the fence keeps this delete from that of the next leader.
        let (released, _) = tokio::join!(guard.release(), self.record.leave(&self.text));
        Some(released)
    }
}

/// Gives the lead back when it goes, also where another keeps the term.
pub(super) struct EndsWithWork(Arc<Lead>);

impl EndsWithWork {
    pub(super) fn new(term: &Term) -> EndsWithWork {
        EndsWithWork(Arc::clone(&term.lead))
    }

    /// Carries out `work` while the term lasts; `None`: it was dropped, since the lead was lost or the client shuts down.
    pub(super) async fn run<W: Future>(&self, watch: &HoldWatch, work: W) -> Option<W::Output> {
        let closing = async {
            // After a resignation the work goes on.
            if self.0.until_ended().await != LostReason::ClientShutdown {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = closing => None,
            output = watch.run(work) => output.ok(),
        }
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
    pub(super) fn new(guard: FencedMutexGuard, record: &LeaderRecord, text: WrittenRecord) -> Term {
        let (watch, token) = (guard.watch(), guard.token());
        let lead = Arc::new(Lead {
            // Set below: what ends with the guard needs this lead first.
            guard: Mutex::new(None),
            record: record.clone(),
            text,
            ended: CancellationToken::new(),
            reason: OnceLock::new(),
        });
        // It keeps no term, and so no guard: what is dropped ends by its drop.
        let closes = Arc::downgrade(&lead);
        let margin = watch.margin();
        let ends_at_closing = record.at_closing(async move |core| {
            if let Some(lead) = closes.upgrade() {
                lead.over(LostReason::ClientShutdown);
            }
            // Work that is being dropped at this moment is gone by then, as after a loss.
            core.sleep(margin).await;
            if let Some(lead) = closes.upgrade() {
                let _ = lead.resign().await;
            }
        });
        *lead.guard.lock() = Some(Leading {
            guard,
            _keeps_value: record.keep(lead.text.clone()),
            _ends_at_closing: ends_at_closing,
        });
        Term { lead, watch, token }
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
        match self.lead.ended() {
            Some(_) => Duration::ZERO,
            None => self.watch.remaining(),
        }
    }

    /// Waits until the term is lost, and says how. Completes before the server can give the name to the next candidate.
    ///
    /// So it does when [`Election::run`](crate::Election::run) has ended, whose term this was: [`LostReason::Unconfirmed`]. And when its client
    /// begins to shut down with [`Shutdown::ReleaseAll`](crate::Shutdown::ReleaseAll): [`LostReason::ClientShutdown`], at once, without the
    /// grace that other guards have. The name is free as soon as the term is dropped, or after a margin (1 % of the lease and 2 ms, half a second
    /// at most).
    ///
    /// # Cancel safety
    /// Cancel safe. Made for `select!`.
    pub async fn lost(&self) -> LostReason {
        tokio::select! {
            biased;
            reason = self.lead.until_ended() => reason,
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
            reason = self.lead.until_ended() => Err(self.watch.lost_error(reason)),
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
