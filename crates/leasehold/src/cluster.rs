//! The nodes of a cluster, as a program gives them.

use std::fmt;

use crate::address;

/// Some nodes of a Redis or Valkey Cluster, and where its nodes are reached if not where they say.
///
/// A client that is given them asks one for the others. [servers](crate::docs::topologies) says what a lock survives in a cluster.
/// The URL `redis-cluster://user:password@host:port,host:port` says the same, but for addresses.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, ClusterNodes};
///
/// // From outside of the network in which the nodes know each other.
/// let nodes = ClusterNodes::new(["gate.example:7001", "gate.example:7002"])
///     .reached_at("10.0.0.1:6379", "gate.example:7001")
///     .reached_at("10.0.0.2:6379", "gate.example:7002");
/// let client = Client::builder().cluster(nodes).password("of all nodes").connect().await?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "give it to ClientBuilder::cluster"]
pub struct ClusterNodes {
    pub(crate) hosts: Vec<String>,
    /// The address that a node calls its own, and the address at which it is reached.
    pub(crate) elsewhere: Vec<(String, String)>,
}

impl ClusterNodes {
    /// Nodes at these addresses, each `host` or `host:port`; the port is 6379 if it is left out. The first that answers names the others: give
    /// two or three. The login of all nodes is for [`ClientBuilder::password`](crate::ClientBuilder::password).
    pub fn new<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> ClusterNodes {
        ClusterNodes {
            hosts: hosts.into_iter().map(Into::into).collect(),
            elsewhere: Vec::new(),
        }
    }

    /// A node that calls its address `says` is reached at `is_at`: both `host:port`. For nodes behind NAT, one call for each.
    ///
    /// # Source
    /// Redisson `ClusterServersConfig#setNatMapper`.
    #[doc(alias("NatMapper", "setNatMapper"))]
    pub fn reached_at(mut self, says: impl Into<String>, is_at: impl Into<String>) -> ClusterNodes {
        self.elsewhere.push((says.into(), is_at.into()));
        self
    }
}

impl fmt::Debug for ClusterNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not a login that a program has put there.
        let hosts: Vec<_> = self.hosts.iter().map(|host| address::given(host)).collect();
        let elsewhere = self.elsewhere.iter();
        let elsewhere: Vec<_> = elsewhere
            .map(|(says, is_at)| (address::given(says), address::given(is_at)))
            .collect();
        f.debug_struct("ClusterNodes")
            .field("hosts", &hosts)
            .field("elsewhere", &elsewhere)
            .finish()
    }
}
