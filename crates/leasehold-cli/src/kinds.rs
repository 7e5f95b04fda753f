//! The kinds of locks. A new kind is a word in [`Kind`], and an arm in each `match` of this file; the rest of the command knows
//! no kinds.

use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use leasehold::{Access, Client, Error, Holder, LockKind, Status};

use crate::{
    exit::{Exit, Failure},
    held::{Ask, Held},
    output::visible,
};

/// The kinds as `--kind` calls them. It takes the names of [`LockKind`], too, which `status --json` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// One at a time
    Mutex,
    /// One at a time, each with a fencing token, larger than those before. Or `fenced_mutex`
    #[value(alias = "fenced_mutex")]
    Fenced,
    /// Many readers, or one writer. Or `rw_lock`
    #[value(alias = "rw_lock")]
    Rw,
    /// As a reader of a read-write lock, beside other readers
    #[value(hide = true)]
    Read,
    /// As the writer of a read-write lock, alone
    #[value(hide = true)]
    Write,
    /// A number of permits, each held under a lease; `run` takes one. Or `leased_semaphore`
    #[value(alias = "leased_semaphore")]
    Leased,
    /// A number of permits, which a crash loses
    Semaphore,
    /// A count that tasks wait for until it is zero
    Latch,
    /// One at a time, shared with the locks of other libraries: SET NAME TOKEN NX PX. Or `plain_mutex`
    #[value(alias = "plain_mutex")]
    Plain,
    /// One at a time, for moments: waiters ask again and again. A mutex for all others. Or `spin_mutex`
    #[value(alias = "spin_mutex")]
    Spin,
    /// One at a time, in the order of the requests. Or `fair_mutex`
    #[value(alias = "fair_mutex")]
    Fair,
}

/// The kinds that `leasehold run` holds, and a word about each of the others.
pub(crate) fn to_run() -> impl TypedValueParser<Value = Kind> {
    let words = Kind::value_variants().iter().filter_map(|kind| {
        let word = kind.to_possible_value()?;
        Some(word.hide(kind.cannot_run().is_some()))
    });
    PossibleValuesParser::new(words).try_map(|word| {
        let kind = Kind::from_str(&word, false)?;
        match kind.cannot_run() {
            None => Ok(kind),
            Some(reason) => Err(reason.to_owned()),
        }
    })
}

/// A lock with the lease that is asked for.
macro_rules! leased {
    ($lock:expr, $ask:expr) => {
        if $ask.fixed {
            $lock.fixed_lease($ask.lease)
        } else {
            $lock.lease($ask.lease)
        }
    };
}

