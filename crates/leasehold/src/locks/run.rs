//! Work under a lock: it runs while the hold lasts, and is dropped when the hold is lost.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{guard::Guard, multi_guard::MultiGuard};
use crate::{
    Error, LostReason,
    engine::hold::{
        Hold, SHUTDOWN_MARGIN,
        lease::{End, margin},
    },
};

impl<K> Guard<K> {
    /// Runs `work`, and drops it the moment the hold is lost.
    ///
    /// If the hold is valid when `work` ends, its output is returned. The name stays held:
    /// [`Mutex::run`](crate::Mutex::run) locks before and releases afterwards.
    ///
    /// # Errors
    /// [`Error::Lost`]: the hold was over when `work` was last looked at. It was dropped at an `.await`, or, if it was in the
    /// middle of a poll at that moment, it may have finished and its output is discarded: do not conclude that it did not
    /// happen. Steps that it had begun may still take effect elsewhere; only a fencing token stops them.
    ///
    /// # Cancel safety
    /// As cancel safe as `work`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::{future::pending, time::Duration};
    /// use leasehold::{Client, ErrorKind};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let mutex = client.mutex("order:42").fixed_lease(Duration::from_millis(50)); // not renewed
    /// let guard = mutex.lock().await?;
    /// let error = guard.run(pending::<()>()).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Lost);
    /// # Ok(()) }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.hold().check()?;
        let mut work = pin!(work);
        // A timer does not notice that the machine slept; the clock does. So work is never polled after the end.
        let work = poll_fn(|cx| match self.hold().standing() {
            Ok(_) => self.held().scope.enter(|| work.as_mut().poll(cx)),
            Err(_) => Poll::Pending,
        });
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.hold().lost_error(reason)),
            output = work => {
                // The lease may have ended within the last poll: then the work may not have been alone.
                self.hold().check()?;
                Ok(output)
            }
        }
    }

    /// Runs work of a thread inside the span of this hold.
    #[cfg(feature = "blocking")]
    pub(crate) fn in_its_span<T>(&self, work: impl FnOnce() -> T) -> T {
        self.held().scope.enter(work)
    }

    /// Runs `work`, and gives the name back.
    pub(super) async fn run_to_end<F: Future>(self, work: F) -> Result<F::Output, Error> {
        let output = self.run(work).await?;
        // The work is done, and no failure of the release undoes it. A loss that only the release finds is told by an event.
        let _ = self.release().await;
        Ok(output)
    }
}

/// Knows of a hold without being a part of it: the guard can be given back while this is there.
#[derive(Clone)]
pub(super) struct HoldWatch(Arc<Hold>);

impl<K> Guard<K> {
    pub(super) fn watch(&self) -> HoldWatch {
        HoldWatch(Arc::clone(self.hold()))
    }
}

impl HoldWatch {
    /// As [`Guard::remaining`].
    pub(super) fn remaining(&self) -> Duration {
        self.0.standing().unwrap_or(Duration::ZERO)
    }

    /// How long the name is kept after its end, for work that is being dropped.
    pub(super) fn margin(&self) -> Duration {
        margin(self.0.spec().lease()).min(SHUTDOWN_MARGIN)
    }

    pub(super) fn lost_error(&self, reason: LostReason) -> Error {
        self.0.lost_error(reason)
    }

    /// As [`Guard::lost`]; never of a hold that is given back.
    pub(super) async fn lost(&self) -> LostReason {
        loop {
            let mut over = pin!(self.0.over.notified());
            over.as_mut().enable();
            match self.0.standing() {
                Ok(left) => tokio::select! {
                    () = over => {}
                    () = self.0.env().sleep_here(left) => {}
                },
                Err(End::Lost(reason)) => return reason,
                Err(End::Released) => return pending().await,
            }
        }
    }

    /// As [`Guard::run`]; work under a hold that is given back meanwhile goes on.
    pub(super) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let lost = || match self.0.standing() {
            Err(End::Lost(reason)) => Some(self.0.lost_error(reason)),
            _ => None,
        };
        let mut work = pin!(work);
        // A timer does not notice that the machine slept; the clock does.
        let work = poll_fn(|cx| match lost() {
            None => work.as_mut().poll(cx),
            Some(_) => Poll::Pending,
        });
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.0.lost_error(reason)),
            output = work => lost().map_or(Ok(output), Err),
        }
    }
}

