//! As many as there are permits, and those of a holder that died never come back.

use std::time::Duration;

use super::{Rules, StoredHold, leased_semaphore::LeasedSemaphoreRules};
use crate::kind::Access;

pub(super) struct SemaphoreRules;

impl Rules for SemaphoreRules {
    fn fits(&self, held: &[StoredHold], access: Access, permits: i64) -> bool {
        LeasedSemaphoreRules.fits(held, access, permits)
    }

    fn has_queue(&self) -> bool {
        false
    }

    fn counts(&self) -> bool {
        false
    }

    /// No holder's permits come back by themselves.
    fn ends(&self, _held: &[StoredHold]) -> Option<Duration> {
        None
    }
}
