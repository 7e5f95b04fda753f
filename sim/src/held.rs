//! A guard in the hands of a task: seen by the checks for exactly as long as the task can use it.

use std::{future::Future, time::Duration};

use leasehold::{Error, Guard};

use crate::shared::{LETTERS, NAMES, Visible, World};

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
        shared.touched = true;
        let since = shared.now;
        shared.guards.push(Visible {
            id,
            since,
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

    /// Gives the name back. The one place that knows what `release` answers.
    pub fn release(mut self) -> impl Future<Output = Result<(), Error>> + Send {
        let guard = self.take("releases");
        async move {
            let Some(guard) = guard else { return Ok(()) };
            guard.release().await.map(drop)
        }
    }

    pub fn detach(mut self) {
        if let Some(guard) = self.take("detaches") {
            let lease = guard.probe().lease();
            let client = self.client;
            self.world.lock().detached.insert((client, lease));
            let left: Duration = guard.detach().remaining;
            let _ = left;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.take("drops"));
    }
}
