//! Fencing tokens in memory, and the data that is written under them: `scripts/exclusive/tokens.lua` and
//! `scripts/fenced_store`, in Rust.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::Store;
use crate::{
    backend::{
        Failure,
        fenced::{BLOCK, Change, FencedPart, FencedRead, FencedWrite, Tokens, Written},
    },
    kind::LockKind,
    name::{LockId, Name},
};

/// Tokens do not run ahead of the clock by more.
const AHEAD_MOST: Duration = Duration::from_millis(1);

/// The tokens of each lock, and the data that is written under them.
#[derive(Default)]
pub(super) struct Fences {
    /// The last tokens that were given or reserved.
    last: HashMap<LockId, Kept>,
    /// The newest tokens that were seen in writes.
    seen: HashMap<Name, Kept>,
    data: HashMap<Name, Datum>,
    /// The time when the store's clock began, since 1970. Zero in a simulation.
    pub(super) epoch: Duration,
    /// How long the client that takes the present step has tokens kept.
    pub(super) retention: Option<Duration>,
}

/// A token, and until when it is kept; `None`: for ever.
#[derive(Clone, Copy)]
struct Kept {
    token: u64,
    ends: Option<Duration>,
}

enum Datum {
    /// And until when it is there; `None`: for ever.
    Text(Arc<[u8]>, Option<Duration>),
    Hash(BTreeMap<Arc<str>, Arc<[u8]>>),
}

#[derive(Debug, thiserror::Error)]
#[error("the data at the key is of another type (WRONGTYPE)")]
struct WrongType;

fn wrong_type() -> Failure {
    Failure::Rejected(Arc::new(WrongType))
}

impl Fences {
    /// Tokens and data that have ended by now are gone.
    pub(super) fn set_clock(&mut self, now: Duration) {
        let lasts = |kept: &Kept| kept.ends.is_none_or(|ends| ends > now);
        self.last.retain(|_, kept| lasts(kept));
        self.seen.retain(|_, kept| lasts(kept));
        self.data
            .retain(|_, datum| !matches!(datum, Datum::Text(_, Some(ends)) if *ends <= now));
    }

    /// A restart without data.
    pub(super) fn forget(&mut self) {
        self.last.clear();
        self.seen.clear();
        self.data.clear();
    }

    pub(super) fn last(&self, id: &LockId) -> Option<u64> {
        self.last.get(id).map(|kept| kept.token)
    }

    /// When a token that is used now ends: never sooner than before.
    fn ends(&self, before: Option<&Kept>, now: Duration) -> Option<Duration> {
        let ends = now + self.retention?;
        match before {
            // A token that is kept for ever stays so, also where this client keeps its own for a time.
            Some(before) => before.ends.map(|before| before.max(ends)),
            None => Some(ends),
        }
    }

    /// Tokens for a holder and for the next in its process, larger than all before.
    fn reserve(&mut self, id: &LockId, now: Duration) -> Tokens {
        let micros = |time: Duration| u64::try_from((self.epoch + time).as_micros()).unwrap_or(0);
        let last = self.last.get(id);
        let first = micros(now).max(last.map_or(0, |kept| kept.token) + 1);
        // If the last token is lost, the clock goes on where it was: tokens must not be far ahead of it by then.
        let count = if first <= micros(now + AHEAD_MOST) {
            BLOCK
        } else {
            1
        };
        let kept = Kept {
            // The last of the block: what this holder's process gives on in memory is used up for all others.
            token: first + u64::from(count) - 1,
            ends: self.ends(last, now),
        };
        self.last.insert(id.clone(), kept);
        Tokens::new(first, count).unwrap_or(Tokens::NONE)
    }

    /// Lets a write through, unless a newer token was seen.
    fn pass(&mut self, step: &FencedWrite, now: Duration) -> Written {
        let before = self.seen.get(&step.name);
        if let Some(seen) = before
            // A token may come again: its holder writes as often as it likes.
            && seen.token > step.token
        {
            return Written::Stale { newest: seen.token };
        }
        let kept = Kept {
            token: step.token,
            ends: self.ends(before, now),
        };
        self.seen.insert(step.name.clone(), kept);
        Written::Done
    }

    fn change(&mut self, step: &FencedWrite, now: Duration) -> Result<(), Failure> {
        let found = self.data.get_mut(&step.key);
        match (&step.change, found) {
            // As `SET`, which replaces a value of any type.
            (Change::Set(value, lasts), _) => {
                let ends = lasts.map(|ms| now + Duration::from_millis(ms));
                let text = Datum::Text(Arc::clone(value), ends);
                self.data.insert(step.key.clone(), text);
            }
            (Change::Delete, _) => drop(self.data.remove(&step.key)),
            (Change::SetField(field, value), None) => {
                let fields = BTreeMap::from([(Arc::clone(field), Arc::clone(value))]);
                let hash = Datum::Hash(fields);
                self.data.insert(step.key.clone(), hash);
            }
            (Change::SetField(field, value), Some(Datum::Hash(hash))) => {
                hash.insert(Arc::clone(field), Arc::clone(value));
            }
            (Change::DeleteField(_), None) => {}
            (Change::DeleteField(field), Some(Datum::Hash(hash))) => {
                hash.remove(field);
                // A hash without fields is no key on a server.
                if hash.is_empty() {
                    self.data.remove(&step.key);
                }
            }
            (_, Some(Datum::Text(..))) => return Err(wrong_type()),
        }
        Ok(())
    }
}

impl Store {
    /// Tokens for a grant, if the kind has any.
    pub(super) fn tokens(&mut self, id: &LockId) -> Tokens {
        if super::rules(id.kind).has_tokens() {
            self.fences.reserve(id, self.clock)
        } else {
            Tokens::NONE
        }
    }

    /// A step of a client that has tokens kept for so long.
    pub(crate) fn keep_tokens(&mut self, retention: Option<Duration>) -> &mut Store {
        self.fences.retention = retention;
        self
    }

    pub(crate) fn write(&mut self, step: &FencedWrite) -> Result<Written, Failure> {
        // The token counts as seen also where the data then refuse the change, as in the script.
        let written = self.fences.pass(step, self.clock);
        if written == Written::Done {
            self.fences.change(step, self.clock)?;
        }
        Ok(written)
    }

    pub(crate) fn read(&self, step: &FencedRead) -> Result<Option<Vec<u8>>, Failure> {
        match (self.fences.data.get(&step.key), &step.part) {
            (None, _) => Ok(None),
            (Some(Datum::Text(text, _)), FencedPart::Text) => Ok(Some(text.to_vec())),
            (Some(Datum::Text(text, _)), FencedPart::OfHolder) => {
                Ok(self.of_holder(&step.name, text))
            }
            (Some(Datum::Hash(hash)), FencedPart::Field(field)) => {
                Ok(hash.get(field).map(|v| v.to_vec()))
            }
            _ => Err(wrong_type()),
        }
    }

    fn of_holder(&self, name: &Name, text: &[u8]) -> Option<Vec<u8>> {
        let owner = text.split(|byte| *byte == b' ').next()?;
        let id = LockId::new(LockKind::FencedMutex, name.clone());
        let holds = self.inspect(&id).owners;
        let hold = holds.iter().find(|hold| hold.owner.as_bytes() == owner)?;
        let left = hold.ttl.map_or(-1, |left| left.as_millis().cast_signed());
        Some([left.to_string().as_bytes(), b" ", text].concat())
    }
}
