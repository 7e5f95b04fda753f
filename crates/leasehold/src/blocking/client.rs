//! The client for threads: a constructor per kind of lock, and its requests to the server.

use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::{
    FairMutex, FencedMutex, FencedStore, Latch, LeasedSemaphore, MultiLock, Mutex, PlainMutex,
    RwLock, Semaphore, SpinMutex, table::blocking, wait,
};
use crate::{
    ClientBuilder, Error, Event, Finding, Owner, Part, Shutdown, Status,
    background::BackgroundRuntime,
};

blocking! {
    /// [`leasehold::Client`](crate::Client) for threads: a connection to the server that holds the leases.
    ///
    /// Cheap to clone; clones are the same client, which may be used from any thread. It is made of an async client by `from`, and
    /// becomes one by `into`: both are the same client, with one uuid, and share its locks, its connections and its queues.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Shutdown, blocking::Client};
    ///
    /// let client = Client::connect("memory:")?; // or redis://127.0.0.1/
    /// let guard = client.mutex("order:42").lock()?;
    /// assert_eq!(client.status("order:42")?.holders.len(), 1);
    /// drop(guard);
    ///
    /// let asynchronous: leasehold::Client = client.clone().into(); // the same client
    /// assert_eq!(asynchronous.id(), client.id());
    /// client.shutdown(Shutdown::LetExpire)?;
    /// # Ok(()) }
    /// ```
    Client {
        plain id() -> &str, "The uuid of this client: the first half of each of its owner fields on the server.";
        verb status(name: impl AsRef<str>) -> Status, "The holders of a mutex, and how many wait for it.";
        verb force_unlock(name: impl AsRef<str>) -> bool, "Frees a mutex: takes it from its holder. `false` if it was free.";
        verb force_unlock_if(seen: &Status) -> bool, "Takes a lock from the holders that were seen. `false` if it is not as it was.";
        verb fill_connected(found: &mut [Status]) -> (), "Adds which holders are connected to what `find` has found.";
        verb look_again(found: &mut Vec<Status>) -> (), "Looks again at what `find` has found.";
        verb examine() -> Vec<Finding>, "Whether the servers may be trusted with locks, by what they say of themselves.";
        verb shutdown(how: Shutdown) -> (), "Shuts the client down: waiters get an error, and nothing new is begun.";
    }
}

macro_rules! constructors {
    ($($name:ident $kind:ident $doc:literal;)*) => {
        impl Client {
            $(#[doc = $doc]
            ///
            #[doc = concat!("See [`leasehold::Client::", stringify!($name), "`](crate::Client::", stringify!($name), "). No I/O; the first use refuses a bad name.")]
            pub fn $name(&self, name: impl AsRef<str>) -> $kind {
                $kind { inner: self.inner.$name(name), background: self.background.clone() }
            })*
        }
    };
}
constructors! {
    mutex Mutex "A re-entrant mutual exclusion lock on a name.";
    fenced_mutex FencedMutex "A mutex whose guards carry fencing tokens.";
    fenced_store FencedStore "Data on the server that is written under the fencing tokens of `name`.";
    rw_lock RwLock "A lock for many readers or one writer.";
    leased_semaphore LeasedSemaphore "Permits, each held under a lease.";
    plain_mutex PlainMutex "The lock that many libraries share.";
    spin_mutex SpinMutex "A mutex whose waiters ask again and again.";
    semaphore Semaphore "Permits without a lease.";
    latch Latch "A count that threads wait for until it is zero.";
    fair_mutex FairMutex "A mutex whose waiters are served in the order in which they asked.";
}

impl Client {
    /// Connects, with default settings: to `redis://…` and the other URLs of [`leasehold::Client::connect`](crate::Client::connect).
    ///
    /// A client of `memory:` lives on a thread of this library, with a runtime of its own.
    ///
    /// # Errors
    /// As there; and [`Error::Invalid`], with nothing sent, where a tokio scheduler polls.
    pub fn connect(url: &str) -> Result<Client, Error> {
        Client::connect_with(crate::Client::builder().url(url))
    }

