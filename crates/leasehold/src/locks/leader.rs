//! Who leads, as the server says it.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use super::leader_record::LeaderRecord;
use crate::{Error, clock::Tick};

/// How often an observer polls: client-go's retry period.
const POLL_EVERY: Duration = Duration::from_secs(2);

/// Who leads.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Leader};
///
/// let client = Client::connect("memory:").await?;
/// let election = client.election("scheduler").value("10.0.0.7:8080");
/// let term = election.campaign().await?;
/// if let Some(Leader { value, since, .. }) = election.leader().await? {
///     println!("ask {value}, which leads since {since:?}");
/// }
/// # drop(term);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its value.
    pub value: String,
    /// The token of its term.
    pub token: u64,
    /// The uuid of its client.
    pub client: String,
    /// Since when, by the server's clock; `None` if tokens are counted on from those of Redisson's clients.
    pub since: Option<SystemTime>,
    /// The rest of its lease, which it renews; `None` if the lease has no end.
    pub remaining: Option<Duration>,
}

impl Leader {
    /// Who leads, in one request.
    pub(super) async fn seen(record: &LeaderRecord) -> Result<Option<Leader>, Error> {
        let record = record.read().await?;
        Ok(record.map(|record| Leader {
            since: record.since(),
            client: match record.owner.split_once(':') {
                Some((client, _)) => client.to_owned(),
                None => record.owner,
            },
            value: record.value,
            token: record.token,
            remaining: record.left,
        }))
    }
}

/// Looks who leads. Made by [`Election::observe`](crate::Election::observe).
///
/// # Examples
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
/// let mut seen = client.election("scheduler").observe();
/// loop {
///     match seen.next().await? {
///         Some(leader) => println!("{} leads", leader.value),
///         None => println!("there is no leader"),
///     }
/// }
/// # }
/// ```
#[must_use = "it asks the server when `next` is called"]
pub struct LeaderWatch {
    record: LeaderRecord,
    /// The token of the leader that was seen last, 0 if there was none; `None` before the first look.
    seen: Option<u64>,
    polls_at: Option<Tick>,
}

impl LeaderWatch {
    pub(super) fn new(record: &LeaderRecord) -> LeaderWatch {
        LeaderWatch {
            record: record.clone(),
            seen: None,
            polls_at: None,
        }
    }

    /// The present leader first; then waits for the next change that a look sees. `None`: there is no leader.
    ///
    /// It looks every two seconds, so a leader that lasts for less may be missed, and of two changes between two looks the last is seen. A
    /// new leader is a change, also if it has the value of the one before.
    ///
    /// # Errors
    /// As [`Election::leader`](crate::Election::leader), and [`Error::Closed`] within two seconds of the client's shutdown. The next call looks again, not sooner than two seconds later.
    ///
    /// # Cancel safety
    /// Cancel safe. No change is lost, and the looks keep their distance.
    ///
    /// # Source
    /// etcd `Election.Observe`. Where we differ: it is told that there is no leader.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            if let Some(at) = self.polls_at {
                self.record.sleep(at.since(self.record.now())).await;
            }
            // After the pause, in which the client may have been shut down (bug 217).
            self.record.check_open()?;
            // Before the look: a look that fails, or whose future is dropped, is not repeated sooner either.
            self.polls_at = Some(self.record.now().after(POLL_EVERY));
            let leader = Leader::seen(&self.record).await?;
            let seen = Some(leader.as_ref().map_or(0, |leader| leader.token));
            if self.seen != seen {
                self.seen = seen;
                return Ok(leader);
            }
        }
    }
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderWatch")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