impl MultiGuard {
    /// Runs `work`, and drops it the moment a part is lost.
    ///
    /// If all parts are valid when `work` ends, its output is returned. The names stay held:
    /// [`MultiLock::run`](crate::MultiLock::run) locks before and releases afterwards.
    ///
    /// # Errors
    /// [`Error::Lost`] with the name of the part: see [`Guard::run`].
    ///
    /// # Cancel safety
    /// As cancel safe as `work`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # async fn transfer() -> u32 { 42 }
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.multi_lock(["account:3", "account:7"]).lock().await?;
    /// let moved = guard.run(transfer()).await?;
    /// assert_eq!(moved, 42);
    /// assert!(guard.is_valid()); // still held
    /// # Ok(()) }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.check()?;
        let mut work = pin!(work);
        // As above.
        let work = poll_fn(|cx| {
            if self.is_valid() {
                self.scope.enter(|| work.as_mut().poll(cx))
            } else {
                Poll::Pending
            }
        });
        tokio::select! {
            biased;
            lost = self.lost_error() => Err(lost),
            output = work => {
                self.check()?;
                Ok(output)
            }
        }
    }

    /// As above.
    #[cfg(feature = "blocking")]
    pub(crate) fn in_its_span<T>(&self, work: impl FnOnce() -> T) -> T {
        self.scope.enter(work)
    }

    /// Runs `work`, and gives the names back.
    pub(super) async fn run_to_end<F: Future>(self, work: F) -> Result<F::Output, Error> {
        let output = self.run(work).await?;
        // As above.
        let _ = self.release().await;
        Ok(output)
    }
}

/// The verbs that lock, run and release. Of the kinds that are held in one way only: a read-write lock has two, and of a
/// semaphore a caller says how much of it. There, take the guard, and [`Guard::run`].
macro_rules! run_verbs {
    ($kind:ident, $make:literal) => {
        impl $kind {
            /// Waits for the lock, runs `work` under it, and gives the lock back. Returns the output of `work`.
            ///
            /// The lease is renewed meanwhile (unless it is fixed), and `work` is dropped the moment the lease is lost. `work`
            /// is not polled before the lock is held.
            ///
            /// Once `work` has finished under a lease that was valid, its output is returned. A server that does not answer the
            /// release does not change that: the release is repeated for the operation timeout (2 s; of several names, twice that) here, and then in the
            /// background, until the lease has ended there. Nor does a server that says, asked to release, that it has
            /// forgotten the lock, or gave it away by force: then `work` may not have been alone, which
            /// [`Client::events`](crate::Client::events) and a warning of `tracing` tell. Work to which that matters takes a guard
            /// instead: its [`release`](crate::Guard::release) fails exactly then; or it carries a fencing token
            /// ([`FencedMutex`](crate::FencedMutex)).
            ///
            /// # Errors
            /// - [`Error::Lost`]: the lease was lost before `work` had finished. It was dropped at an `.await`; do not
            ///   conclude that nothing of it happened ([`Guard::run`](crate::Guard::run)).
            /// - Any other, as `lock`: `work` was not polled.
            ///
            /// # Cancel safety
            /// Dropping the future while it waits for the lock is as dropping `lock()`. Later it drops `work` where that
            /// stands, and gives the lock back in the background. While the lock is being given back, the output of `work` is
            /// dropped with it.
            ///
            /// # Examples
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
            /// # async fn charge() -> u32 { 42 }
            /// let client = leasehold::Client::connect("memory:").await?;
            #[doc = concat!("let lock = client.", $make, ";")]
            /// let charged = lock.run(charge()).await?;
            /// assert_eq!(charged, 42);
            /// assert!(lock.try_lock().await?.is_some()); // it was given back
            /// # Ok(()) }
            /// ```
            #[track_caller]
            pub fn run<F: std::future::Future>(
                &self,
                work: F,
            ) -> impl std::future::Future<Output = Result<F::Output, crate::Error>> + use<F> {
                // Boxed, and an adapter: an async block would keep the work and the wait for the lock several times.
                let work = Box::pin(work);
                futures_util::FutureExt::then(self.lock(), async move |locked| {
                    locked?.run_to_end(work).await
                })
            }

            /// Waits for the lock, up to `wait`, and goes on as [`run`](Self::run). `None` if it was held all the time: then
            /// `work` was dropped without having been polled.
            ///
            /// `wait` counts from the first poll, and does not bound the work.
            /// [`Duration::ZERO`](std::time::Duration::ZERO) asks once.
            ///
            /// # Errors
            /// As [`run`](Self::run); and when `wait` is over, an error if the server could not be asked.
            ///
            /// # Cancel safety
            /// As [`run`](Self::run).
            ///
            /// # Examples
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
            /// # async fn report() {}
            /// use std::time::Duration;
            ///
            /// let client = leasehold::Client::connect("memory:").await?;
            #[doc = concat!("let lock = client.", $make, ";")]
            /// let guard = lock.lock().await?;
            /// let ran = lock.run_for(Duration::from_millis(10), report()).await?;
            /// assert!(ran.is_none()); // held by another
            /// drop(guard);
            /// let ran = lock.run_for(Duration::from_secs(1), report()).await?;
            /// assert!(ran.is_some());
            /// # Ok(()) }
            /// ```
            #[track_caller]
            pub fn run_for<F: std::future::Future>(
                &self,
                wait: std::time::Duration,
                work: F,
            ) -> impl std::future::Future<Output = Result<Option<F::Output>, crate::Error>> + use<F>
            {
                let work = Box::pin(work);
                futures_util::FutureExt::then(self.try_lock_for(wait), async move |locked| {
                    match locked? {
                        Some(guard) => guard.run_to_end(work).await.map(Some),
                        None => Ok(None),
                    }
                })
            }
        }
    };
}
pub(super) use run_verbs;
