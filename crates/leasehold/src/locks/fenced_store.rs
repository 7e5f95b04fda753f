//! Data on the server that is written only under fencing tokens that are not stale: the resource's half of a fenced mutex.
//!
//! Promise: once a write under a token was carried out, no write under a smaller one is. Keys: `docs/keys.md`. Source: Kleppmann,
//! "How to do distributed locking", 2016.

use std::{fmt, sync::Arc, time::Duration};

use super::handle::supported;
use crate::{
    Error,
    backend::fenced::{Change, FencedPart, FencedRead, FencedWrite, TOKENS_END, Written},
    config::{check_lease, millis},
    engine::core::{ClientRef, Core},
    error::Invalid,
    kind::LockKind,
    name::{Name, OURS_BEGIN, TOKENS_BEGIN},
};

/// Strings and hashes on the server that are written under the fencing tokens of a name, mostly that of the
/// [`FencedMutex`](crate::FencedMutex) that protects them.
///
/// The name has a single newest token, and all keys that are written here count as one resource: a holder that has written
/// any of them shuts all earlier holders out of all. Check and write are one step on the server. Only writes that come this way
/// are checked: let no program write those keys otherwise. The lock's own keys are refused: the name itself, and what begins with
/// `leasehold:` or `redisson_lock_token:`.
///
/// The newest token is kept for seven days after the last write
/// ([`ClientBuilder::token_retention`](crate::ClientBuilder::token_retention)): a holder that sleeps longer is not refused.
///
/// A handle: cheap to clone, no I/O until it is used.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let stock = client.fenced_store("stock");
/// let guard = client.fenced_mutex("stock").lock().await?;
/// stock.set("stock:total", "41", guard.token()).await?;
/// stock.set_field("stock:items", "apple", "7", guard.token()).await?;
/// assert_eq!(stock.get_field("stock:items", "apple").await?.unwrap(), b"7");
/// stock.delete("stock:total", guard.token()).await?;
/// assert_eq!(stock.get("stock:total").await?, None);
/// # Ok(()) }
/// ```
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
pub struct FencedStore {
    core: ClientRef,
    name: Result<Name, Error>,
    /// As it was given, for `name()`.
    given: Arc<str>,
}

impl FencedStore {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> FencedStore {
        FencedStore {
            core: ClientRef::new(core),
            name: Name::under(&core.config.name_prefix, name)
                // The fence counts the tokens of that mutex, so the servers must have the kind.
                .and_then(|name| supported(core, LockKind::FencedMutex, name))
                .map(|id| id.name),
            given: name.into(),
        }
    }

    /// The name whose tokens count.
    pub fn name(&self) -> &str {
        &self.given
    }

    /// Sets a string.
    ///
    /// # Errors
    /// - [`Error::Stale`]: a newer token was seen. Nothing was written.
    /// - [`Error::Invalid`]: the name, the key or the token is not valid; nothing was sent.
    /// - [`Error::Rejected`]: the server refuses. The data is as it was; writes under older tokens may be refused from now on.
    /// - [`Error::NotSent`], [`Error::Ambiguous`]: no answer; after the latter it may have been written. The same write may be
    ///   asked for again, as long as the holder has written nothing else there since.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the request back.
    ///
    /// # Source
    /// Redis `SET`, behind the check of Kleppmann 2016.
    pub async fn set(
        &self,
        key: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        token: u64,
    ) -> Result<(), Error> {
        let change = Change::Set(value.as_ref().into(), None);
        self.write(key.as_ref(), token, change).await
    }

    /// Sets a string that the server deletes after `time`, unless it is set again before.
    ///
    /// `time` counts from the moment at which the server carries the write out: 1 ms to 366 days, in whole milliseconds. It is not bound to any
    /// lease. [`set`](FencedStore::set) without a time takes the end away.
    ///
    /// # Errors
    /// As [`set`](FencedStore::set), and [`Error::Invalid`] if the time is out of bounds.
    ///
    /// # Cancel safety
    /// As [`set`](FencedStore::set).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.fenced_mutex("order:42").lock().await?;
    /// let store = client.fenced_store("order:42");
    /// let hour = Duration::from_secs(3600);
    /// store.set_for("order:42:quote", "99.00", hour, guard.token()).await?;
    /// assert_eq!(store.get("order:42:quote").await?.unwrap(), b"99.00");
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redis `SET … PX`.
    pub async fn set_for(
        &self,
        key: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        time: Duration,
        token: u64,
    ) -> Result<(), Error> {
        let time = check_lease("time", time).map_err(|error| match error {
            Error::Invalid(invalid) => {
                let remedy = "say how long the data is to stay, or set() it without an end";
                Error::Invalid(invalid.remedy(remedy))
            }
            other => other,
        })?;
        let change = Change::Set(value.as_ref().into(), Some(millis(time)));
        self.write(key.as_ref(), token, change).await
    }

