//! How long leases, intervals and holds may be.

use std::time::Duration;

use super::{INTERVAL_MIN, LEASE_MAX, LEASE_MIN, RENEWALS_PER_LEASE, RENEWED_MIN, millis};
use crate::{
    durations::humane,
    error::{Error, Invalid},
};

pub(super) fn no_longer_than_a_year() -> String {
    format!("at most {}", humane(LEASE_MAX))
}

/// A lease between 1 ms and a year, cut to whole milliseconds as the server counts it.
pub(crate) fn check_lease(what: &'static str, lease: Duration) -> Result<Duration, Error> {
    let (limit, remedy) = if lease < LEASE_MIN {
        (
            "at least 1ms".to_owned(),
            "leave it out for 30s, renewed while the guard lives",
        )
    } else if lease > LEASE_MAX {
        (
            no_longer_than_a_year(),
            "take a shorter one, which is renewed while the guard lives",
        )
    } else {
        return Ok(Duration::from_millis(millis(lease)));
    };
    let invalid = Invalid::new(what, humane(lease), limit);
    Err(invalid.remedy(remedy).into())
}

/// For how long a name is to stay taken by work that runs once in that time.
pub(crate) fn check_interval(interval: Duration) -> Result<Duration, Error> {
    let (limit, remedy) = if interval < INTERVAL_MIN {
        (
            format!("at least {}", humane(INTERVAL_MIN)),
            "take a longer one, or run(work), which frees the name when the work ends",
        )
    } else if interval > LEASE_MAX {
        (no_longer_than_a_year(), "take a shorter one")
    } else {
        return Ok(Duration::from_millis(millis(interval)));
    };
    let invalid = Invalid::new("interval", humane(interval), limit);
    Err(invalid.remedy(remedy).into())
}

/// What is to be left of a lease that is extended: of a fixed one, since a renewed one has no end.
pub(crate) fn check_extension(lease: Duration, is_fixed: bool) -> Result<Duration, Error> {
    if !is_fixed {
        let (what, value) = ("the lease to extend", "renewed while the guard lives");
        return Err(Invalid::new(what, value, "a fixed one")
            .remedy("leave the call out, or take the lock with fixed_lease(d)")
            .into());
    }
    check_lease("lease", lease).map_err(|error| match error {
        Error::Invalid(invalid) => {
            let remedy = "say how long the lease is to last from now on";
            Error::Invalid(invalid.remedy(remedy))
        }
        other => other,
    })
}

/// The longest time that one holder may keep a name. The lease is no longer than that, so a renewed one needs room for its
/// renewals.
pub(crate) fn check_max_hold(most: Duration, fixed: bool) -> Result<Duration, Error> {
    let least = if fixed { LEASE_MIN } else { RENEWED_MIN };
    let (limit, remedy) = if most < least {
        (
            format!("at least {}", humane(least)),
            "give the holder time to do its work, or leave max_hold out for no limit",
        )
    } else if most > LEASE_MAX {
        (no_longer_than_a_year(), "leave max_hold out for no limit")
    } else {
        return Ok(Duration::from_millis(millis(most)));
    };
    let invalid = Invalid::new("max_hold", humane(most), limit);
    Err(invalid.remedy(remedy).into())
}

/// A renewed lease needs room for its renewals.
pub(crate) fn check_renewed(lease: Duration) -> Result<(), Error> {
    if lease >= RENEWED_MIN {
        return Ok(());
    }
    Err(Invalid::new("lease", humane(lease), "at least 3ms")
        .remedy("take a longer one, or one that is not renewed, with fixed_lease(d)")
        .into())
}

pub(super) fn check_renewal(every: Duration, lease: Duration) -> Result<(), Error> {
    if every < LEASE_MIN || every > lease / RENEWALS_PER_LEASE {
        return Err(Invalid::new(
            "renew_every",
            humane(every),
            format!(
                "between 1ms and a third of the lease, {} for a lease of {}",
                humane(lease / RENEWALS_PER_LEASE),
                humane(lease)
            ),
        )
        .remedy("renew more often, or take a longer lease, so that two lost renewals cost nothing")
        .into());
    }
    Ok(())
}
