//! The errors: each says what the server may hold, and what to do next.

mod invalid;

use std::{error::Error as StdError, fmt, io, panic::Location, sync::Arc, time::Duration};

use crate::durations::{about, at_most, humane};
pub use invalid::Invalid;

/// Why something could not be done.
///
/// "Held by another owner" is no error: `try_lock` and `try_lock_for` answer `None`.
/// The message says what was refused or failed, why, and what to do. So [`source`](StdError::source) is what is behind the cause, and a
/// report that prints the chain, as `anyhow` does, says nothing twice.
///
/// | variant | the server holds | next |
/// |---|---|---|
/// | [`Invalid`](Error::Invalid) | nothing of ours; nothing was sent | correct the value |
/// | [`NotSent`](Error::NotSent) | what it held before | try again when the server is back |
/// | [`Rejected`](Error::Rejected) | what it held before | repair what it complains of (as a semaphore without permits: set them); or try again later, if that ends by itself (it loads its data, a script keeps it busy): `lock()` waits for that |
/// | [`Ambiguous`](Error::Ambiguous) | maybe our lease, at most for `free_within` after it carries the request out | wait that long, or try again at once: this client takes the old request back meanwhile |
/// | [`Reentered`](Error::Reentered) | the outer hold, unchanged | pass the guard on, or allow re-entry |
/// | [`Lost`](Error::Lost) | nothing of ours, or nothing we may rely on | stop what the lock protected |
/// | [`Busy`](Error::Busy) | nothing of ours | try again later, or with a longer `wait` |
/// | [`TooShort`](Error::TooShort) | our lease, still valid | do less, or take a longer lease |
/// | [`Stale`](Error::Stale) | the data as a newer holder left it | stop: the lock was lost long ago |
/// | [`Closed`](Error::Closed) | nothing new of ours | connect a new client |
/// | [`Several`](Error::Several) | as each of them says | as each of them says |
/// | [`ThreadGone`](Error::ThreadGone) | what it held before; our leases end, unless this is a fork | connect a new client |
#[derive(Clone)]
#[non_exhaustive]
pub enum Error {
    /// Invalid input; nothing was sent.
    Invalid(Invalid),
    /// The request did not leave this process, or it only reads and has no answer. The server is as it was.
    NotSent {
        /// The step that was to be sent, and its name.
        doing: Box<str>,
        /// Why it could not be sent. An [`io::Error`] if the server has nothing to do with it: this process or machine may open no
        /// more files, or start no more threads.
        source: Cause,
    },
    /// The server refused the request. It is as it was.
    Rejected {
        /// The step that was asked for, and its name.
        doing: Box<str>,
        /// The server's answer.
        source: Cause,
    },
    /// The request was sent and no answer came: it may have been carried out.
    Ambiguous {
        /// The step that was asked for, and its name.
        doing: Box<str>,
        /// How long at most the server may hold a lease for us, from the moment at which it carries the request out: as a rule
        /// that was before this error, but a server that stands still may do it when it goes on. As long as this process lives,
        /// the client takes the request back, also after it was dropped.
        free_within: Duration,
        /// Why there is no answer.
        source: Cause,
    },
    /// The owner holds the name already, and the mutex was told to refuse re-entry.
    Reentered {
        /// The name.
        name: Arc<str>,
        /// Where the hold was taken.
        held_at: &'static Location<'static>,
        /// A way out, in words.
        remedy: &'static str,
    },
    /// The lease is lost; the guard is no longer valid.
    Lost {
        /// The name.
        name: Arc<str>,
        /// How it was lost.
        reason: LostReason,
    },
    /// A `#[locked]` function waited for as long as it may, and another held the name. Only they say it: verbs answer `None`.
    Busy {
        /// The name.
        name: Arc<str>,
        /// How long it waited.
        waited: Duration,
    },
    /// Less of the lease is left than was asked for.
    TooShort {
        /// The name.
        name: Arc<str>,
        /// The time left.
        left: Duration,
        /// The time asked for.
        wanted: Duration,
    },
    /// A write was refused: a holder with a newer fencing token has written already.
    Stale {
        /// The name whose tokens count.
        fence: Arc<str>,
        /// The token of the write.
        token: u64,
        /// The newest token that was seen.
        newest: u64,
    },
    /// Several parts of a multi-lock failed.
    Several {
        /// Their errors, in the order of the names.
        errors: Arc<[Error]>,
    },
    /// The client was shut down.
    Closed,
    /// The thread that does this client's background work is not there: this process was forked from the one
    /// that connected, or the thread has panicked. Nothing was sent. Or the runtime has ended that connected a client of memory.
    ThreadGone,
}