impl Kind {
    /// Why no command can run under it.
    fn cannot_run(self) -> Option<&'static str> {
        match self {
            Kind::Mutex
            | Kind::Fenced
            | Kind::Read
            | Kind::Write
            | Kind::Leased
            | Kind::Plain
            | Kind::Spin
            | Kind::Fair => None,
            Kind::Rw => Some(
                "a read-write lock is held to read or to write: say --kind read or --kind write",
            ),
            Kind::Semaphore => Some(
                "a permit without a lease is lost for ever if this machine dies: say --kind leased",
            ),
            Kind::Latch => Some("a latch is not held: --kind is for locks"),
        }
    }

    /// As `--kind` calls it.
    pub(crate) fn word(self) -> String {
        let word = self.to_possible_value();
        word.map_or(String::new(), |word| word.get_name().to_owned())
    }

    /// The kind of lock, as `--json` calls it in every answer.
    pub(crate) fn lock(self) -> LockKind {
        match self {
            Kind::Mutex => LockKind::Mutex,
            Kind::Fenced => LockKind::FencedMutex,
            Kind::Rw | Kind::Read | Kind::Write => LockKind::RwLock,
            Kind::Leased => LockKind::LeasedSemaphore,
            Kind::Semaphore => LockKind::Semaphore,
            Kind::Latch => LockKind::Latch,
            Kind::Plain => LockKind::PlainMutex,
            Kind::Spin => LockKind::SpinMutex,
            Kind::Fair => LockKind::FairMutex,
        }
    }

    /// The kind that has this name in the library.
    pub(crate) fn of(kind: LockKind) -> Option<Kind> {
        Kind::from_str(kind.as_str(), false).ok()
    }

    /// Whether a lock of this kind is shown as that one: to a server a spin mutex is a mutex.
    pub(crate) fn is_listed_as(self, kind: LockKind) -> bool {
        self.lock() == kind || self == Kind::Spin && kind == LockKind::Mutex
    }

    /// Whether its holders can be told apart.
    pub(crate) fn has_owners(self) -> bool {
        !matches!(self, Kind::Leased | Kind::Semaphore | Kind::Latch)
    }

    /// How `leasehold run` shares it with others.
    pub(crate) fn access(self) -> Access {
        match self {
            Kind::Read => Access::Shared,
            Kind::Leased => Access::Permits(1),
            _ => Access::Exclusive,
        }
    }

    /// Waits for a hold; `None` if the name was held for as long as it may wait.
    pub(crate) async fn acquire(
        self,
        client: &Client,
        name: &str,
        ask: Ask,
    ) -> Result<Option<Held>, Failure> {
        match self {
            Kind::Mutex => {
                let mutex = leased!(client.mutex(name), ask);
                let forever = mutex.lock();
                let guard = ask.with(forever, |wait| mutex.try_lock_for(wait));
                Ok(guard.await?.map(Held::new))
            }
            Kind::Fenced => {
                let mutex = leased!(client.fenced_mutex(name), ask);
                let forever = mutex.lock();
                let guard = ask.with(forever, |wait| mutex.try_lock_for(wait));
                Ok(guard.await?.map(Held::fenced))
            }
            Kind::Read => {
                let lock = leased!(client.rw_lock(name), ask);
                let forever = lock.read();
                let guard = ask.with(forever, |wait| lock.try_read_for(wait));
                Ok(guard.await?.map(Held::new))
            }
            Kind::Write => {
                let lock = leased!(client.rw_lock(name), ask);
                let forever = lock.write();
                let guard = ask.with(forever, |wait| lock.try_write_for(wait));
                Ok(guard.await?.map(Held::new))
            }
            Kind::Leased => {
                let mut semaphore = leased!(client.leased_semaphore(name), ask);
                if let Some(permits) = ask.permits {
                    semaphore = semaphore.permits(permits);
                }
                let forever = semaphore.acquire();
                let guard = ask.with(forever, |wait| semaphore.try_acquire_for(wait));
                Ok(guard.await?.map(Held::new))
            }
            Kind::Plain => {
                let mutex = leased!(client.plain_mutex(name), ask);
                let forever = mutex.lock();
                let guard = ask.with(forever, |wait| mutex.try_lock_for(wait));
                Ok(guard.await?.map(Held::new))
            }
            Kind::Spin => {
                let mutex = leased!(client.spin_mutex(name), ask);
                let forever = mutex.lock();
                let guard = ask.with(forever, |wait| mutex.try_lock_for(wait));
                Ok(guard.await?.map(Held::new))
            }
            Kind::Fair => {
                let mutex = leased!(client.fair_mutex(name), ask);
                let forever = mutex.lock();
                let guard = ask.with(forever, |wait| mutex.try_lock_for(wait));
                Ok(guard.await?.map(Held::new))
            }
            Kind::Rw | Kind::Semaphore | Kind::Latch => {
                let reason = self.cannot_run().unwrap_or_default();
                Err(Failure::new(Exit::Usage, reason))
            }
        }
    }

    pub(crate) async fn status(self, client: &Client, name: &str) -> Result<Status, Error> {
        match self {
            Kind::Mutex => client.mutex(name).status().await,
            Kind::Fenced => client.fenced_mutex(name).status().await,
            Kind::Rw | Kind::Read | Kind::Write => client.rw_lock(name).status().await,
            Kind::Leased => client.leased_semaphore(name).status().await,
            Kind::Semaphore => client.semaphore(name).status().await,
            Kind::Latch => client.latch(name).status().await,
            Kind::Plain => client.plain_mutex(name).status().await,
            Kind::Spin => client.spin_mutex(name).status().await,
            Kind::Fair => client.fair_mutex(name).status().await,
        }
    }

    /// Takes it from its holders. `false` if it had none.
    pub(crate) async fn force_unlock(self, client: &Client, name: &str) -> Result<bool, Error> {
        match self {
            Kind::Mutex => client.mutex(name).force_unlock().await,
            Kind::Fenced => client.fenced_mutex(name).force_unlock().await,
            Kind::Rw | Kind::Read | Kind::Write => client.rw_lock(name).force_unlock().await,
            Kind::Leased => client.leased_semaphore(name).force_unlock().await,
            // The server knows no holders of it.
            Kind::Semaphore => Ok(false),
            // It has no holder: all that wait for it go on.
            Kind::Latch => client.latch(name).delete().await,
            Kind::Plain => client.plain_mutex(name).force_unlock().await,
            Kind::Spin => client.spin_mutex(name).force_unlock().await,
            Kind::Fair => client.fair_mutex(name).force_unlock().await,
        }
    }
}

