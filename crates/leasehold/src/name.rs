//! Names, and the keys and channels that follow from them.
//!
//! Redisson's keys are derived by one odd rule, which we follow to the letter: if the name contains a `{`
//! anywhere it is used as it is, else it is wrapped in braces. See `docs/keys.md`.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::{
    error::{Error, Invalid},
    kind::LockKind,
    owner::LeaseId,
};

/// The longest name, in bytes. Each command repeats it up to four times.
pub(crate) const NAME_MAX: usize = 1024;

/// A name that has been checked: what users call it, and what it is on the server, where the prefix of their client stands before
/// it. Two names are one if they are one on the server.
///
/// Nothing here is larger for the prefix: one of these is in each hold.
#[derive(Clone)]
pub(crate) struct Name(Forms);

#[derive(Clone)]
enum Forms {
    Same(Arc<str>),
    Prefixed(Arc<Prefixed>),
}

struct Prefixed {
    wire: Box<str>,
    shown: Arc<str>,
}

impl Name {
    /// A name of a client without a prefix.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn new(name: &str) -> Result<Name, Error> {
        Name::under("", name)
    }

    /// Checks a name of a client with this prefix, which may be empty: not empty, at most 1024 bytes with the prefix, none of our
    /// own keys, and braces that keep all its keys in one cluster slot.
    pub(crate) fn under(prefix: &str, name: &str) -> Result<Name, Error> {
        if name.is_empty() {
            return Err(Invalid::new("name", "\"\" (empty)", "at least 1 byte")
                .remedy("name the thing you lock, such as \"order:42\"")
                .into());
        }
        let name = Name::of_data(prefix, name);
        check("name", prefix, name.shown(), name.wire())?;
        Ok(name)
    }

    /// The key of data of a client with this prefix, which is no lock, and is not checked.
    pub(crate) fn of_data(prefix: &str, key: &str) -> Name {
        Name(match prefix {
            "" => Forms::Same(key.into()),
            _ => Forms::Prefixed(Arc::new(Prefixed {
                wire: [prefix, key].concat().into(),
                shown: key.into(),
            })),
        })
    }

    /// For the server: with the prefix.
    pub(crate) fn wire(&self) -> &str {
        match &self.0 {
            Forms::Same(name) => name,
            Forms::Prefixed(name) => &name.wire,
        }
    }

    /// For users: without the prefix.
    pub(crate) fn shown(&self) -> &Arc<str> {
        match &self.0 {
            Forms::Same(name) => name,
            Forms::Prefixed(name) => &name.shown,
        }
    }

    /// For users who keep it.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(self.shown())
    }

    /// A key or channel of Redisson's that begins with `prefix`.
    pub(crate) fn prefixed(&self, prefix: &'static str) -> Key<'_> {
        self.key(prefix, Suffix::None)
    }

    /// The newest fencing token that was seen in a write to the data of this name.
    pub(crate) fn fence_key(&self) -> Key<'_> {
        self.key(OURS, Suffix::Word("fence"))
    }

    /// The value of the leader, of an election of this name.
    pub(crate) fn leader_key(&self) -> Key<'_> {
        self.key(OURS, Suffix::Word("leader"))
    }

    /// Where all our clients listen that wait beside Redisson's, and none of those: so that a server's counts tell them apart.
    pub(crate) fn marker(&self) -> Key<'_> {
        self.key(OURS, Suffix::Word("waits"))
    }

    /// A key of Redisson's that ends with `suffix`.
    pub(crate) fn suffixed<'a>(&'a self, suffix: &'a str) -> Key<'a> {
        self.key("", Suffix::Word(suffix))
    }

    fn key<'a>(&'a self, prefix: &'static str, suffix: Suffix<'a>) -> Key<'a> {
        Key {
            prefix,
            name: self.wire(),
            // A mutex adds no word of its kind, so the key is the same for each kind of lock.
            kind: LockKind::Mutex,
            suffix,
        }
    }
}

