//! Who must have a client's locks.

use std::time::Duration;

use super::{Backing, ClientBuilder, Prepared};
use crate::{Durability, Error, Unmet, backend::Backend, durability::refused};

impl ClientBuilder {
    /// Who must have a lock of this client before its holder goes on. Default: [`Durability::Primary`], which costs nothing.
    ///
    /// Each lock may say otherwise ([`Mutex::durability`](crate::Mutex::durability)). A server that cannot do it is refused when the client connects, or
    /// when a lock is first asked for.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::{Client, Durability, Unmet};
    ///
    /// let client = Client::builder()
    ///     .url("redis-sentinel://a:26379,b:26379,c:26379/?master=main")
    ///     .durability(Durability::Majority)
    ///     .durability_timeout(Duration::from_millis(300))
    ///     .unmet(Unmet::Accept) // the guard tells what it is worth
    ///     .connect()
    ///     .await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// if guard.durability().at.is_none() {
    ///     eprintln!("no replica has this lock yet");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// For how long an acknowledgement is waited for, counted from when the lock was taken; 50 ms more at most. Default: 1 s. 1 ms to 1 min.
    ///
    /// Give it twice the time that a replica may need: locks that ask while others are acknowledged wait for these first.
    pub fn durability_timeout(mut self, timeout: Duration) -> Self {
        self.config.durability_timeout = timeout;
        self
    }

    /// The fate of a lock that was not acknowledged in time. Default: it is given back, and its caller has an error.
    pub fn unmet(mut self, unmet: Unmet) -> Self {
        self.config.unmet = unmet;
        self
    }
}

impl Prepared {
    /// Refuses a policy that no server could keep where the leases live.
    pub(super) fn with_durability(self) -> Result<Prepared, Error> {
        let backend: &dyn Backend = match &self.backing {
            Backing::Memory(backend, _) => &**backend,
            Backing::Server(redis, _) => &**redis,
            Backing::Cluster(cluster, _) => cluster,
            Backing::Quorum(quorum) => &quorum.quorum,
        };
        match backend.confirms() {
            // Refused also where the client connects lazily: this needs no server.
            Err(why) if !self.config.durability.is_primary() => {
                Err(refused(self.config.durability, why))
            }
            _ => Ok(self),
        }
    }
}

/// Asks the servers to which a client has connected whether they can do what all its locks want.
pub(super) async fn check(backing: &Backing, policy: Durability) -> Result<(), Error> {
    let able = match backing {
        _ if policy.is_primary() => return Ok(()),
        Backing::Server(redis, _) => redis.is_able(policy).await,
        Backing::Cluster(cluster, _) => cluster.is_able(policy).await,
        // They have refused it before.
        Backing::Memory(..) | Backing::Quorum(_) => Ok(()),
    };
    able.map_err(|failure| failure.into_read_error(format!("connect with {policy}")))
}