/// The kind that the server has under the name, and its status. Of a free name: a mutex.
pub(crate) async fn find(client: &Client, name: &str) -> Result<(Kind, Status), Error> {
    let refused = match Kind::Mutex.status(client, name).await {
        Ok(mutex) => {
            // All kinds of mutex are at one key. Only a fenced one has a token beside it, and a fair one a queue while clients
            // wait.
            return Ok(match Kind::Fenced.status(client, name).await {
                Ok(fenced) if fenced.token.is_some() => (Kind::Fenced, fenced),
                _ => match Kind::Fair.status(client, name).await {
                    Ok(fair) if fair.waiting_clients > 0 => (Kind::Fair, fair),
                    _ => (Kind::Mutex, mutex),
                },
            });
        }
        Err(error) if !is_of_another_kind(&error) => return Err(error),
        Err(error) => error,
    };
    // Numbers last: the lock of another library may be one, too, and the plain mutex tells them apart. Of these the leased
    // semaphore first, which refuses the other as far as they can be told apart.
    for kind in [
        Kind::Fenced,
        Kind::Rw,
        Kind::Plain,
        Kind::Leased,
        Kind::Semaphore,
    ] {
        match kind.status(client, name).await {
            Err(error) if is_of_another_kind(&error) => {}
            Ok(status) if is_bare_number(&status) => {
                let latch = Kind::Latch.status(client, name).await?;
                return Ok(match latch.waiting_clients {
                    0 => (kind, status),
                    _ => (Kind::Latch, latch),
                });
            }
            other => return Ok((kind, other?)),
        }
    }
    // It is of no kind: this names the type.
    Err(refused)
}

/// The status of a lock of this kind, or of the kind that the server has under the name.
pub(crate) async fn look(
    client: &Client,
    kind: Option<Kind>,
    name: &str,
) -> Result<(Kind, Status), Error> {
    match kind {
        Some(kind) => Ok((kind, kind.status(client, name).await?)),
        None => find(client, name).await,
    }
}

/// The keys of a lock, each with what is there (docs/keys.md has them all).
#[cfg(feature = "serve")]
pub(crate) fn keys(kind: LockKind, prefix: &str, name: &str) -> Vec<(String, &'static str)> {
    let name = format!("{prefix}{name}");
    let braced = if name.contains('{') {
        name.clone()
    } else {
        format!("{{{name}}}")
    };
    let queue = |of: &str| {
        let key = format!("leasehold:{braced}:{of}queue");
        (key, "the clients of ours that wait, next first")
    };
    let more = match kind {
        LockKind::Mutex => vec![queue("")],
        LockKind::FencedMutex => vec![
            (format!("redisson_lock_token:{braced}"), "the last token"),
            queue("fenced:"),
            (
                format!("leasehold:{braced}:fence"),
                "the newest token that a write has brought",
            ),
        ],
        LockKind::RwLock => vec![queue("rw:")],
        LockKind::PlainMutex => vec![queue("plain:")],
        LockKind::FairMutex => vec![
            (
                format!("redisson_lock_queue:{braced}"),
                "all that wait, next first",
            ),
            (format!("redisson_lock_timeout:{braced}"), "their deadlines"),
            (format!("leasehold:{braced}:fair:places"), "those of ours"),
        ],
        LockKind::LeasedSemaphore => vec![(
            format!("{braced}:timeout"),
            "the permits that are out, and their ends",
        )],
        _ => Vec::new(),
    };
    let what = match kind {
        LockKind::Latch => "the count",
        LockKind::Semaphore | LockKind::LeasedSemaphore => "how many permits are free",
        _ => "its holders; its end is that of the lease",
    };
    [(name, what)].into_iter().chain(more).collect()
}