/// The key by which requests, queues and wake-ups are found: a kind and a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockId {
    pub(crate) kind: LockKind,
    pub(crate) name: Name,
    /// Of a kind whose waiting tasks have an entry each: the number of one of them. Zero: of no task, as of all other kinds.
    /// The server knows no such number. In the seven bytes that are left beside the kind: there is one of these for each name.
    task: [u8; 7],
}

impl LockId {
    pub(crate) fn new(kind: LockKind, name: Name) -> LockId {
        LockId {
            kind,
            name,
            task: [0; 7],
        }
    }

    /// Whether it is the part of one task.
    pub(crate) fn is_of_task(&self) -> bool {
        self.task() != 0
    }

    /// The part that one task has in it, by a number of at most 56 bits.
    pub(crate) fn of_task(&self, task: u64) -> LockId {
        let [high, task @ ..] = task.to_be_bytes();
        debug_assert_eq!(high, 0, "lease ids and owners have fewer bits");
        LockId {
            task,
            ..self.clone()
        }
    }

    pub(crate) fn task(&self) -> u64 {
        let mut number = [0; 8];
        number[1..].copy_from_slice(&self.task);
        u64::from_be_bytes(number)
    }

    /// Our clients that wait for it, in order.
    pub(crate) fn queue_key(&self) -> Key<'_> {
        self.ours(Suffix::Queue)
    }

    /// Marks a lease id of a client that was given up, so that a late copy of a request for it changes nothing.
    pub(crate) fn gone_key<'a>(&'a self, client: &'a str, lease: LeaseId) -> Key<'a> {
        self.ours(Suffix::Gone(client, lease))
    }

    /// The prefix of all such keys; the owner follows.
    pub(crate) fn gone_prefix(&self) -> Key<'_> {
        self.ours(Suffix::GonePrefix)
    }

    /// The inbox of one waiting client; `client` is empty for the prefix of all of them.
    pub(crate) fn grant_channel<'a>(&'a self, client: &'a str) -> Key<'a> {
        self.ours(Suffix::Grant(client))
    }

    /// The terms under which our tasks wait, of a kind whose queue is Redisson's.
    pub(crate) fn entries_key(&self) -> Key<'_> {
        self.ours(Suffix::Entries)
    }

    /// Where our clients say that the lock is free, if it has no channel of Redisson's.
    pub(crate) fn free_channel(&self) -> Key<'_> {
        self.ours(Suffix::Free)
    }

    /// The lock as the server knows it.
    pub(crate) fn on_server(mut self) -> LockId {
        self.kind = self.kind.on_server();
        self.task = [0; 7];
        self
    }

    fn ours<'a>(&'a self, suffix: Suffix<'a>) -> Key<'a> {
        Key {
            prefix: OURS,
            name: self.name.wire(),
            // A spin mutex is a mutex there, and shares its queue and tombstones.
            kind: self.kind.on_server(),
            suffix,
        }
    }
}

impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)
    }
}

/// The prefix of this library's own keys and channels.
pub(crate) const OURS: &str = "leasehold";
pub(crate) const OURS_BEGIN: &str = "leasehold:";

/// The key with the label of a client, by the begin of its uuid.
pub(crate) fn label_key(client: &str) -> String {
    format!("{OURS}:client:{client}")
}

/// The prefix of Redisson's keys of the last fencing tokens.
pub(crate) const TOKENS: &str = "redisson_lock_token";
pub(crate) const TOKENS_BEGIN: &str = "redisson_lock_token:";

/// The end of the channels on which our clients say that a lock is free.
pub(crate) const FREE: &str = ":free";

/// A key or channel, written where it is needed.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    prefix: &'static str,
    name: &'a str,
    kind: LockKind,
    suffix: Suffix<'a>,
}

