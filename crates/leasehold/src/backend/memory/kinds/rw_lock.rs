//! Many readers, or one writer. A reader lets a writer that waits go first. One of the readers may become the writer.

use super::{Rules, StoredHold};
use crate::{kind::Access, owner::LeaseId};

pub(super) struct RwLockRules;

impl Rules for RwLockRules {
    fn fits(&self, held: &[StoredHold], access: Access, _permits: i64) -> bool {
        let any = |access: Access| held.iter().any(|held| held.access == access);
        match access {
            Access::Shared => !any(Access::Exclusive),
            Access::Upgradeable => !any(Access::Exclusive) && !any(Access::Upgradeable),
            // The hold itself, and no other.
            Access::Upgrade(lease) => {
                matches!(held, [only] if only.lease.get() == lease && only.access == Access::Upgradeable)
            }
            Access::Exclusive | Access::Permits(_) => held.is_empty(),
        }
    }

    fn gives_way(&self, newcomer: Access, queued: Access) -> bool {
        !newcomer.keeps_readers_out() && queued.keeps_readers_out()
    }

    fn is_passed_by(&self, queued: Access) -> bool {
        !queued.keeps_readers_out()
    }

    fn owner(&self, client: &str, access: Access, lease: LeaseId) -> String {
        let form = match access {
            Access::Exclusive => ":write",
            Access::Upgradeable => ":upgrade",
            _ => "",
        };
        format!("{client}:{lease}{form}")
    }
}
