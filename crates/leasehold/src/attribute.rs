//! Functions that the code written by `#[locked]` calls, and the client that they find.
//!
//! **Calls inside calls.** Each entered call is a frame; a frame knows the one around it, and the innermost is task-local while a body
//! is polled. So a call sees the frames that it runs inside of: not those of the other branches of a `join!`, which exclude it.

mod kinds;

use std::{
    any::Any,
    future::Future,
    panic::Location,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use futures_util::future::Either;
use tokio::time::Instant;

use crate::{Client, Error, Guard, error::Invalid};
pub use kinds::{Lockable, OncePer};

static GLOBAL: OnceLock<Client> = OnceLock::new();

tokio::task_local! {
    static SCOPED: Client;
    static INNERMOST: Arc<Frame>;
}

/// Sets the client of all `#[locked]` functions of this process, once. No I/O.
///
/// [`Client::scope`] is for tests, where each has a client of its own; so is the option `client`. Both go before this one. A client that
/// is set here is never dropped: before the program ends, [`shutdown`](Client::shutdown) gives back what guards hold by then. (A
/// `#[locked]` function gives its lock back before it returns.)
///
/// # Errors
/// [`Error::Invalid`]: it was set before, and stays.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Error, locked};
///
/// #[locked("report:{day}", wait = "5s")]
/// async fn report(day: u32) -> Result<u32, Error> {
///     Ok(day * 2)
/// }
///
/// let client = Client::connect("memory:").await?;
/// leasehold::set_global(client.clone())?;
/// assert_eq!(report(7).await?, 14);
/// assert!(leasehold::set_global(client).is_err()); // once
/// # Ok(()) }
/// ```
pub fn set_global(client: Client) -> Result<(), Error> {
    GLOBAL.set(client).map_err(|_| {
        let invalid = Invalid::new("the global client", "set already", "set once per process");
        invalid
            .remedy("a part of the program that needs another one runs in client.scope(future), or says client = expression")
            .into()
    })
}

impl Client {
    /// Runs `future` with this client as that of the `#[locked]` functions that it calls.
    ///
    /// Tasks spawned inside are not included. The innermost scope counts; an option `client` goes before it. No I/O.
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Error, locked};
    ///
    /// #[locked("order:{id}")]
    /// async fn ship(id: u64) -> Result<u64, Error> {
    ///     Ok(id)
    /// }
    ///
    /// // A test has a client of its own.
    /// let client = Client::connect("memory:").await?;
    /// assert_eq!(client.scope(ship(42)).await?, 42);
    /// # Ok(()) }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        SCOPED.scope(self.clone(), future)
    }
}

/// A call that holds its lock, while its body runs.
struct Frame {
    outer: Option<Arc<Frame>>,
    client: Client,
    name: String,
    /// Its guard, which lives as long as its body.
    guard: Weak<dyn Any + Send + Sync>,
    place: &'static Location<'static>,
}

impl Frame {
    /// The frame around this call that holds the name.
    fn around(client: &Client, name: &str) -> Option<Arc<Frame>> {
        let innermost = INNERMOST.try_with(Arc::clone).ok()?;
        let mut frame = &innermost;
        loop {
            // Of any kind: they share the name's key, or are refused by the server.
            if frame.name == name && frame.client.id() == client.id() {
                return Some(Arc::clone(frame));
            }
            frame = frame.outer.as_ref()?;
        }
    }

    fn reentered(&self, remedy: &'static str) -> Error {
        Error::Reentered {
            name: self.name.as_str().into(),
            held_at: self.place,
            remedy,
        }
    }
}

const SAY_REENTRANT: &str =
    "say `reentrant` in the inner #[locked] to enter, or call a function inside that does not lock";
const OTHER_KIND: &str = "the outer call holds it in another way, as another kind or to read only; take it there as it is needed here, or under another name";

/// The lock that a call asks for, and its options.
#[doc(hidden)]
pub struct Demand {
    pub client: Option<Client>,
    pub name: String,
    pub wait: Option<Duration>,
    pub lease: Option<Duration>,
    pub fixed_lease: Option<Duration>,
    pub max_hold: Option<Duration>,
    pub reentrant: bool,
}

/// The client that an option names, or something that derefs to it.
#[doc(hidden)]
pub fn client(client: &Client) -> Client {
    client.clone()
}

/// The client of the option, of the scope, or of the process.
pub(crate) fn client_of(option: Option<Client>) -> Result<Client, Error> {
    let scoped = || SCOPED.try_with(Client::clone).ok();
    // The nearest counts: what the function says, then what surrounds the call, then the process.
    let found = option.or_else(scoped).or_else(|| GLOBAL.get().cloned());
    found.ok_or_else(|| {
        let invalid = Invalid::new("the client of a #[locked] function", "not set", "set before the call");
        let remedy = "call leasehold::set_global(client) once when the program begins, or run the call in client.scope(future), as a test does";
        invalid.remedy(remedy).into()
    })
}

/// A call that holds its lock.
#[doc(hidden)]
pub struct Entered<K> {
    guard: Arc<Guard<K>>,
    frame: Arc<Frame>,
}