/// Whether the server has nothing but a number: as a semaphore has it of which no permit is out, and a latch.
pub(crate) fn is_bare_number(status: &Status) -> bool {
    status.available.is_some() && status.holders.is_empty() && !has_no_permits(status)
}

pub(crate) fn is_of_another_kind(error: &Error) -> bool {
    matches!(error, Error::Rejected { source, .. } if source.to_string().contains("WRONGTYPE"))
}

/// Whether this may be a user's data and no lock, as far as can be seen: a string that no library gives to a lock, or a hash whose fields
/// are no clients.
pub(crate) fn may_be_data(status: &Status) -> bool {
    status.holders.iter().any(|holder| match status.kind {
        // A token has an end, or its owner would keep the lock for ever.
        LockKind::PlainMutex => holder.client.is_empty() && holder.remaining.is_none(),
        LockKind::Mutex | LockKind::FencedMutex | LockKind::FairMutex | LockKind::RwLock => {
            !is_owner(&holder.owner)
        }
        _ => false,
    })
}

/// In place of what may be a secret.
pub(crate) const NO_LOCKS_VALUE: &str = "a value that no lock has: it may be data";

/// The owner field of a holder, unless it may be the value of a string that is no lock. A token of another library has an end, and
/// is made of few characters.
pub(crate) fn owner<'a>(status: &Status, holder: &'a Holder) -> Option<&'a str> {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=_:.@-".contains(&byte);
    let is_token = || holder.remaining.is_some() && holder.owner.bytes().all(is_of_token);
    (!is_of_another_library(status, holder) || is_token()).then_some(&holder.owner)
}

/// A client by its label; one of Redisson's by its thread.
pub(crate) fn who(label: Option<&str>, thread: Option<u64>) -> Option<String> {
    let thread = || thread.map(|thread| format!("a Java client, thread {thread}"));
    label.map(visible).or_else(thread)
}

/// Whether the holder is a value that is not ours.
pub(crate) fn is_of_another_library(status: &Status, holder: &Holder) -> bool {
    status.kind == LockKind::PlainMutex && holder.client.is_empty()
}

/// A lease id of ours, or a thread of Redisson's: a uuid, and a number.
fn is_owner(owner: &str) -> bool {
    owner.split_once(':').is_some_and(|(client, number)| {
        let is_uuid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        client.len() == 36
            && client.bytes().all(is_uuid)
            && number.starts_with(|first: char| first.is_ascii_digit())
    })
}

/// Whether it has a number of permits, and none of them is free or out: no client has set them, or one has set them to zero.
pub(crate) fn has_no_permits(status: &Status) -> bool {
    matches!(status.kind, LockKind::LeasedSemaphore | LockKind::Semaphore)
        && status.holders.is_empty()
        && status.available.is_some_and(|free| free <= 0)
}

/// How many permits a semaphore has in all: free ones, and those that are out.
pub(crate) fn permits(status: &Status) -> i64 {
    let out = status.holders.iter().map(|holder| match holder.access {
        Access::Permits(count) => i64::from(count),
        _ => 0,
    });
    status.available.unwrap_or(0) + out.sum::<i64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_from_the_fields_of_a_users_hash() {
        let uuid = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1";
        for (owner, is) in [
            (format!("{uuid}:57584996648963"), true),
            (format!("{uuid}:1:write"), true),
            (uuid.to_owned(), false),
            ("email".to_owned(), false),
            ("user:42".to_owned(), false),
        ] {
            assert_eq!(is_owner(&owner), is, "{owner}");
        }
    }

    #[test]
    fn every_kind_of_the_library_is_known_by_its_name() {
        for kind in LockKind::ALL {
            let word = Kind::from_str(kind.as_str(), false);
            assert_eq!(word.map(Kind::lock), Ok(kind));
        }
    }
}
