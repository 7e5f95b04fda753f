//! A server's keys in memory, with the commands that the scripts use, and the scripts themselves, run by a Lua interpreter.
//!
//! It knows no script and no lock. `tests/keyspace.rs` holds it against real servers.

mod commands;
mod lists;
mod lua;
mod parse;
mod sorted;

pub use commands::COMMANDS;
pub use lua::replace;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use leasehold::sim::{Published, ScriptServer};
use redis::Value;

/// The answer to a command: a value, or the error as a server writes it, its code first.
pub type Answer = Result<Value, String>;

pub type Bytes = Vec<u8>;

/// No replica lags further behind. In microseconds.
const PAST: u64 = 1_000_000;

/// The value under a key.
#[derive(Clone, Debug, PartialEq)]
enum Stored {
    Text(Bytes),
    /// In the order in which the fields came, as small hashes are kept by servers.
    Hash(Vec<(Bytes, Bytes)>),
    List(VecDeque<Bytes>),
    /// By score, then by member.
    Sorted(Vec<(f64, Bytes)>),
}

impl Stored {
    fn kind(&self) -> &'static str {
        match self {
            Stored::Text(_) => "string",
            Stored::Hash(_) => "hash",
            Stored::List(_) => "list",
            Stored::Sorted(_) => "zset",
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Stored::Text(_) => false,
            Stored::Hash(fields) => fields.is_empty(),
            Stored::List(items) => items.is_empty(),
            Stored::Sorted(members) => members.is_empty(),
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    value: Stored,
    /// The last millisecond in which it is there.
    ends: Option<u64>,
}

/// The commands of one script that the server refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    #[default]
    None,
    /// It has no memory: it refuses what may need more, until the script has written.
    Full,
    /// The user has lost the right to this command of the script, counted from 0, and has it again at the next.
    Refuses(u32),
}

/// The keys of a server, and who listens to its channels.
#[derive(Default)]
pub struct Keyspace {
    /// Microseconds since 1970.
    now: u64,
    keys: HashMap<Bytes, Entry>,
    channels: BTreeMap<Bytes, BTreeSet<Arc<str>>>,
    published: Vec<Published>,
    trouble: Trouble,
    /// The keys as they were just before each script, and when, if that is asked for.
    past: Option<VecDeque<(u64, HashMap<Bytes, Entry>)>>,
    /// The replica has what is written, until it lags.
    replica_lags: bool,
    /// When it had all that was written, last.
    acknowledged: u64,
    /// Commands of the present script, and whether one of them was to write.
    commands: u32,
    has_written: bool,
}

impl Keyspace {
    fn now_ms(&self) -> u64 {
        self.now / 1_000
    }

    /// The key is gone if its time is over: not yet in its last millisecond.
    fn expire(&mut self, key: &[u8]) {
        let now = self.now_ms();
        let ends = self.keys.get(key).and_then(|entry| entry.ends);
        if ends.is_some_and(|ends| now > ends) {
            self.keys.remove(key);
        }
    }

    fn get(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.expire(key);
        self.keys.get_mut(key)
    }

    /// Collections without elements are not there.
    fn tidy(&mut self, key: &[u8]) {
        if self
            .keys
            .get(key)
            .is_some_and(|entry| entry.value.is_empty())
        {
            self.keys.remove(key);
        }
    }

    /// From here on each script meets this trouble.
    pub fn set_trouble(&mut self, trouble: Trouble) {
        self.trouble = trouble;
    }

    /// From here on the keys are remembered as they were before each script.
    pub fn keep_past(&mut self) {
        self.past = Some(VecDeque::new());
    }

    /// The replica has nothing of what is written from now on; or it has all again.
    pub fn lag(&mut self, lags: bool) {
        self.replica_lags = lags;
    }

    /// Some keys are what they were then, or when the replica had all last: it has taken their place.
    pub fn rewind(&mut self, to: Duration, is_one: impl Fn(&[u8]) -> bool) {
        let to = u64::try_from(to.as_micros()).unwrap_or(u64::MAX);
        let to = to.max(self.acknowledged);
        let mut past = self.past.iter().flatten();
        let Some((_, then)) = past.find(|(at, _)| *at > to) else {
            return;
        };
        let then = then.iter().filter(|(key, _)| is_one(key));
        let then: Vec<_> = then.map(|(key, it)| (key.clone(), it.clone())).collect();
        self.keys.retain(|key, _| !is_one(key));
        self.keys.extend(then);
    }

    fn remember(&mut self) {
        let Some(past) = &mut self.past else { return };
        while past.front().is_some_and(|(at, _)| at + PAST < self.now) {
            past.pop_front();
        }
        past.push_back((self.now, self.keys.clone()));
    }

    /// Carries out a command of a script.
    fn called(&mut self, args: &[Bytes]) -> Answer {
        let number = self.commands;
        self.commands += 1;
        if self.trouble == Trouble::Refuses(number) {
            return Err("NOPERM this user has no permissions to run this command".to_owned());
        }
        let flags = commands::flags(args)?;
        if self.trouble == Trouble::Full && flags.needs_memory && !self.has_written {
            return Err("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        self.has_written |= flags.writes;
        self.command(args)
    }
}

impl ScriptServer for Keyspace {
    fn call(&mut self, script: &'static str, keys: &[Bytes], args: &[Bytes]) -> Answer {
        (self.commands, self.has_written) = (0, false);
        self.remember();
        lua::run(self, script, keys, args)
    }

    fn set_clock(&mut self, now: Duration) {
        self.now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    }

    fn subscribe(&mut self, client: &Arc<str>, channel: &str) {
        let listeners = self.channels.entry(channel.into()).or_default();
        listeners.insert(Arc::clone(client));
    }

    fn unsubscribe(&mut self, client: &str, channel: &str) {
        if let Some(listeners) = self.channels.get_mut(channel.as_bytes()) {
            listeners.remove(client);
        }
    }

    fn disconnect(&mut self, client: &str) {
        for listeners in self.channels.values_mut() {
            listeners.remove(client);
        }
    }

    fn acknowledge(&mut self) -> u32 {
        if self.replica_lags {
            return 0;
        }
        self.acknowledged = self.now;
        1
    }

    fn take_messages(&mut self) -> Vec<Published> {
        std::mem::take(&mut self.published)
    }

    fn keys(&mut self) -> Vec<Bytes> {
        let now = self.now_ms();
        self.keys
            .retain(|_, entry| entry.ends.is_none_or(|ends| now <= ends));
        self.keys.keys().cloned().collect()
    }

    fn copied(&self) -> Box<dyn ScriptServer> {
        Box::new(Keyspace {
            now: self.now,
            keys: self.keys.clone(),
            ..Keyspace::default()
        })
    }

    fn next_end(&self) -> Option<Duration> {
        let ends = self.keys.values().filter_map(|entry| entry.ends).min();
        ends.map(Duration::from_millis)
    }

    fn forget(&mut self) {
        self.keys.clear();
    }
}