/// Waits for the lock. Not an `async fn`, so that the place in the user's code is known.
#[doc(hidden)]
#[track_caller]
pub fn enter<K: Lockable>(
    mut demand: Demand,
) -> impl Future<Output = Result<Entered<K>, Error>> + Send + 'static + use<K> {
    // Not within the async block: `track_caller` ends where a future begins.
    let place = Location::caller();
    // Read where the call is made: polled elsewhere, the future would see the frames of another task.
    let outer = INNERMOST.try_with(Arc::clone).ok();
    let client = client_of(demand.client.take());
    let asked = match &client {
        Err(error) => Either::Left(Err(error.clone())),
        Ok(client) => match Frame::around(client, &demand.name) {
            Some(frame) => Either::Left(again::<K>(&frame, demand.reentrant).map(Some)),
            // Boxed, as the body is: the future of each caller would hold it several times.
            None => Either::Right(Box::pin(K::ask(client, &demand))),
        },
    };
    async move {
        let begun = Instant::now();
        let guard = match asked {
            Either::Left(known) => known?,
            Either::Right(asked) => asked.await?,
        };
        let name = demand.name;
        let Some(guard) = guard else {
            let (name, waited) = (name.as_str().into(), begun.elapsed());
            return Err(Error::Busy { name, waited });
        };
        let guard = Arc::new(guard);
        // Weak: calls inside keep the frame, and `leave` must have the guard to itself to give it back.
        let weak: Weak<Guard<K>> = Arc::downgrade(&guard);
        let frame = Frame {
            outer,
            client: client?,
            name,
            guard: weak,
            place,
        };
        let frame = Arc::new(frame);
        Ok(Entered { guard, frame })
    }
}

/// Runs `work` at most once per interval.
#[doc(hidden)]
#[track_caller]
pub fn once<K: OncePer, F: Future>(
    mut demand: Demand,
    interval: Duration,
    work: F,
) -> impl Future<Output = Result<F::Output, Error>> + use<K, F> {
    // Both are read where the call is made, as in `enter`.
    let place = Location::caller();
    let outer = INNERMOST.try_with(Arc::clone).ok();
    let name = demand.name;
    let asked = client_of(demand.client.take()).and_then(|client| {
        if let Some(frame) = Frame::around(&client, &name) {
            return Err(frame.reentered(OTHER_KIND));
        }
        // Without a guard that a call inside could share.
        let guard: Weak<Guard<K>> = Weak::new();
        let frame = Arc::new(Frame {
            outer,
            client: client.clone(),
            name: name.clone(),
            guard,
            place,
        });
        let work = INNERMOST.scope(frame, Box::pin(work));
        Ok(K::once(&client, &name, interval, work))
    });
    async move {
        let begun = Instant::now();
        let (name, waited) = match asked?.await? {
            Some(output) => return Ok(output),
            None => (name.as_str().into(), begun.elapsed()),
        };
        Err(Error::Busy { name, waited })
    }
}

/// A second guard beside that of the frame around, if the call says that it may.
fn again<K: Lockable>(frame: &Frame, reentrant: bool) -> Result<Guard<K>, Error> {
    let held = frame.guard.upgrade();
    match held.and_then(|held| K::beside(&*held)) {
        None => Err(frame.reentered(OTHER_KIND)),
        Some(beside) if reentrant => beside,
        Some(_) => Err(frame.reentered(SAY_REENTRANT)),
    }
}

impl<K: Lockable> Entered<K> {
    #[cfg(feature = "blocking")]
    pub(crate) fn client(&self) -> &Client {
        &self.frame.client
    }

    pub fn guard(&self) -> &Guard<K> {
        &self.guard
    }

    /// Runs the body, and drops it the moment the lock is lost.
    pub fn run<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, Error>> + use<'_, F, K> {
        let body = Box::pin(body);
        INNERMOST.scope(Arc::clone(&self.frame), self.guard.run(body))
    }

    /// Runs the body of a function that blocks.
    #[cfg(feature = "blocking")]
    pub(crate) fn run_blocking<T>(&self, body: impl FnOnce() -> T) -> T {
        let body = || self.guard.in_its_span(body);
        INNERMOST.sync_scope(Arc::clone(&self.frame), body)
    }

    /// Gives the lock back after its body, as `Mutex::run` does.
    pub async fn leave<T>(self, output: Result<T, Error>) -> Result<T, Error> {
        // The lock is gone: the guard is dropped with `self`, and has nothing to release.
        let output = output?;
        // No other has it: calls inside have ended, and each took it for an instant only.
        if let Ok(guard) = Arc::try_unwrap(self.guard) {
            // The work is done, and no failure of the release undoes it. An event tells of a loss that only the release finds.
            let _ = guard.release().await;
        }
        Ok(output)
    }
}

/// The value that `failed = |error| …` makes of an error.
#[doc(hidden)]
pub fn failed<T>(error: Error, failed: impl FnOnce(Error) -> T) -> T {
    failed(error)
}

/// A return type that can say that the lock failed.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a `#[locked]` function must be able to say that the lock failed, and `{Self}` cannot",
    label = "cannot say that the lock failed",
    note = "return `Result<_, E>` with `E: From<leasehold::Error>`, or say `failed = |error| …` with what to return instead"
)]
pub trait Report {
    fn report(error: Error) -> Self;
}

// Else the compiler asks for `From` alone, and does not say that `failed` would do as well.
#[diagnostic::do_not_recommend]
impl<T, E: From<Error>> Report for Result<T, E> {
    fn report(error: Error) -> Self {
        Err(error.into())
    }
}
