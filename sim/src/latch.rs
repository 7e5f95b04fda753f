//! The tasks of a world of latches: they set counts, count down, wait and delete, and drop futures on the way.

use std::time::Duration;

use fastrand::Rng;

use crate::{
    config::fraction,
    shared::{LatchWait, NAMES},
    tasks::{Task, choose},
};

impl Task {
    pub async fn latch(&self, r: &mut Rng, name: u8) {
        let called = NAMES[usize::from(name)];
        let latch = self.client.latch(called);
        match choose(r, &[6, 8, 6, 3, 1, 1]) {
            0 => {
                let count = r.u32(1..=4);
                self.doing(|| format!("sets {called} to {count}"));
                let set = self.maybe(latch.try_set_count(count));
                let set = set.await;
                self.say(|| format!("set: {set:?}"));
            }
            1 => {
                let by = r.u32(1..=2);
                self.doing(|| format!("counts {called} down by {by}"));
                let left = self.maybe(latch.count_down_by(by));
                let left = left.await;
                self.say(|| format!("counted down: {left:?}"));
            }
            2 => {
                self.doing(|| format!("waits for {called}"));
                let since = self.begin_to_wait(name);
                let open = self.maybe(latch.wait()).await;
                self.went_on(name, since, matches!(open, Some(Ok(()))));
                self.say(|| format!("waited: {open:?}"));
            }
            3 => {
                let most = Duration::from_nanos(fraction(self.config.lease, r.f64() * 2.0));
                self.doing(|| format!("waits for {called} for {most:?}"));
                let since = self.world.lock().now;
                let open = self.maybe(latch.wait_for(most)).await;
                self.went_on(name, since, matches!(open, Some(Ok(true))));
                self.say(|| format!("waited: {open:?}"));
            }
            4 => {
                self.doing(|| format!("deletes {called}"));
                let deleted = self.maybe(latch.delete()).await;
                self.say(|| format!("deleted: {deleted:?}"));
            }
            _ => {
                self.doing(|| format!("looks at {called}"));
                let _ = self.maybe(latch.status()).await;
            }
        }
    }

    fn begin_to_wait(&self, name: u8) -> u64 {
        let mut shared = self.world.lock();
        let since = shared.now;
        let wait = LatchWait { name, since };
        shared.latch_waits.insert((self.me, self.number), wait);
        since
    }

    /// A wait has ended, with an open latch or otherwise.
    fn went_on(&self, name: u8, since: u64, open: bool) {
        let mut shared = self.world.lock();
        shared.latch_waits.remove(&(self.me, self.number));
        if open && shared.zero_at[usize::from(name)] < since {
            let what = format!(
                "a wait for {} ended, and its count was not zero since it began",
                NAMES[usize::from(name)]
            );
            shared.breach("latch", "opened early", what);
        }
    }
}
