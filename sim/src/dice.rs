//! Where chance comes in. Every decision of the scheduler has a key (its kind, its subject, its number), and is drawn
//! from the seed and the key alone. So a decision can be taken out, and all others stay as they
//! are: that is how a failing schedule is minimised.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

/// The kinds of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// An operation of a task.
    Op,
    /// A future is dropped.
    Cancel,
    /// Something that happens at a planned moment: a freeze, a cut, a pause.
    Plan,
    /// A request is slow, or lost.
    Request,
    /// A reply is slow, or lost.
    Reply,
    /// A wake-up is slow, or lost.
    Hint,
    /// An unanswered request is carried out once more.
    Double,
    /// A client is frozen or cut just when something has reached it or left it.
    React,
    /// In which order a thawed client hears what has come meanwhile.
    Thaw,
    /// A client is slow to run what is ready.
    Run,
    /// The fate of a message that was under way when a connection was cut.
    Cut,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub point: Point,
    pub who: u8,
    pub count: u32,
}

/// The source of all decisions in one world.
#[derive(Debug)]
pub struct Dice {
    seed: u64,
    counts: BTreeMap<(Point, u8), u32>,
    /// Decisions that are taken out: nothing happens there.
    calm: BTreeSet<Key>,
    /// Decisions that had an effect.
    pub used: Vec<Key>,
    /// Faults have ended.
    pub quiet: bool,
}

impl Dice {
    pub fn new(seed: u64, calm: &BTreeSet<Key>) -> Dice {
        Dice {
            seed,
            counts: BTreeMap::new(),
            calm: calm.clone(),
            used: Vec::new(),
            quiet: false,
        }
    }

    /// Whether something happens here, with this probability; then with this randomness for its details.
    pub fn chance(&mut self, point: Point, who: u8, probability: f64) -> Option<Rng> {
        let count = self.counts.entry((point, who)).or_default();
        let key = Key {
            point,
            who,
            count: *count,
        };
        *count += 1;
        if self.quiet || probability <= 0.0 {
            return None;
        }
        let mut rng = self.rng(key);
        if rng.f64() >= probability || self.calm.contains(&key) {
            return None;
        }
        self.used.push(key);
        Some(rng)
    }

    /// Randomness that is no fault and is never taken out.
    pub fn harmless(&mut self, point: Point, who: u8) -> Rng {
        let count = self.counts.entry((point, who | 0x80)).or_default();
        *count += 1;
        let key = Key {
            point,
            who: who | 0x80,
            count: *count,
        };
        self.rng(key)
    }

    fn rng(&self, key: Key) -> Rng {
        let about = (key.point as u64) << 40 | u64::from(key.who) << 32 | u64::from(key.count);
        Rng::with_seed(mix(self.seed, about))
    }
}

/// Scatters two numbers over all numbers (`SplitMix64`).
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(b)
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
