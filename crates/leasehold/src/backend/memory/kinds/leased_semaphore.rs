//! As many as there are permits. Clients race for them, as Redisson's do.

use std::time::Duration;

use super::{Rules, StoredHold};
use crate::kind::Access;

pub(super) struct LeasedSemaphoreRules;

/// How many permits are out.
pub(crate) fn taken(held: &[StoredHold]) -> i64 {
    let permits = held.iter().map(|held| match held.access {
        Access::Permits(count) => i64::from(count),
        _ => 0,
    });
    permits.sum()
}

impl Rules for LeasedSemaphoreRules {
    fn fits(&self, held: &[StoredHold], access: Access, permits: i64) -> bool {
        let Access::Permits(count) = access else {
            return false;
        };
        permits - taken(held) >= i64::from(count)
    }

    fn has_queue(&self) -> bool {
        false
    }

    /// The lease that ends first gives its permits back.
    fn ends(&self, held: &[StoredHold]) -> Option<Duration> {
        held.iter().map(|held| held.ends).min()
    }
}