/// The kinds of [`Error`], for `match` and for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the variant of Error of the same name")]
pub enum ErrorKind {
    Invalid,
    NotSent,
    Rejected,
    Ambiguous,
    Reentered,
    Lost,
    Busy,
    TooShort,
    Stale,
    Several,
    Closed,
    ThreadGone,
}

/// The remedy for an owner that may not enter again.
pub(crate) const NO_REENTRY: &str = "pass that guard on, or allow re-entry with reentrant(true)";

/// The cause of an error, shared by all callers that waited for the same answer.
pub type Cause = Arc<dyn StdError + Send + Sync + 'static>;

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its time ran out: a fixed lease ended, or no renewal got through in time.
    Expired,
    /// The server says that the name is not ours: it was unlocked by force, evicted, or flushed.
    Replaced,
    /// The server has forgotten it: it was restarted without its data, or another has taken its place and was never told of it. The client
    /// looks at all of its holds as soon as it notices that.
    Failover,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// The client was shut down.
    ClientShutdown,
    /// Its release was sent and never confirmed: the name may be free.
    Unconfirmed,
}

impl Error {
    /// Which of its variants it is; of several errors of one kind, that kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid(_) => ErrorKind::Invalid,
            Error::NotSent { .. } => ErrorKind::NotSent,
            Error::Rejected { .. } => ErrorKind::Rejected,
            Error::Ambiguous { .. } => ErrorKind::Ambiguous,
            Error::Reentered { .. } => ErrorKind::Reentered,
            Error::Lost { .. } => ErrorKind::Lost,
            Error::Busy { .. } => ErrorKind::Busy,
            Error::TooShort { .. } => ErrorKind::TooShort,
            Error::Stale { .. } => ErrorKind::Stale,
            Error::Several { errors } => match &errors[..] {
                // A caller that handles one kind need not look into it where all names failed alike.
                [first, rest @ ..] if rest.iter().all(|error| error.kind() == first.kind()) => {
                    first.kind()
                }
                _ => ErrorKind::Several,
            },
            Error::Closed => ErrorKind::Closed,
            Error::ThreadGone => ErrorKind::ThreadGone,
        }
    }

    /// All results; or the error, or the errors, of those that failed.
    pub(crate) fn all<T>(results: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
        let (mut all, mut errors) = (Vec::with_capacity(results.len()), Vec::new());
        for result in results {
            match result {
                Ok(one) => all.push(one),
                Err(error) => errors.push(error),
            }
        }
        if errors.len() > 1 {
            let errors = errors.into();
            return Err(Error::Several { errors });
        }
        errors.pop().map_or(Ok(all), Err)
    }

    /// Whether the server could not be reached or did not answer: trying again later may help. Not of a server that answers that it is
    /// not ready, which is [`Rejected`](Error::Rejected).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, ErrorKind, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().memory(&server).connect().await?;
    /// server.fail(1);
    /// let error = client.mutex("order:42").status().await.unwrap_err();
    /// assert!(error.is_unreachable());
    /// assert_eq!(error.kind(), ErrorKind::NotSent); // nothing was changed
    /// # Ok(()) }
    /// ```
    pub fn is_unreachable(&self) -> bool {
        matches!(self.kind(), ErrorKind::NotSent | ErrorKind::Ambiguous)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(invalid) => invalid.fmt(f),
            Error::NotSent { doing, source } => {
                // Only what fails in this process is an `io::Error` here (bug 135): a server's failures come as the redis crate's.
                let next = if source.is::<io::Error>() {
                    "allow this process more files and threads, as with ulimit"
                } else {
                    "try again when the server can be reached"
                };
                write!(f, "could not {doing}: {source}; nothing was changed, {next}")
            }
            Error::Rejected { doing, source } => {
                write!(f, "could not {doing}: {source}")
            }
            Error::Ambiguous {
                doing,
                free_within,
                source,
            } => {
                write!(f, "could not {doing}: {source}; it may have taken effect")?;
                // Zero: a step that leaves no lease, such as a write under a token, a change of permits or an unlocking by force.
                if free_within.is_zero() {
                    return f.write_str("; look whether it has before you try again");
                }
                // Bug 204: permits of a semaphore have no lease, and must not be said to end by themselves.
                if *free_within == Duration::MAX {
                    return f.write_str(", and then this client gives it back as soon as it can; try again");
                }
                let within = at_most(*free_within);
                write!(f, ", and then its lease ends within {within}, or as soon as this client can give it back; try again")
            }
            Error::Reentered {
                name,
                held_at,
                remedy,
            } => write!(
                f,
                "{name:?} is held by this owner already, taken at {held_at}; {remedy}"
            ),
            Error::Lost { name, reason } => write!(
                f,
                "the lease on {name:?} is lost: {reason}; stop the work that it protects, another may have the name by now"
            ),
            Error::Busy { name, waited } => write!(
                f,
                "{name:?} is held by another, and was not free within {}; try again later",
                about(*waited)
            ),
            Error::TooShort { name, left, wanted } => write!(
                f,
                "the lease on {name:?} lasts {} more, which is less than the {} asked for; do less under it, or take a longer one",
                about(*left),
                humane(*wanted)
            ),
            Error::Stale {
                fence,
                token,
                newest,
            } => write!(
                f,
                "nothing was written: token {token} of {fence:?} is stale, since token {newest} was seen; the lock was lost before, stop this work"
            ),
            Error::Several { errors } => {
                write!(f, "{} names failed", errors.len())?;
                for (at, error) in errors.iter().enumerate() {
                    let before = if at == 0 { ": " } else { "; " };
                    write!(f, "{before}{error}")?;
                }
                Ok(())
            }
            Error::Closed => f.write_str("the client was shut down; connect a new one"),
            Error::ThreadGone => f.write_str(
                "the thread of this client is gone: this process was forked from the one that connected, or the thread panicked; connect a new client",
            ),
        }
    }
}

