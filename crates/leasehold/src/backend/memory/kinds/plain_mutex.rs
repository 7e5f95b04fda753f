//! A single holder at a time, and the server knows nothing but the holder.

use super::{Rules, StoredHold};
use crate::kind::Access;

pub(super) struct PlainMutexRules;

impl Rules for PlainMutexRules {
    fn fits(&self, held: &[StoredHold], _access: Access, _permits: i64) -> bool {
        held.is_empty()
    }

    fn counts(&self) -> bool {
        false
    }
}
