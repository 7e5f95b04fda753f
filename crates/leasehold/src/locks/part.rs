//! A part of a multi-lock: a lock among others.

use super::handle::Handle;
use crate::{Error, kind::Access};

/// A lock that a [`MultiLock`](crate::MultiLock) takes together with others: a name, or a lock of any client: a mutex of
/// any kind, a reader, a writer, or a leased permit.
///
/// A name stands for a [`Mutex`](crate::Mutex) of the client that makes the multi-lock. A mutex of any sort becomes a part by
/// `into()`; [`RwLock::read_part`](crate::RwLock::read_part), [`RwLock::write_part`](crate::RwLock::write_part) and
/// [`LeasedSemaphore::part`](crate::LeasedSemaphore::part) say how the others are held. A part keeps the settings of its lock.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Part};
///
/// let client = Client::connect("memory:").await?;
/// let parts = [
///     Part::from("order:42"),
///     client.fenced_mutex("stock:7").into(),
///     client.rw_lock("prices").read_part(),
/// ];
/// let guard = client.multi_lock(parts).lock().await?;
/// assert!(guard.token("stock:7").is_some());
/// # Ok(()) }
/// ```
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
pub struct Part(pub(super) PartLock);

#[derive(Clone)]
pub(super) enum PartLock {
    /// A mutex of the multi-lock's client.
    Name(Box<str>),
    Lock(Box<Handle>, Result<Access, Error>),
}

impl Part {
    pub(super) fn of(handle: &Handle, access: Result<Access, Error>) -> Part {
        Part(PartLock::Lock(Box::new(handle.clone()), access))
    }

    /// The name.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let part = client.rw_lock("prices").read_part();
    /// assert_eq!(part.name(), "prices");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        match &self.0 {
            PartLock::Name(name) => name,
            PartLock::Lock(handle, _) => handle.name(),
        }
    }
}

impl From<&str> for Part {
    fn from(name: &str) -> Part {
        Part(PartLock::Name(name.into()))
    }
}

impl From<String> for Part {
    fn from(name: String) -> Part {
        Part(PartLock::Name(name.into()))
    }
}

impl From<&String> for Part {
    fn from(name: &String) -> Part {
        name.as_str().into()
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut part = f.debug_struct("Part");
        part.field("name", &self.name());
        if let PartLock::Lock(_, access) = &self.0 {
            part.field("access", access);
        }
        part.finish_non_exhaustive()
    }
}

/// A lock that is held in one way only is a part as it is.
macro_rules! exclusive_part {
    ($kind:ident) => {
        impl From<&$kind> for Part {
            fn from(lock: &$kind) -> Part {
                Part::of(&lock.handle, Ok(crate::kind::Access::Exclusive))
            }
        }

        impl From<$kind> for Part {
            fn from(lock: $kind) -> Part {
                Part::from(&lock)
            }
        }
    };
}
pub(super) use exclusive_part;
