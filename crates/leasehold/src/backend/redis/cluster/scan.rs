//! While a client holds locks, or waits, the table is asked for in each interval: a node that was replaced says nothing to a client that
//! sends it nothing, and the one in its place may not know what is held.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::background::sleep_until;

pub(super) struct Scan {
    /// Zero: never.
    every: Duration,
    /// Something was sent since the client was last found to hold nothing.
    is_on: AtomicBool,
    begins: Notify,
}

impl Scan {
    pub(super) fn new(every: Duration) -> Scan {
        Scan {
            every,
            // Where it is turned off, `begin` finds it on and has nothing to notify.
            is_on: AtomicBool::new(every.is_zero()),
            begins: Notify::new(),
        }
    }

    /// A request is sent, so that locks may be held soon. The call is mostly a single atomic load.
    pub(super) fn begin(&self) {
        if !self.is_on.load(Ordering::Relaxed) && !self.is_on.swap(true, Ordering::AcqRel) {
            self.begins.notify_one();
        }
    }

    /// Completes when the table is to be asked for, an interval after it was asked for last, or after the first request of a client that
    /// had nothing to do. `is_busy`: whether the client holds a lock, or waits for one.
    pub(super) async fn due(&self, asked: Instant, is_busy: impl Fn() -> bool) {
        if self.every.is_zero() {
            return std::future::pending().await;
        }
        let mut since = asked;
        loop {
            if !self.is_on.load(Ordering::Acquire) {
                self.begins.notified().await;
                // A table of long ago is no reason to ask at once: nothing was held until now.
                since = Instant::now();
            }
            sleep_until(since + self.every).await;
            // First this, then the look: a lock that is not seen there comes later, and begins again.
            self.is_on.store(false, Ordering::Release);
            if is_busy() {
                self.is_on.store(true, Ordering::Release);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(2);

    /// How long it takes, if it completes within a minute.
    async fn takes(scan: &Scan, asked: Instant, is_busy: bool) -> Option<Duration> {
        let began = Instant::now();
        let due = scan.due(asked, || is_busy);
        let due = tokio::time::timeout(Duration::from_secs(60), due).await;
        due.ok().map(|()| began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_due_in_each_interval_while_the_client_is_busy_and_else_never() {
        let scan = Scan::new(EVERY);
        let asked = Instant::now();
        assert_eq!(takes(&scan, asked, true).await, None, "nothing was sent");
        scan.begin();
        assert_eq!(takes(&scan, asked, false).await, None, "nothing is held");
        scan.begin();
        let is_about = |took: Option<Duration>, expected: Duration| {
            let took = took.expect("it is held");
            assert!(
                took >= expected && took < expected + Duration::from_millis(10),
                "{took:?}"
            );
        };
        is_about(takes(&scan, Instant::now(), true).await, EVERY);
        let asked = Instant::now();
        tokio::time::advance(EVERY / 2).await;
        is_about(takes(&scan, asked, true).await, EVERY / 2);
        let off = Scan::new(Duration::ZERO);
        off.begin();
        assert_eq!(takes(&off, asked, true).await, None, "it is off");
    }
}