#[derive(Clone, Copy)]
enum Suffix<'a> {
    None,
    Word(&'a str),
    Queue,
    Entries,
    Gone(&'a str, LeaseId),
    GonePrefix,
    Grant(&'a str),
    Free,
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix)?;
        if !self.prefix.is_empty() {
            f.write_str(":")?;
        }
        if self.name.contains('{') {
            if self.prefix == OURS {
                // Redisson's channel of `{x}` is that of `x`. Our own keys and channels must not be: they carry grants.
                f.write_str("-")?;
            }
            f.write_str(self.name)?;
        } else {
            f.write_str("{")?;
            f.write_str(self.name)?;
            f.write_str("}")?;
        }
        // A grant to one kind must not be heard as one to another.
        f.write_str(match self.kind {
            LockKind::Mutex | LockKind::SpinMutex => "",
            LockKind::FencedMutex => ":fenced",
            LockKind::RwLock => ":rw",
            LockKind::LeasedSemaphore => ":permits",
            LockKind::PlainMutex => ":plain",
            LockKind::Semaphore => ":semaphore",
            LockKind::Latch => ":latch",
            LockKind::FairMutex => ":fair",
        })?;
        match self.suffix {
            Suffix::None => Ok(()),
            Suffix::Word(suffix) => write!(f, ":{suffix}"),
            Suffix::Queue => f.write_str(":queue"),
            Suffix::Entries => f.write_str(":places"),
            Suffix::Gone(client, lease) => write!(f, ":gone:{client}:{lease}"),
            Suffix::GonePrefix => f.write_str(":gone:"),
            Suffix::Grant(client) => {
                f.write_str(":grant:")?;
                f.write_str(client)
            }
            Suffix::Free => f.write_str(FREE),
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        // By the name on the server: in a multi-lock clients with different prefixes meet.
        self.wire() == other.wire()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        self.wire().cmp(other.wire())
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.wire().hash(state);
    }
}

/// As users call it.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}

/// As users call it.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}

/// Checks the prefix of a client: some names must be possible under it. An empty one is none.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), Invalid> {
    if prefix.len() >= NAME_MAX {
        let value = format!("{} bytes", prefix.len());
        return Err(Invalid::new("name_prefix", value, "less than 1024 bytes")
            .remedy("leave room for the names, which have 1024 bytes with it"));
    }
    check("name_prefix", "", prefix, prefix)
}

/// Checks what is to be `wire` on the server: `text` behind a prefix.
fn check(what: &'static str, prefix: &str, text: &str, wire: &str) -> Result<(), Invalid> {
    let told = || match prefix {
        "" => format!("{text:?}"),
        prefix => format!("{text:?} behind the prefix {prefix:?}"),
    };
    if wire.len() > NAME_MAX {
        let (value, limit) = match prefix.len() {
            0 => (format!("{} bytes", text.len()), "at most 1024 bytes"),
            more => (
                format!("{} bytes, with {more} of the client's prefix", wire.len()),
                "at most 1024 bytes in all",
            ),
        };
        return Err(Invalid::new(what, value, limit)
            .remedy("lock a shorter name, such as a hash of the long one"));
    }
    // A lock under such a name would write into a key of ours: `leasehold:{x}:queue` once did (bug 79).
    if wire.starts_with(OURS_BEGIN) {
        return Err(Invalid::new(
            what,
            told(),
            format!(
                "without {OURS_BEGIN:?} at its beginning, with which this library's own keys begin"
            ),
        )
        .remedy("begin it otherwise, such as \"my-leasehold:42\""));
    }
    if !one_slot(wire) {
        return Err(Invalid::new(
            what,
            told(),
            "without braces, or with one hash tag that is not empty, such as \"order:{42}\"",
        )
        .remedy("close the brace or leave it out (a value comes into a name by format!); else the keys of the lock fall into different cluster slots"));
    }
    Ok(())
}

/// Whether the name itself and the name in braces hash to the same cluster slot.
fn one_slot(name: &str) -> bool {
    match (name.find('{'), name.find('}')) {
        (None, None) => true,
        // The tag is what stands between the first `{` and the first `}` after it; it must not be empty.
        (Some(open), Some(close)) => close > open + 1,
        // A `}` alone would end the hash tag of the name in braces too early.
        _ => false,
    }
}

#[cfg(test)]
mod tests;
