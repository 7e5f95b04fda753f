//! Guards of a read-write lock that change: downgrades, and reading under the own write lock.

use fastrand::Rng;
use leasehold::{Guard, Write};

use crate::{held::Held, tasks::Task};

impl Task {
    /// Changes a guard that writes, or leaves it as it is. `None`: it is gone.
    pub async fn change(&self, r: &mut Rng, held: Held) -> Option<Held> {
        let (name, holder) = (held.name, held.holder);
        let again = |guard: Guard| Held::new(&self.world, guard, self.me, name, Some(holder));
        let which = r.u32(0..6);
        if which == 0 {
            return Some(held);
        }
        let (guard, changing) = held.into_guard()?;
        let guard = guard.retyped::<Write>();
        match which {
            1 | 2 => {
                self.doing(|| "downgrades".to_owned());
                let reads = self.maybe(guard.downgrade()).await;
                drop(changing);
                let reads = reads?;
                let held = again(reads.ok()?.erased());
                self.world.lock().count("seen: downgraded");
                self.rest(r.u64(0..self.config.lease)).await;
                Some(held)
            }
            3 | 4 => {
                let Ok(reads) = guard.read() else {
                    return Some(again(guard.erased()));
                };
                self.doing(|| "reads what it writes".to_owned());
                let (reads, writes) = (again(reads.erased()), again(guard.erased()));
                self.rest(r.u64(0..self.config.lease)).await;
                let (first, last) = if which == 3 {
                    (writes, reads)
                } else {
                    (reads, writes)
                };
                if r.bool() {
                    drop(first);
                } else {
                    let _ = self.maybe(first.release()).await;
                }
                self.rest(r.u64(0..self.config.lease)).await;
                Some(last)
            }
            _ => Some(again(guard.erased())),
        }
    }
}
