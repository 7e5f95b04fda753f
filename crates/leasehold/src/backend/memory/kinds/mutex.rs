//! One at a time.

use super::Rules;
use crate::{backend::memory::store::Held, kind::Access};

pub(super) struct MutexRules;

impl Rules for MutexRules {
    fn fits(&self, held: &[Held], _access: Access, _permits: i64) -> bool {
        held.is_empty()
    }
}
