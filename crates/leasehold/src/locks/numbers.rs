//! Numbers of permits: how many one guard takes, and how many there are.

use crate::{Error, backend::Permits, error::Invalid, kind::Access};

/// The most permits that one guard holds.
const PERMITS_MOST: u16 = 1024;

/// The most permits that a semaphore of Redisson's has.
const IN_ALL_MOST: u32 = i32::MAX.unsigned_abs();

/// So many permits.
pub(super) fn so_many(permits: u32) -> Result<Access, Error> {
    if let Ok(count @ 1..=PERMITS_MOST) = u16::try_from(permits) {
        return Ok(Access::Permits(count));
    }
    let invalid = Invalid::new("permits", permits.to_string(), "between 1 and 1024")
        .remedy("take as many as the work needs; several guards, if it needs more");
    Err(invalid.into())
}

/// Checks how many permits a handle says there are, for a guard that takes so many.
pub(super) fn check_permits(
    said: Option<Permits>,
    access: Access,
) -> Result<Option<Permits>, Error> {
    if let Some(Permits::TrySet(permits) | Permits::Set(permits)) = said
        && !(1..=IN_ALL_MOST).contains(&permits)
    {
        let invalid = Invalid::new("permits", permits.to_string(), "between 1 and 2147483647");
        return Err(invalid
            .remedy("to let nothing more begin, take them away with drain_permits()")
            .into());
    }
    if let (Some(Permits::Set(said)), Access::Permits(wanted)) = (said, access)
        && u32::from(wanted) > said
    {
        // The request itself would set that number, and wait for ever.
        let limit = format!("at most {said}, since permits_exactly({said}) lets no more be there");
        return Err(Invalid::new("permits", wanted.to_string(), limit)
            .remedy("take fewer, or say a larger number")
            .into());
    }
    Ok(said)
}
