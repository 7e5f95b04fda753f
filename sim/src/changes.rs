//! Guards of a read-write lock that change: upgrades, downgrades, and reading under the own write lock.

use std::time::Duration;

use fastrand::Rng;
use leasehold::{Error, Guard, Upgradeable, Write};

use crate::{
    config::fraction,
    held::{Changing, Held},
    shared::Waits,
    tasks::Task,
};

impl Task {
    /// Changes a guard that may upgrade, or that writes, or leaves it as it is. `None`: it is gone.
    pub async fn change(&self, r: &mut Rng, held: Held, upgradeable: bool) -> Option<Held> {
        let (name, holder) = (held.name, held.holder);
        let again = |guard: Guard| Held::new(&self.world, guard, self.me, name, Some(holder));
        let which = r.u32(0..6);
        if which == 0 {
            return Some(held);
        }
        let (guard, changing) = held.into_guard()?;
        if !upgradeable {
            return self.write_no_more(r, (guard, changing), which, again).await;
        }
        let guard = guard.retyped::<Upgradeable>();
        let (_, waits) = self.waits(Waits::Somehow, name);
        let got: Option<Result<Result<Guard, Guard>, Error>> = match which {
            1 => {
                self.doing(|| "gives up the right to upgrade".to_owned());
                let reads = self.maybe(guard.downgrade()).await;
                reads.map(|reads| reads.map(|reads| Err(reads.erased())))
            }
            2 | 3 => {
                self.doing(|| "upgrades".to_owned());
                let writes = self.maybe(guard.upgrade()).await;
                writes.map(|writes| writes.map(|writes| Ok(writes.erased())))
            }
            _ => {
                let wait = fraction(self.config.lease, r.f64() * 2.0) * u64::from(which > 4);
                let wait = Duration::from_nanos(wait);
                self.doing(|| format!("upgrades within {wait:?}"));
                let upgrade = guard.try_upgrade_for(wait);
                let got = self.maybe(upgrade).await;
                let erased = |kept: Result<_, Guard<Upgradeable>>| match kept {
                    Ok(writes) => Ok(Guard::erased(writes)),
                    Err(kept) => Err(kept.erased()),
                };
                got.map(|got: Result<Result<Guard<Write>, _>, Error>| got.map(erased))
            }
        };
        self.world.lock().waits.remove(&waits);
        drop(changing);
        match got? {
            Ok(Ok(writes)) => {
                self.world.lock().count("seen: upgraded");
                let held = again(writes);
                self.rest(r.u64(0..self.config.lease)).await;
                let which = r.u32(0..6);
                let (guard, changing) = held.into_guard()?;
                self.write_no_more(r, (guard, changing), which, again).await
            }
            Ok(Err(reads)) => {
                let held = again(reads);
                self.rest(r.u64(0..self.config.lease)).await;
                Some(held)
            }
            Err(error) => {
                self.say(|| format!("not upgraded: {error}"));
                None
            }
        }
    }

    async fn write_no_more(
        &self,
        r: &mut Rng,
        (guard, changing): (Guard, Changing),
        which: u32,
        again: impl Fn(Guard) -> Held,
    ) -> Option<Held> {
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
