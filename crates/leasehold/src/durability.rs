//! How many servers are to have a lock before its holder goes on.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{
    durations::humane,
    error::{Error, Invalid},
};

/// How long a server may take to acknowledge a lock, unless the client says otherwise.
///
/// Longer than a replica on the same continent needs, and short enough to be waited for.
pub const DURABILITY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);

/// Who must have a lock before its holder goes on: for [`ClientBuilder::durability`](crate::ClientBuilder::durability), and
/// [`Mutex::durability`](crate::Mutex::durability) of each kind.
///
/// A server replicates after it has answered. So a lock that was just taken is forgotten if the server dies and a replica is promoted that
/// has not heard of it. With a policy the lock is taken as ever. Then the client renews it, and waits until those that the policy names
/// have acknowledged the renewal: one `WAIT` or `WAITAOF` for all locks that wait at that moment, on a connection of its own.
///
/// From then on the guard is valid for as long as was acknowledged: a renewal that no replica has acknowledged moves its end no further.
/// So if a replica is promoted **that has acknowledged**, it keeps the lock for as long as its guard is valid. It is no consensus: a replica that has
/// not acknowledged may be promoted, too, and then two may hold the lock until [`lost`](crate::Guard::lost) tells.
///
/// | | lock and release | survives |
/// |---|---|---|
/// | `Primary` | two round trips | nothing that the server does not |
/// | `Replicas(n)`, `Majority` | one more, and the replica's | the primary, if one that acknowledged is promoted |
/// | `Aof` | one more, and the disk's (up to a second with `appendfsync everysec`) | a restart of the server with its file |
///
/// In a cluster the node that has the lock's slot is asked, and its own replicas, or its disk, count.
///
/// Kinds with a renewed lease have it: mutex, fenced, fair, spin and plain mutex, read-write lock, leased semaphore, elections, and multi-locks of
/// these. A fixed lease and a semaphore without leases are refused before anything is sent; so is any policy in memory and on a quorum. An
/// owner that enters again has what its hold has.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::{Client, Durability};
///
/// let client = Client::builder()
///     .url("redis://cache.internal/")
///     .durability_timeout(Duration::from_millis(500))
///     .connect()
///     .await?;
/// let guard = client.mutex("order:42").durability(Durability::Replicas(1)).lock().await?;
/// assert!(guard.durability().replicas >= 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The server that answers. Nothing more is sent, and nothing waited for.
    #[default]
    Primary,
    /// It, and so many replicas: 1 to 255. While fewer are connected, a lock fails at once.
    Replicas(u8),
    /// A majority of the server and all replicas that this client has ever seen beside it; at least one replica. Refused where the server
    /// does not tell how many there are (`INFO`).
    Majority,
    /// The append-only file on the server's disk (`WAITAOF`; Redis 7.2, Valkey, with `appendonly yes`).
    Aof,
}

/// The fate of a lock that was taken, but not acknowledged in time: for [`ClientBuilder::unmet`](crate::ClientBuilder::unmet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unmet {
    /// It is given back, and its caller told by [`Error::Rejected`]: "1 of 2 replicas acknowledged it within 1s".
    #[default]
    GiveBack,
    /// Its caller has it all the same, as one of [`Durability::Primary`], also after renewals that are not acknowledged.
    /// [`Guard::durability`](crate::Guard::durability) tells, and a warning in the log once a minute.
    Accept,
}

/// The acknowledgements of a hold: see [`Guard::durability`](crate::Guard::durability).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acknowledged {
    /// The policy that was asked for.
    pub policy: Durability,
    /// How many replicas had it, when the server was asked last.
    pub replicas: u32,
    /// The server had it on its disk, when it was asked last. Only [`Durability::Aof`] asks.
    pub on_disk: bool,
    /// When as many as the policy says had acknowledged it last; `None`: never, as with [`Durability::Primary`].
    pub at: Option<Instant>,
}

impl Durability {
    pub(crate) fn is_primary(self) -> bool {
        self == Durability::Primary
    }

    pub(crate) fn check(self) -> Result<(), Error> {
        // `WAIT 0` waits for no replica: it would confirm what none has.
        if self != Durability::Replicas(0) {
            return Ok(());
        }
        Err(
            Invalid::new("durability", self.to_string(), "at least 1 replica")
                .remedy("leave it out to wait for none")
                .into(),
        )
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The refusal of a policy where it cannot be had.
pub(crate) fn refused(policy: Durability, why: &str) -> Error {
    let limit = format!("Durability::Primary here: {why}");
    Invalid::new("durability", policy.to_string(), limit)
        .remedy("take Durability::Primary, or a client of a server with replicas")
        .into()
}

/// The time for an acknowledgement.
pub(crate) fn check_timeout(timeout: Duration) -> Result<(), Error> {
    let most = Duration::from_secs(60);
    let limit = if timeout < Duration::from_millis(1) {
        "at least 1ms".to_owned()
    } else if timeout > most {
        format!("at most {}", humane(most))
    } else {
        return Ok(());
    };
    let remedy = format!("leave it out for {}", humane(DURABILITY_TIMEOUT_DEFAULT));
    Err(Invalid::new("durability_timeout", humane(timeout), limit)
        .remedy(remedy)
        .into())
}

/// Why a lock is not as durable as its caller asked for.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum Missed {
    #[error("{acknowledged} of {wanted} replicas acknowledged it within {}", humane(*within))]
    Replicas {
        acknowledged: u32,
        wanted: u32,
        within: Duration,
    },
    #[error("{connected} of {wanted} replicas are connected to the server")]
    Connected { connected: u32, wanted: u32 },
    #[error("it was not in the server's append-only file within {}", humane(*.0))]
    Disk(Duration),
    #[error("fewer replicas than Durability::{policy} wants acknowledged it within {}", humane(*within))]
    Silent {
        policy: Durability,
        within: Duration,
    },
}

impl Missed {
    /// The server has not said by how much.
    pub(crate) fn silent(policy: Durability, within: Duration) -> Missed {
        match policy {
            Durability::Aof => Missed::Disk(within),
            // Without an answer not one has acknowledged. Of several that are wanted, some may have.
            Durability::Replicas(1) => Missed::Replicas {
                acknowledged: 0,
                wanted: 1,
                within,
            },
            Durability::Replicas(_) | Durability::Majority | Durability::Primary => {
                Missed::Silent { policy, within }
            }
        }
    }
}

/// A lock that was given back since its server, at this address, missed what was asked for.
#[derive(Debug)]
pub(crate) struct NotDurable {
    pub(crate) missed: Missed,
    pub(crate) server: String,
}

impl fmt::Display for NotDurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotDurable { missed, server } = self;
        write!(f, "{missed}, so it was given back; ")?;
        match missed {
            Missed::Connected { .. } => {
                write!(
                    f,
                    "start the replicas of {server}, or take Durability::Primary"
                )
            }
            Missed::Disk(_) => write!(
                f,
                "see to the disk of {server}, raise durability_timeout, or take Unmet::Accept"
            ),
            Missed::Replicas { .. } | Missed::Silent { .. } => write!(
                f,
                "see to {server} and its replicas, raise durability_timeout, or take Unmet::Accept"
            ),
        }
    }
}

impl std::error::Error for NotDurable {}
