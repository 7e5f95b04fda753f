//! How many different states and schedules were seen, about: each is hashed, and only the longest run of leading zeros
//! per group of hashes is kept (`HyperLogLog`, off by some 2 %).

use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold::sim::Answer;

use crate::{
    dice::mix,
    wire::{Asked, Freight},
    world::World,
};

const GROUPS: usize = 1 << 12;

/// An estimate of how many different numbers were added.
#[derive(Clone, Debug)]
pub struct Distinct(Box<[u8; GROUPS]>);

impl Default for Distinct {
    fn default() -> Self {
        Distinct(Box::new([0; GROUPS]))
    }
}

impl Distinct {
    pub fn add(&mut self, hash: u64) {
        let group = usize::try_from(hash >> 52).unwrap_or(0) % GROUPS;
        let zeros = u8::try_from((hash << 12 | 0x800).leading_zeros() + 1).unwrap_or(u8::MAX);
        self.0[group] = self.0[group].max(zeros);
    }

    pub fn merge(&mut self, other: &Distinct) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0.iter()) {
            *ours = (*ours).max(*theirs);
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub fn estimate(&self) -> u64 {
        let groups = GROUPS as f64;
        let sum: f64 = self
            .0
            .iter()
            .map(|&zeros| 0.5_f64.powi(i32::from(zeros)))
            .sum();
        let raw = 0.7213 / (1.0 + 1.079 / groups) * groups * groups / sum;
        let empty = self
            .0
            .iter()
            .map(|&zeros| usize::from(zeros == 0))
            .sum::<usize>();
        if raw <= 2.5 * groups && empty > 0 {
            return (groups * (groups / empty as f64).ln()).round() as u64;
        }
        raw.round() as u64
    }
}

/// The states that one world has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub states: Vec<u64>,
    /// All of it, in order.
    pub schedule: u64,
}

impl Seen {
    /// The server has carried out a request.
    pub fn transition(&mut self, world: &World, asked: &Asked, answer: &Answer) {
        let _ = answer;
        let mut hasher = DefaultHasher::new();
        for server in &world.servers {
            let store = server.snapshot();
            for held in &store.held {
                (&held.name, &held.client, held.holds).hash(&mut hasher);
            }
            for (name, client, _) in &store.queued {
                (name, client).hash(&mut hasher);
            }
            store.listeners.hash(&mut hasher);
            store.tombstones.min(3).hash(&mut hasher);
        }
        for process in &world.processes {
            (process.life as u8).hash(&mut hasher);
        }
        for guard in &world.shared.lock().guards {
            let valid = matches!(guard.probe.look(), leasehold::sim::Look::Valid(_));
            (guard.client, guard.name, valid).hash(&mut hasher);
        }
        for message in world.messages.values() {
            let kind = match &message.freight {
                Freight::Request { request, stray } => (request.kind as u8, u8::from(*stray)),
                Freight::Reply { request, .. } => (request.kind as u8, 2),
                Freight::Hint { hint, .. } => (u8::from(hint.granted.is_some()), 3),
            };
            (message.client, kind).hash(&mut hasher);
        }
        (asked.client, asked.kind).hash(&mut hasher);
        let state = hasher.finish();
        self.states.push(state);
        self.schedule = mix(self.schedule, state);
    }
}
