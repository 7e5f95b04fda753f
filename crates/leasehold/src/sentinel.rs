//! Sentinels, which know where the primary of a group of servers is.

use std::fmt;

#[cfg(feature = "tls")]
use crate::Tls;
use crate::address;

/// The sentinels of a group of servers, and how to log in to them.
///
/// A client that is given them asks where the primary is before each attempt to connect, and hears from them when another server takes
/// its place: all that leads to the old one is cut off at that word. Sentinels that an operator has set anew are followed once more than half
/// of them name the same server; while it holds or waits, the client asks them every 2 s. [servers](crate::docs::topologies) says what a lock survives then.
///
/// A URL says the same, `redis-sentinel://user:password@host:26379,host:26379/database?master=name`, but for TLS and certificates that
/// are not those of the primary.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Sentinel};
///
/// let sentinel = Sentinel::new(["sentinel-1:26379", "sentinel-2:26379", "sentinel-3:26379"])
///     .master("main")
///     .password("of the sentinels");
/// let client = Client::builder()
///     .sentinel(sentinel)
///     .username("orders") // of the primary
///     .password("of the primary")
///     .connect()
///     .await?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "give it to ClientBuilder::sentinel"]
pub struct Sentinel {
    pub(crate) hosts: Vec<String>,
    pub(crate) master: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// The address of a server or a sentinel as the sentinels say it, and the address at which it is reached.
    pub(crate) elsewhere: Vec<(String, String)>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

impl Sentinel {
    /// Sentinels at these addresses, each `host` or `host:port`; the port is 26379 if it is left out. A sentinel that answers
    /// names the others: give two or three.
    pub fn new<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Sentinel {
        Sentinel {
            hosts: hosts.into_iter().map(Into::into).collect(),
            master: String::new(),
            username: None,
            password: None,
            elsewhere: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The name by which they know the primary: the first word behind `sentinel monitor` in their configuration. Without it the client is
    /// refused as [`Invalid`](crate::Error::Invalid).
    pub fn master(mut self, name: impl Into<String>) -> Sentinel {
        self.master = name.into();
        self
    }

    /// The user to log in to the sentinels as. The primary's is [`ClientBuilder::username`](crate::ClientBuilder::username).
    pub fn username(mut self, username: impl Into<String>) -> Sentinel {
        self.username = Some(username.into());
        self
    }

    /// The password of the sentinels. Never shown in a log, a `Debug` or an error. The primary's is
    /// [`ClientBuilder::password`](crate::ClientBuilder::password).
    pub fn password(mut self, password: impl Into<String>) -> Sentinel {
        self.password = Some(password.into());
        self
    }

    /// A server or a sentinel that the sentinels say is at `says` is reached at `is_at`: both `host:port`. For groups behind NAT or in a network of
    /// containers, one call for each server, replicas included, and for each sentinel that is not given at its place. An address without a
    /// port is refused as [`Invalid`](crate::Error::Invalid).
    ///
    /// # Examples
    /// ```
    /// use leasehold::Sentinel;
    ///
    /// let sentinel = Sentinel::new(["gate.example:26379"])
    ///     .master("main")
    ///     .reached_at("10.0.0.1:6379", "gate.example:7001")
    ///     .reached_at("10.0.0.2:6379", "gate.example:7002")
    ///     .reached_at("10.0.0.8:26379", "gate.example:26380");
    /// # drop(sentinel);
    /// ```
    ///
    /// # Source
    /// Redisson `SentinelServersConfig#setNatMapper`.
    #[doc(alias("NatMapper", "setNatMapper"))]
    pub fn reached_at(mut self, says: impl Into<String>, is_at: impl Into<String>) -> Sentinel {
        self.elsewhere.push((says.into(), is_at.into()));
        self
    }

    /// Speaks TLS with the sentinels. Feature `tls`. With the primary it is spoken if [`ClientBuilder::tls`](crate::ClientBuilder::tls)
    /// says so.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Sentinel {
        self.tls = Some(tls);
        self
    }
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the password, nor a login that a program has put before a host.
        let hosts: Vec<_> = self.hosts.iter().map(|host| address::given(host)).collect();
        f.debug_struct("Sentinel")
            .field("hosts", &hosts)
            .field("master", &self.master)
            .finish_non_exhaustive()
    }
}