    /// Connects, with settings.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`]; and [`Error::Invalid`], with nothing sent, where a tokio scheduler polls.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::{MemoryServer, blocking::Client};
    ///
    /// let settings = leasehold::Client::builder()
    ///     .memory(&MemoryServer::new())
    ///     .lease(Duration::from_secs(15));
    /// let client = Client::connect_with(settings)?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn connect_with(settings: ClientBuilder) -> Result<Client, Error> {
        // Checked first: a call that is refused starts no thread.
        wait::check_thread()?;
        let background = background_for(&settings)?;
        Ok(wait::wait(&background, settings.connect())??.into())
    }

    /// A client that connects when it is first used. No I/O, and so on any thread: see [`ClientBuilder::connect_lazily`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_lazily(settings: ClientBuilder) -> Result<Client, Error> {
        let background = background_for(&settings)?;
        // A client of memory lives on the runtime that is entered when it is made (`BackgroundRuntime::here`).
        let _background = background.handle().enter();
        Ok(settings.connect_lazily()?.into())
    }

    /// Several names at once, all or nothing, with one guard: mutexes of this client, or [`Part`]s of several kinds and clients,
    /// blocking or not. No I/O; the first use refuses a bad name, or a name twice.
    pub fn multi_lock(&self, parts: impl IntoIterator<Item = impl Into<Part>>) -> MultiLock {
        MultiLock {
            inner: self.inner.multi_lock(parts),
            background: self.background.clone(),
        }
    }

    /// The locks whose names match a pattern: see [`leasehold::Client::find`](crate::Client::find). No I/O.
    pub fn find(&self, pattern: impl AsRef<str>) -> Find {
        Find {
            inner: self.inner.find(pattern),
            background: self.background.clone(),
        }
    }

    /// The events of this client's leases from now on: see [`leasehold::Client::events`](crate::Client::events).
    pub fn events(&self) -> EventListener {
        EventListener {
            inner: self.inner.events(),
            background: self.background.clone(),
        }
    }
}

/// Where the future that connects is polled, and a client of memory lives.
fn background_for(settings: &ClientBuilder) -> Result<BackgroundRuntime, Error> {
    // All work of a client of memory is done on the runtime that connected. A thread has none, so it gets one.
    let background = if settings.is_of_memory() {
        BackgroundRuntime::of_memory()
    } else {
        BackgroundRuntime::thread()
    };
    background.map_err(|error| Error::NotSent {
        doing: "start the thread of this client".into(),
        source: std::sync::Arc::new(error),
    })
}

impl From<crate::Client> for Client {
    fn from(inner: crate::Client) -> Client {
        // Threads wait in the runtime that the async client works on: a client of memory lives on the one that connected it.
        let background = inner.background().clone();
        Client { inner, background }
    }
}

impl From<Client> for crate::Client {
    fn from(client: Client) -> crate::Client {
        client.inner
    }
}

blocking! {
    /// [`leasehold::Find`](crate::Find) for threads: the locks of a server whose names match a pattern, page by page.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let guard = client.mutex("order:42").lock()?;
    /// let mut find = client.find("order:*");
    /// while let Some(page) = find.next()? {
    ///     println!("{:.0} %: {page:?}", 100.0 * find.progress());
    /// }
    /// # drop(guard); Ok(()) }
    /// ```
    Find {
        plain progress() -> f64, "About how much of the server's keys has been looked at, from 0 to 1.";
        changes next() -> Option<Vec<Status>>, "The locks of the next page: often none. `None` when all keys have been looked at.";
    }
}

/// [`leasehold::EventListener`](crate::EventListener) for threads: hears the events of a client.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let mut events = client.events();
/// let guard = client.mutex("order:42").lock()?;
/// let event = events.recv()?.unwrap();
/// assert_eq!(&*event.name, "order:42");
/// # drop(guard); Ok(()) }
/// ```
#[must_use = "a listener hears nothing unless it is asked"]
#[derive(Debug)]
pub struct EventListener {
    inner: crate::EventListener,
    background: BackgroundRuntime,
}

impl EventListener {
    /// Waits for the next event.
    ///
    /// # Errors
    /// The outer one is [`Error::Invalid`], where a tokio scheduler polls. The inner one is that of
    /// [`leasehold::EventListener::recv`](crate::EventListener::recv): events were missed, or the client is gone.
    pub fn recv(&mut self) -> Result<Result<Event, RecvError>, Error> {
        wait::wait(&self.background, self.inner.recv())
    }

    /// The next event, if there is one already. It never waits.
    ///
    /// # Errors
    /// As [`leasehold::EventListener::try_recv`](crate::EventListener::try_recv).
    pub fn try_recv(&mut self) -> Result<Event, TryRecvError> {
        self.inner.try_recv()
    }
}

/// Runs `work` as this owner: every lock that it takes on this thread, without an owner of its own, is taken by this one.
///
/// [`Owner::scope`] for threads. Threads that `work` starts are not included.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Owner, blocking};
///
/// let client = blocking::Client::connect("memory:")?;
/// let ledger = client.mutex("ledger");
/// let posted = blocking::scope(&Owner::new(), || {
///     let _outer = ledger.lock()?;
///     ledger.run(|_| ()) // enters again
/// });
/// posted
/// # }
/// ```
pub fn scope<T>(owner: &Owner, work: impl FnOnce() -> T) -> T {
    owner.scope_here(work)
}
