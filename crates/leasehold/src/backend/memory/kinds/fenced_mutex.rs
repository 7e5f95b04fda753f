//! A single holder at a time, each with a fencing token.

use super::{Rules, StoredHold};
use crate::kind::Access;

pub(super) struct FencedMutexRules;

impl Rules for FencedMutexRules {
    fn fits(&self, held: &[StoredHold], _access: Access, _permits: i64) -> bool {
        held.is_empty()
    }

    fn has_tokens(&self) -> bool {
        true
    }
}
