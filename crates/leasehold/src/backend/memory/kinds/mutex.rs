//! A single holder at a time.

use super::{Rules, StoredHold};
use crate::kind::Access;

pub(super) struct MutexRules;

impl Rules for MutexRules {
    fn fits(&self, held: &[StoredHold], _access: Access, _permits: i64) -> bool {
        held.is_empty()
    }
}
