//! The election of a leader: a fenced mutex whose holder has a value that others can read.
//!
//! Promise: that of the fenced mutex. At any moment at most one term per name is valid, and the tokens of terms grow in their order.
//! Keys: `docs/keys.md`. Source: etcd `concurrency.Election`, Kubernetes client-go `leaderelection`.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use super::{
    fenced_mutex::FencedMutex,
    leader::{Leader, LeaderWatch},
    leader_record::{LeaderRecord, WrittenRecord},
    term::{EndsWithWork, Term},
};
use crate::{Error, Handoff, Owner, error::Invalid};

/// A leader whose value could not be written tries again after this long.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest value, in bytes. Each look of each observer carries it.
const VALUE_MAX: usize = 1024;

/// A single leader among all that campaign for a name: it does the work, and the others wait to take over.
///
/// A handle: cheap to clone, no I/O until it is used. It is a [`FencedMutex`](crate::FencedMutex) of the same name, which it excludes, with a
/// value that says who leads.
///
/// | to | method |
/// |---|---|
/// | work whenever this process leads | [`run`](Election::run) |
/// | lead by hand | [`campaign`](Election::campaign) |
/// | ask who leads | [`leader`](Election::leader) |
/// | hear who leads | [`observe`](Election::observe) |
///
/// # Promise
///
/// **Never are two terms valid at once.** A leader whose lease is not renewed in time learns it before the server can give the name to the
/// next: its work is dropped first. A leader that dies, or is cut off, is replaced when its lease ends; so is one whose client is shut down
/// with `LetExpire`. A leader that resigns, drops its term, or shuts its client down with `ReleaseAll` is replaced at once. Steps that a
/// leader had begun may still take effect elsewhere afterwards; send its [`token`](Term::token) with each write, so that the resource
/// refuses an old leader.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # async fn schedule(term: leasehold::Term) -> u64 { term.token() }
/// use std::time::Duration;
///
/// let client = leasehold::Client::connect("memory:").await?;
/// let election = client.election("scheduler").value("10.0.0.7:8080").lease(Duration::from_secs(15));
///
/// let term = election.campaign().await?;
/// let leader = election.leader().await?.unwrap();
/// assert_eq!(leader.value, "10.0.0.7:8080");
/// term.resign().await?;
///
/// let token = election.run(|term| schedule(term)).await?; // campaigns again after each loss, until the work ends
/// assert!(token > leader.token);
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
///
/// # Source
/// etcd `concurrency.Election`; client-go `leaderelection`. Where we differ: work ends with its lease; a term whose lease is over is
/// never told that it leads; observers are told that there is no leader.
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("leader election", "leaderelection", "LeaderLatch", "LeaderSelector"))]
pub struct Election {
    mutex: FencedMutex,
    record: LeaderRecord,
    /// The client's label, if none was given.
    value: Option<Arc<str>>,
}

impl Election {
    pub(crate) fn new(mutex: &FencedMutex, record: LeaderRecord) -> Election {
        // A handed over lease would go on without the next leader's value.
        let mutex = mutex.handoff(Handoff::off());
        Election {
            mutex,
            record,
            value: None,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.mutex.name()
    }

    /// The same election, in which this candidate leads under this value: an address, for instance. Default: the client's
    /// [`label`](crate::ClientBuilder::label).
    ///
    /// A text of at most 1 KiB without a NUL; else [`campaign`](Election::campaign) refuses it. All users of the server can read it.
    pub fn value(&self, value: impl AsRef<str>) -> Election {
        Election {
            value: Some(value.as_ref().into()),
            ..self.clone()
        }
    }

    /// The same election, in which this candidate leads under leases of this length, renewed as long as its term lives, instead of
    /// the client's.
    ///
    /// So long after the death of this leader the next one begins. 3 ms to 366 days, in whole milliseconds.
    pub fn lease(&self, lease: Duration) -> Election {
        Election {
            mutex: self.mutex.lease(lease),
            ..self.clone()
        }
    }

    /// Waits until this candidate leads, as long as it takes, and returns its term. Its value can be read by then.
    ///
    /// Each campaign is a candidate of its own, also within one task: none enters the term of another.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the name, the value or the lease is not valid; nothing was sent.
    /// - [`Error::Rejected`]: the server refuses, for instance because another type stands under the name, or its memory is full. It does not hold
    ///   the name for us.
    /// - [`Error::Stale`]: a write under a newer token was seen for this name, although this candidate holds it: tokens went back, or
    ///   [`FencedStore`](crate::FencedStore) was given a number that is no token. The name was given back.
    /// - [`Error::Closed`]: the client was shut down.
    ///
    /// A server that cannot be reached is waited for.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue, or the name, in the background.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # async fn schedule() {}
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let election = client.election("scheduler");
    /// assert_eq!(election.name(), "scheduler");
    /// let term = election.campaign().await?;
    /// term.run(schedule()).await?; // dropped if the term is lost
    /// assert!(term.is_valid() && term.token() > 0);
    /// tokio::select! {
    ///     reason = term.lost() => println!("lost: {reason}"),
    ///     () = schedule() => {}
    /// }
    /// term.resign().await?; // or drop it
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// etcd `Election.Campaign`.
    #[track_caller]
    #[doc(alias("Campaign", "elect"))]
    pub fn campaign(&self) -> impl Future<Output = Result<Term, Error>> + Send + 'static + use<> {
        let election = self.clone();
        // An owner of its own: a campaign inside of `Owner::scope` enters no hold of that scope.
        let mutex = self.mutex.owned_by(&Owner::new());
        // Made here, so that the place in the user's code is known.
        let mut asked = Some(mutex.lock());
        // Boxed: a task that stands by is mostly this future.
        Box::pin(async move {
            let value = election.checked_value()?;
            loop {
                let guard = match asked.take() {
                    Some(asked) => asked.await?,
                    None => mutex.lock().await?,
                };
                let text = election
                    .record
                    .text(&guard.owner(), guard.token(), &value)?;
                let taken = guard.run(election.take(&text)).await;
                match taken {
                    Ok(Ok(())) => {
                        election.record.leads(election.name());
                        return Ok(Term::new(guard, &election.record, text));
                    }
                    // Lost again before the value was there, which `run` may or may not have seen first.
                    Err(_) => {}
                    Ok(Err(error)) => {
                        // A write that was refused because the lead is lost is no error: the candidate stands in line again.
                        let still_held = guard.verify().await.is_ok();
                        let _ = guard.release().await;
                        if still_held {
                            return Err(error);
                        }
                    }
                }
            }
        })
    }

