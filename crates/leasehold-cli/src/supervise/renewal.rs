//! Extends a lease that ends by itself, when its end comes close and CMD still runs.

use std::{convert::Infallible, future::pending, time::Duration};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, warn};

use crate::{held::Held, output::human, terms::Terms};

/// A request without an answer for that long has failed.
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// Extends the lease when it is time (see [`crate::terms`]), for as long as this is polled.
pub(crate) async fn keep(guard: &Held, terms: &Terms) -> Infallible {
    if !terms.is_fixed() {
        // The library renews it.
        return pending().await;
    }
    let (every, lease) = (terms.every(), terms.extension());
    let patience = (every / 3).clamp(Duration::from_millis(1), PATIENCE_MAX);
    let mut extend_at = terms.extend_at();
    loop {
        let remaining = guard.remaining();
        if remaining > extend_at {
            // A timer stands still while the machine sleeps, and the lease does not. So none is long.
            sleep(remaining.saturating_sub(extend_at).min(every)).await;
            continue;
        }
        let give_up = Instant::now() + patience;
        match timeout_at(give_up, guard.extend(lease)).await {
            Ok(Ok(())) => {
                debug!(lease = %human(lease), "extended the lease: the command still runs");
                // From now on as any other lease.
                extend_at = lease / 3 * 2;
            }
            Ok(Err(error)) => {
                warn!(%error, "the lease was not extended, trying again");
                sleep_until(give_up).await;
            }
            Err(_) => warn!(
                "the lease was not extended within {}, trying again",
                human(patience)
            ),
        }
    }
}
