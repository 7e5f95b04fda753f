//! Many readers, or one writer. A reader lets a writer that waits go first.

use super::{Rules, StoredHold};
use crate::{kind::Access, owner::LeaseId};

pub(super) struct RwLockRules;

impl Rules for RwLockRules {
    fn fits(&self, held: &[StoredHold], access: Access, _permits: i64) -> bool {
        let writes = |held: &StoredHold| held.access.is_exclusive();
        held.is_empty() || access == Access::Shared && !held.iter().any(writes)
    }

    fn gives_way(&self, newcomer: Access, queued: Access) -> bool {
        !newcomer.is_exclusive() && queued.is_exclusive()
    }

    fn owner(&self, client: &str, access: Access, lease: LeaseId) -> String {
        let form = if access.is_exclusive() { ":write" } else { "" };
        format!("{client}:{lease}{form}")
    }
}