    /// Deletes a string or a hash.
    ///
    /// # Errors
    /// As [`set`](FencedStore::set).
    ///
    /// # Cancel safety
    /// As [`set`](FencedStore::set).
    ///
    /// # Source
    /// Redis `DEL`.
    pub async fn delete(&self, key: impl AsRef<str>, token: u64) -> Result<(), Error> {
        self.write(key.as_ref(), token, Change::Delete).await
    }

    /// Sets a field of a hash.
    ///
    /// # Errors
    /// As [`set`](FencedStore::set).
    ///
    /// # Cancel safety
    /// As [`set`](FencedStore::set).
    ///
    /// # Source
    /// Redis `HSET`.
    pub async fn set_field(
        &self,
        key: impl AsRef<str>,
        field: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        token: u64,
    ) -> Result<(), Error> {
        let change = Change::SetField(field.as_ref().into(), value.as_ref().into());
        self.write(key.as_ref(), token, change).await
    }

    /// Deletes a field of a hash.
    ///
    /// # Errors
    /// As [`set`](FencedStore::set).
    ///
    /// # Cancel safety
    /// As [`set`](FencedStore::set).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.fenced_mutex("order:42").lock().await?;
    /// let store = client.fenced_store("order:42");
    /// assert_eq!(store.name(), "order:42");
    /// store.set_field("order:42:lines", "1", "a book", guard.token()).await?;
    /// store.delete_field("order:42:lines", "1", guard.token()).await?;
    /// assert!(store.get_field("order:42:lines", "1").await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redis `HDEL`.
    pub async fn delete_field(
        &self,
        key: impl AsRef<str>,
        field: impl AsRef<str>,
        token: u64,
    ) -> Result<(), Error> {
        let change = Change::DeleteField(field.as_ref().into());
        self.write(key.as_ref(), token, change).await
    }

    /// Reads a string; `None` if it is not there. No token is needed, and none is remembered.
    ///
    /// # Errors
    /// The name or the key is not valid, the data is of another type, or the server does not answer. It only reads.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Source
    /// Redis `GET`.
    pub async fn get(&self, key: impl AsRef<str>) -> Result<Option<Vec<u8>>, Error> {
        self.read(key.as_ref(), None).await
    }

    /// Reads a field of a hash; `None` if it is not there. No token is needed, and none is remembered.
    ///
    /// # Errors
    /// As [`get`](FencedStore::get).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Source
    /// Redis `HGET`.
    pub async fn get_field(
        &self,
        key: impl AsRef<str>,
        field: impl AsRef<str>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.read(key.as_ref(), Some(field.as_ref())).await
    }

    async fn write(&self, key: &str, token: u64, change: Change) -> Result<(), Error> {
        let name = self.name.clone()?;
        let key = self.key(&name, key)?;
        // The script compares numbers, which are exact below 2^53 only.
        if !(1..TOKENS_END).contains(&token) {
            let value = token.to_string();
            return Err(Invalid::new("token", value, "at least 1 and below 2^53")
                .remedy("take that of a guard: guard.token()")
                .into());
        }
        let fence = name.shared();
        let step = FencedWrite {
            name,
            key,
            token,
            change,
        };
        match self.core.write(step).await? {
            Written::Done => Ok(()),
            Written::Stale { newest } => Err(Error::Stale {
                fence,
                token,
                newest,
            }),
        }
    }

    async fn read(&self, key: &str, field: Option<&str>) -> Result<Option<Vec<u8>>, Error> {
        let name = self.name.clone()?;
        let key = self.key(&name, key)?;
        let step = FencedRead {
            name,
            key,
            part: field.map_or(FencedPart::Text, |field| FencedPart::Field(field.into())),
        };
        self.core.read(step).await
    }

    /// Any key but those of this library itself, and of the fenced mutex: a write would replace the lock, or its last token.
    fn key(&self, name: &Name, key: &str) -> Result<Name, Error> {
        let data = Name::of_data(&self.core.config.name_prefix, key);
        let mut of_locks = [OURS_BEGIN, TOKENS_BEGIN].into_iter();
        // Data in a key of locks would replace the lock, or its last token (bug 104).
        let limit = if key.is_empty() {
            "at least 1 byte".to_owned()
        } else if data == *name {
            "other than the name, which is the lock's own key".to_owned()
        } else if let Some(begin) = of_locks.find(|begin| data.wire().starts_with(begin)) {
            format!("without {begin:?} at its beginning, with which keys of locks begin")
        } else {
            self.core.backend.keeps_data(name, &data)?;
            return Ok(data);
        };
        let empty = if key.is_empty() { " (empty)" } else { "" };
        Err(Invalid::new("key", format!("{key:?}{empty}"), limit)
            .remedy("name the data, such as \"order:42:state\"")
            .into())
    }
}

impl fmt::Debug for FencedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedStore")
            .field("name", &self.given)
            .finish_non_exhaustive()
    }
}
