//! Observers and metrics, which hear of a client's locks.

use std::sync::Arc;

use super::ClientBuilder;
use crate::Event;
#[cfg(feature = "metrics")]
use crate::metrics::Metrics;

impl ClientBuilder {
    /// Calls this for each event of the client, from its first on: for metrics, logs, tests. Several observers are called in the order in
    /// which they were given. [`Event`] says what is told; [`Client::events`](crate::Client::events) tells the same to tasks.
    ///
    /// Events come one at a time, in the order in which they happened. They come inline, outside of all locks of this library, on whichever thread noticed
    /// them or is telling others at that moment: also on the thread that renews leases. **An observer must not block**: meanwhile no
    /// lease of this client may be renewed, and all events wait for it. Nor may it take a lock of yours under which you call this library, or
    /// drop a guard: the event comes within that call. It may send into a channel. An observer that panics harms no lock: the first panic
    /// is told by a warning, and the observer goes on hearing events.
    ///
    /// Observers that take 5 ms, or are slower than events come, cost one caller that and one call of each: then a thread of its own tells the rest, until they are quick again. At most 4096
    /// events wait for it. More are dropped, by pairs: a call's `Asked` with its `Answered`, a hold's start with its end, so counters still add
    /// up. A warning says so once, and the metric `leasehold_events_dropped_total` counts them.
    ///
    /// An observer lives as long as anything of the client; it must not own a handle of it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::sync::{Arc, atomic::{AtomicI64, Ordering}};
    /// use leasehold::{Client, Event, EventKind};
    ///
    /// let waiting = Arc::new(AtomicI64::new(0));
    /// let gauge = Arc::clone(&waiting);
    /// let observe = move |event: &Event| match event.kind {
    ///     EventKind::Asked => _ = gauge.fetch_add(1, Ordering::Relaxed),
    ///     EventKind::Answered { .. } => _ = gauge.fetch_sub(1, Ordering::Relaxed),
    ///     EventKind::Lost { reason, .. } => eprintln!("{} is lost: {reason}", event.name),
    ///     _ => {}
    /// };
    /// let client = Client::builder().url("memory:").observe(observe).connect().await?;
    /// client.mutex("order:42").run(async { /* … */ }).await?;
    /// assert_eq!(waiting.load(Ordering::Relaxed), 0);
    /// # Ok(()) }
    /// ```
    pub fn observe(mut self, observer: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.observers.add(Arc::new(observer));
        self
    }

    /// Counts and measures this client's locks by the crate `metrics`, for whichever recorder the program installs, before or after this.
    /// Feature `metrics`.
    ///
    /// [`docs::metrics`](crate::docs::metrics) lists the metrics, with what to do when one moves. A class that is empty, or the beginning of
    /// another, is refused when the client connects. A second call replaces the first.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, metrics::Metrics};
    ///
    /// let metrics = Metrics::new().class("order:").class("stock:"); // of other names: `other`
    /// let client = Client::builder().url("memory:").metrics(metrics).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.config.observers.set_metrics(metrics.observer());
        self
    }
}