/// The kind, and the sentence: what `main` prints that returns an error, and `unwrap`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::NotSent { source, .. }
            | Error::Rejected { source, .. }
            // The message has the cause's words already: a report that prints the chain goes on behind it.
            | Error::Ambiguous { source, .. } => source.source(),
            _ => None,
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::Invalid(invalid)
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Expired => "its time ran out before it was renewed or released",
            LostReason::Replaced => "the server says that it is not ours any more",
            LostReason::Failover => {
                "the server was restarted, or another has taken its place, and does not know of it"
            }
            LostReason::MaxHold => "it was held for as long as max_hold allows",
            LostReason::ClientShutdown => "the client was shut down",
            LostReason::Unconfirmed => "its release was sent, and the server never confirmed that",
        })
    }
}

/// The result of a release. In each case the work was alone until then.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::connect("memory:").await?;
/// let guard = client.mutex("order:42").lock().await?;
/// match guard.release().await? {
///     Released::Freed => println!("the next one has it"),
///     Released::StillHeld { holds } => println!("{holds} guards of this owner are left"),
///     Released::Unconfirmed { free_within } => println!("free within {free_within:?} at the latest"),
///     _ => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The name is free, or the next in the queue has it.
    Freed,
    /// Other guards of the same owner still hold it.
    StillHeld {
        /// How many.
        holds: u32,
    },
    /// The server has not answered yet, or refuses. The request is repeated in the background.
    Unconfirmed {
        /// When the name is free at the latest, counted from now. A renewal that is still on its way then, because the
        /// server or something before it stands still, may let it last for another lease; so may a second copy of a
        /// request, where something between sends copies. [`Duration::MAX`] of a [`Semaphore`](crate::Semaphore): its permits
        /// have no lease, so only the request that is repeated, or `add_permits`, gives them back.
        free_within: Duration,
    },
}