    /// Campaigns, and runs `work` for as long as this process leads; campaigns again if it loses the lead, and drops `work` before the
    /// next leader can begin. Ends when `work` does, and returns its output.
    ///
    /// `work` is called once for each term, with the term: its [`token`](Term::token) is for writes, and
    /// [`resign`](Term::resign) gives up the lead while the work goes on. A term that is dropped within the work ends nothing; it ends
    /// with the work. When the work has ended under a term that was valid, the name is given back before this returns.
    ///
    /// A shutdown of the client with [`Shutdown::ReleaseAll`](crate::Shutdown::ReleaseAll) drops the work at once, as a loss does, and gives the
    /// name back; there is no grace for a leader, since no other could lead meanwhile.
    ///
    /// # Errors
    /// As [`campaign`](Election::campaign). A loss is none: the work begins anew in the next term. After a shutdown [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work where that stands, and hands over in the background, at once.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let election = client.election("scheduler");
    /// let told = election.run(|term| async move { term.token() }).await?;
    /// assert!(told > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// client-go `LeaderElector.Run`. Where we differ: `OnStartedLeading` runs on after a loss there.
    #[track_caller]
    pub fn run<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output, Error>> + use<F, W>
    where
        F: Fn(Term) -> W,
        W: Future,
    {
        let election = self.clone();
        let mut first = Some(self.campaign());
        Box::pin(async move {
            loop {
                let term = match first.take() {
                    Some(campaign) => campaign.await?,
                    None => election.campaign().await?,
                };
                // Before the work is called: the lead ends also if that call panics (bug 215).
                let (lead, watch) = (EndsWithWork::new(&term), term.watch().clone());
                let work = work(term);
                let output = lead.run(&watch, work).await;
                // After a loss, or a shutdown: the next lap stands in line, or is told that the client is closed.
                if let Some(output) = output {
                    // The work is done, and no failure of the release undoes it.
                    let _ = lead.resign().await;
                    return Ok(output);
                }
            }
        })
    }

    /// Who leads now, as the server says; `None`: no candidate does, or the one that has just got the name has not said its value yet.
    ///
    /// # Errors
    /// The name is not valid, or the server refuses or does not answer. It only reads.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Leader};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let leader: Option<Leader> = client.election("scheduler").leader().await?;
    /// match leader {
    ///     Some(leader) => println!("ask {}", leader.value),
    ///     None => println!("try again in a moment"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// etcd `Election.Leader`.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Leader::seen(&self.record).await
    }

    /// Looks who leads, every two seconds, by one request each. No I/O until [`next`](LeaderWatch::next) is awaited.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let election = client.election("scheduler").value("here");
    /// let mut seen: leasehold::LeaderWatch = election.observe();
    /// assert!(seen.next().await?.is_none()); // first as it is: there is no leader
    /// let term = election.campaign().await?;
    /// assert_eq!(seen.next().await?.unwrap().value, "here"); // then each change
    /// # drop(term);
    /// # Ok(()) }
    /// ```
    #[doc(alias("Observe", "watch"))]
    pub fn observe(&self) -> LeaderWatch {
        LeaderWatch::new(&self.record)
    }

    fn checked_value(&self) -> Result<Arc<str>, Error> {
        let value = match &self.value {
            Some(value) => Arc::clone(value),
            None => self.record.label().into(),
        };
        let (told, limit) = if value.len() > VALUE_MAX {
            (format!("{} bytes", value.len()), "at most 1024 bytes")
        } else if value.contains('\0') {
            (format!("{value:?}"), "without a NUL")
        } else {
            return Ok(value);
        };
        Err(Invalid::new("value", told, limit)
            .remedy(
                "say where the leader is found, such as \"10.0.0.7:8080\", and keep the rest there",
            )
            .into())
    }

    /// Writes the value, for as long as that takes.
    async fn take(&self, text: &WrittenRecord) -> Result<(), Error> {
        loop {
            // Bounded by the lease: it runs under `guard.run`.
            // The same text under the same token: a second copy does no harm.
            match self.record.take(text).await {
                Err(error) if error.is_unreachable() => self.record.sleep(PAUSE).await,
                written => return written,
            }
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name())
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}
