//! Many readers, or one writer. A reader lets a writer that waits go first.

use super::{Rules, StoredHold};
use crate::kind::Access;

pub(super) struct RwLockRules;

impl Rules for RwLockRules {
    fn fits(&self, held: &[StoredHold], access: Access, _permits: i64) -> bool {
        held.is_empty()
            || access == Access::Shared && held.iter().all(|held| held.access == Access::Shared)
    }

    fn gives_way(&self, newcomer: Access, queued: Access) -> bool {
        newcomer == Access::Shared && queued == Access::Exclusive
    }
}
