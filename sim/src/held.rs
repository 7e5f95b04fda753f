//! A guard in the hands of a task: seen by the checks for exactly as long as the task can use it.

use std::{future::Future, time::Duration};

use leasehold::{
    Access, Error, Guard, Released,
    sim::{Look, Probe},
};

use crate::shared::{GivenBack, LETTERS, NAMES, Visible, World};

pub struct Held {
    guard: Option<Guard>,
    pub id: u64,
    pub client: u8,
    pub name: u8,
    pub holder: u64,
    world: World,
}

impl Held {
    pub fn new(world: &World, guard: Guard, client: u8, name: u8, holder: Option<u64>) -> Held {
        let probe = guard.probe();
        let mut shared = world.lock();
        let id = shared.number();
        let holder = holder.unwrap_or(id);
        shared.say(|| {
            format!(
                "client {}  has a guard of {} (#{}, {:?})",
                LETTERS[usize::from(client)],
                NAMES[usize::from(name)],
                probe.lease(),
                probe.look(),
            )
        });
        shared.guarded.insert((client, probe.lease()));
        let since = shared.now;
        let writes = probe.access() == Access::Exclusive;
        shared.guards.push(Visible {
            id,
            since,
            writes,
            name,
            client,
            holder,
            probe,
        });
        Held {
            guard: Some(guard),
            id,
            client,
            name,
            holder,
            world: World::clone(world),
        }
    }

    pub fn guard(&self) -> Option<&Guard> {
        self.guard.as_ref()
    }

    /// As the checks see it.
    pub fn visible(&self) -> Option<Visible> {
        let shared = self.world.lock();
        let mut guards = shared.guards.iter();
        guards.find(|visible| visible.id == self.id).cloned()
    }

    fn take(&mut self, how: &str) -> Option<Guard> {
        let guard = self.guard.take()?;
        let mut shared = self.world.lock();
        let id = self.id;
        shared.guards.retain(|visible| visible.id != id);
        let (name, now) = (usize::from(self.name), shared.now);
        shared.last_seen[name] = now;
        shared.say(|| {
            let (client, name) = (LETTERS[usize::from(self.client)], NAMES[name]);
            format!(
                "client {client}  {how} its guard of {name} (#{})",
                guard.probe().lease()
            )
        });
        drop(shared);
        Some(guard)
    }

    /// The guard itself, for a change after which it is looked at again. Until then its hold stays in sight: a future has it.
    pub fn into_guard(mut self) -> Option<(Guard, Changing)> {
        let visible = self.visible()?;
        let guard = self.take("changes")?;
        self.world.lock().guards.push(visible);
        Some((guard, Changing(self.id, World::clone(&self.world))))
    }

    /// Gives the name back, and has the answer judged.
    pub fn release(mut self) -> impl Future<Output = Option<Result<Released, Error>>> + Send {
        let guard = self.take("releases");
        let (world, client, name) = (World::clone(&self.world), self.client, self.name);
        async move {
            let guard = guard?;
            let probe = guard.probe();
            let lease = probe.lease();
            let was_valid = is_valid(&probe);
            let was_over = !matches!(probe.look(), Look::Valid(_));
            let answer = guard.release().await;
            world.lock().given_back.push(GivenBack {
                client,
                name,
                lease,
                was_valid,
                was_over,
                is_valid: is_valid(&probe),
                answer: answer.clone().map_err(|error| error.to_string()),
            });
            Some(answer)
        }
    }

    pub fn detach(mut self) {
        if let Some(guard) = self.take("detaches") {
            let probe = guard.probe();
            let lease = probe.lease();
            let was_valid = is_valid(&probe);
            let _ = guard.detach();
            // Unless others share the hold, and keep it; or it was lost, and is given up.
            if was_valid && !is_valid(&probe) {
                let mut shared = self.world.lock();
                shared.detached.insert((self.client, lease), self.name);
            }
        }
    }
}

/// A hold whose guard is in a future that changes it.
pub struct Changing(u64, World);

impl Drop for Changing {
    fn drop(&mut self) {
        let mut shared = self.1.lock();
        shared.guards.retain(|visible| visible.id != self.0);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.take("drops"));
    }
}

/// Not one that ends at this very moment: the engine's clock is a few nanoseconds ahead.
pub fn is_valid(probe: &Probe) -> bool {
    matches!(probe.look(), Look::Valid(left) if left > Duration::from_micros(10))
}
