//! A single holder at a time, in the order of the requests: each waiting task has an entry of its own.

use super::{Rules, StoredHold};
use crate::kind::Access;

pub(super) struct FairMutexRules;

impl Rules for FairMutexRules {
    fn fits(&self, held: &[StoredHold], _access: Access, _permits: i64) -> bool {
        held.is_empty()
    }

    fn is_in_turn(&self) -> bool {
        true
    }
}
