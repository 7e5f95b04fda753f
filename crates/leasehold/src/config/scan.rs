//! How often the table of a cluster is asked for.

use std::time::Duration;

use super::{LEASE_MAX, no_longer_than_a_year};
use crate::{
    durations::humane,
    error::{Error, Invalid},
};

/// How often a client of a cluster asks who has which slot while it holds locks.
///
/// From a failover of which no node tells it, a lock that the new primary does not know is believed for that long. Redisson's `scanInterval`,
/// which is 5 s.
pub const SCAN_INTERVAL_DEFAULT: Duration = Duration::from_secs(2);

/// The table of a cluster is asked for no more often than that.
const SCAN_INTERVAL_MIN: Duration = Duration::from_millis(200);

/// Zero turns it off.
pub(super) fn check(every: Duration) -> Result<(), Error> {
    let limit = if every.is_zero() {
        return Ok(());
    } else if every < SCAN_INTERVAL_MIN {
        format!("at least {}, or zero", humane(SCAN_INTERVAL_MIN))
    } else if every > LEASE_MAX {
        no_longer_than_a_year()
    } else {
        return Ok(());
    };
    let usual = humane(SCAN_INTERVAL_DEFAULT);
    let remedy =
        format!("leave it out for {usual}, or say zero to ask only when there is reason to");
    Err(Invalid::new("scan_interval", humane(every), limit)
        .remedy(remedy)
        .into())
}
