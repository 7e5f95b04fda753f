//! Makes the connections for subscriptions, also the one that takes the place of another whose login ends.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    backend::{
        Failure,
        redis::{
            connect::{DialProgress, SubscriptionLink},
            discovery::Discovery,
            restart::Generation,
            silence::Silence,
        },
    },
    backoff::Backoff,
    error::Cause,
    user_callback,
};

/// A connection, and when another is to take its place.
pub(super) type Dialled = (SubscriptionLink, Option<Instant>);

/// Between connections; after a connection on which a subscription came about, no pause.
pub(super) const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

pub(super) async fn dial(
    discovery: &Discovery,
    (changes, silence): (&mut watch::Receiver<Generation>, &Silence),
    timeout: Duration,
) -> Result<Dialled, Cause> {
    let progress = DialProgress::default();
    let dialling = async {
        loop {
            // Before it is known where the server is: a later change then breaks what is made here.
            changes.mark_unchanged();
            let began = Instant::now();
            let cause = |failure: Failure| Arc::clone(failure.cause());
            let target = discovery.find().await.map_err(cause)?.target;
            tokio::select! {
                biased;
                connected = target.subscriptions(&progress) => {
                    let failed = |error| cause(target.failure(error, timeout, &progress));
                    let (connected, renew_at) = connected.map_err(failed)?;
                    return Ok((connected, renew_at));
                }
                // Another server is the primary now, so this attempt is of no use any more.
                Ok(()) = changes.changed() => {}
                // The fault that took down another connection may have taken down this attempt, too (bug 261).
                () = silence.after(began) => {}
            }
        }
    };
    let dialled = tokio::time::timeout(timeout, dialling).await;
    dialled.unwrap_or_else(|_| Err(progress.silent(timeout)))
}

/// The connection that takes the place of one whose login ends. It is there before the old one goes.
pub(super) async fn successor(
    (discovery, (mut changes, silence)): (Arc<Discovery>, (watch::Receiver<Generation>, Silence)),
    timeout: Duration,
    renew_at: Option<Instant>,
) -> Dialled {
    let Some(at) = renew_at else {
        return std::future::pending().await;
    };
    tokio::time::sleep_until(at.into()).await;
    let mut backoff = AGAIN;
    loop {
        match dial(&discovery, (&mut changes, &silence), timeout).await {
            Ok(next) => return next,
            // Waiters do not suffer yet: the connection with the old login still hears.
            Err(cause) => user_callback::catch_panic(
                || tracing::debug!(target: "leasehold", server = %discovery, %cause, "login for subscriptions not renewed, trying again"),
            ),
        }
        tokio::time::sleep(backoff.next()).await;
    }
}
