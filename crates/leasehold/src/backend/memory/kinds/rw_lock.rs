//! Many readers, or one writer. A reader lets a writer that waits go first.

use super::Rules;
use crate::{backend::memory::store::Held, kind::Access};

pub(super) struct RwLockRules;

impl Rules for RwLockRules {
    fn fits(&self, held: &[Held], access: Access, _permits: i64) -> bool {
        held.is_empty()
            || access == Access::Shared && held.iter().all(|held| held.access == Access::Shared)
    }

    fn gives_way(&self, wants: Access, waits: Access) -> bool {
        wants == Access::Shared && waits == Access::Exclusive
    }
}
