//! Three primaries, a replica of each, and the slots between them.

mod failovers;
mod members;
mod moves;
mod settings;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub use self::failovers::Failover;
use self::members::{Member, members};
pub use self::settings::ClusterSettings;
use crate::look::{look, pause, replication};
use crate::proxy::Proxy;
use crate::server::{Flavor, Server};
use crate::wait::wait_until;

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;

/// How long a cluster may take to come to terms: some 2.5 s on an idle machine.
const CLUSTER_DEADLINE: Duration = Duration::from_secs(60);

/// A cluster: nodes 0 to 2 are the primaries at first, each with a third of the slots, and node `i + 3` is the replica of node `i`.
///
/// These two stay partners for good: when one is lost, the other has the slots of both. Slots may [move](Cluster::migrate) between partners.
/// A node that does not answer for 1 s is taken for dead.
///
/// | what happens | a new primary takes writes after some |
/// |---|---|
/// | [`fail_over`](Cluster::fail_over) | 0.1 s |
/// | [`kill`](Cluster::kill), [`freeze`](Cluster::freeze) of a primary | 1.5 s (Valkey) to 2.5 s (Redis) |
///
/// ```no_run
/// use leasehold_testkit::{Cluster, Flavor};
///
/// let mut cluster = Cluster::start(Flavor::Redis);
/// println!("{}", cluster.url()); // redis-cluster://127.0.0.1:…,127.0.0.1:…,…
/// let slot = cluster.slot("invoice:42");
/// let primary = cluster.primary_of(slot);
/// let other = (primary + 1) % 3;
/// cluster.migrate(slot, other);
/// let successor = cluster.fail_over(other);
/// cluster.kill(successor);
/// assert_eq!(cluster.wait_for_successor(successor), other);
/// cluster.settle(); // the dead one is back, as a replica
/// ```
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    /// A proxy before each node, or none at all.
    proxies: Vec<Proxy>,
    /// By which names the nodes know each other.
    ids: Vec<String>,
    settings: ClusterSettings,
    /// When each was last seen to have taken its partner's place.
    elected: Mutex<[Option<Instant>; NODES]>,
}

impl Cluster {
    /// Starts all six and blocks until each finds the cluster whole, and the replicas are in sync.
    ///
    /// # Panics
    /// As [`Server::start`], and when they do not find each other.
    #[track_caller]
    pub fn start(flavor: Flavor) -> Cluster {
        Cluster::start_with(flavor, ClusterSettings::new())
    }

    /// [`start`](Cluster::start) with a [`Proxy`] in front of each node, to which the nodes send clients and their replicas. Nodes
    /// speak of each other past it, so one whose proxy is cut is not taken for dead.
    ///
    /// # Panics
    /// As [`start`](Cluster::start).
    #[track_caller]
    pub fn behind_proxies(flavor: Flavor) -> Cluster {
        Cluster::start_with(flavor, ClusterSettings::new().behind_proxies())
    }

    /// [`start`](Cluster::start) with logins, TLS, proxies or further arguments.
    ///
    /// # Panics
    /// As [`start`](Cluster::start).
    #[track_caller]
    pub fn start_with(flavor: Flavor, settings: ClusterSettings) -> Cluster {
        let args = settings.node_args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let start = |_| Server::start_cluster_node(flavor, &args, settings.tls.as_ref());
        let mut nodes: Vec<Server> = (0..NODES).map(start).collect();
        let mut proxies = Vec::new();
        if settings.proxies {
            proxies.extend(nodes.iter().map(data_addr).map(Proxy::start));
        }
        for (node, proxy) in nodes.iter_mut().zip(&proxies) {
            node.set(settings.announces(), &proxy.addr().port().to_string());
        }
        let id = |node: &Server| look(node, &["CLUSTER", "MYID"]).expect("a node has a name");
        let cluster = Cluster {
            ids: nodes.iter().map(id).collect(),
            nodes,
            proxies,
            settings,
            elected: Mutex::default(),
        };
        cluster.join();
        cluster.wait_until_whole();
        cluster
    }

    /// By hand, as `redis-cli --cluster create` does not wait for the replicas.
    #[track_caller]
    fn join(&self) {
        for (i, node) in self.nodes.iter().enumerate() {
            if i < PRIMARIES {
                let first = i * SLOTS / PRIMARIES;
                let last = (i + 1) * SLOTS / PRIMARIES - 1;
                let share = [first.to_string(), last.to_string()];
                node.cli(&["CLUSTER", "ADDSLOTSRANGE", &share[0], &share[1]]);
            }
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
        }
        for (i, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[i + 1..] {
                let (port, bus) = (other.peer_port().to_string(), other.bus_port());
                node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
            }
        }
        for i in 0..PRIMARIES {
            let replica = &self.nodes[partner(i)];
            let follow = ["CLUSTER", "REPLICATE", &self.ids[i]];
            wait_until(CLUSTER_DEADLINE, "a replica knows its primary", || {
                replica.ask(&follow).is_ok() || pause()
            });
        }
    }

    /// `redis-cluster://[USER:PASSWORD@]127.0.0.1:PORT,…` of all six nodes, or of their proxies; `rediss-cluster://` and the ports of TLS, if
    /// they speak it.
    pub fn url(&self) -> String {
        let scheme = if self.settings.tls.is_some() {
            "rediss-cluster"
        } else {
            "redis-cluster"
        };
        let hosts: Vec<String> = (0..NODES).map(|i| self.addr(i).to_string()).collect();
        let login = self.settings.login.in_url();
        format!("{scheme}://{login}{}", hosts.join(","))
    }

    /// Where clients reach a node: through its proxy, if it has one.
    #[track_caller]
    pub fn addr(&self, node: usize) -> SocketAddr {
        let behind = || data_addr(&self.nodes[node]);
        self.proxies.get(node).map_or_else(behind, Proxy::addr)
    }

    /// All nodes, in their order.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The node with this number.
    #[track_caller]
    pub fn node(&self, node: usize) -> &Server {
        &self.nodes[node]
    }

    /// By which name the others know a node.
    #[track_caller]
    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    /// The proxy in front of a node.
    ///
    /// # Panics
    /// When they are not [behind proxies](Cluster::behind_proxies).
    #[track_caller]
    pub fn proxy(&self, node: usize) -> &Proxy {
        let proxy = self.proxies.get(node);
        proxy.expect("the cluster was started behind_proxies")
    }

    /// Runs one command at a node, for assertions; see [`Server::cli`].
    ///
    /// # Panics
    /// When the reply is an error, such as `MOVED`, or none comes.
    #[track_caller]
    pub fn command(&self, node: usize, command: &[&str]) -> redis::Value {
        self.nodes[node].cli(command)
    }

    /// The slot of a key, as the servers count it.
    ///
    /// # Panics
    /// When no node answers.
    #[track_caller]
    pub fn slot(&self, key: &str) -> u16 {
        let mut nodes = self.nodes.iter();
        let slot = nodes.find_map(|node| look(node, &["CLUSTER", "KEYSLOT", key]));
        slot.expect("a node answers")
    }

    /// How many clients have subscribed to a channel at this node.
    #[track_caller]
    pub fn subscribers(&self, node: usize, channel: &str) -> u64 {
        self.counted(node, "NUMSUB", channel)
    }

    /// How many clients have subscribed to a sharded channel at this node.
    #[track_caller]
    pub fn shard_subscribers(&self, node: usize, channel: &str) -> u64 {
        self.counted(node, "SHARDNUMSUB", channel)
    }

    #[track_caller]
    fn counted(&self, node: usize, what: &str, channel: &str) -> u64 {
        let counts = self.command(node, &["PUBSUB", what, channel]);
        let (_, count): (String, u64) = redis::from_redis_value(counts).expect("a count");
        count
    }

    /// Which node has this slot: of those that say so of themselves, the one with the highest configuration epoch. If none of those that
    /// answer has it, the one that the others name.
    ///
    /// # Panics
    /// When no node answers with an owner.
    #[track_caller]
    pub fn primary_of(&self, slot: u16) -> usize {
        let views = self.views();
        let owner = self.owner(&views, slot);
        owner.unwrap_or_else(|| panic!("no node that answers knows who has slot {slot}"))
    }

    /// The nodes that have slots, in their order.
    pub fn primaries(&self) -> Vec<usize> {
        let views = self.views();
        // A node with slots has the first one of a range.
        let ranges = views.iter().flatten().flat_map(|member| &member.slots);
        let owners = ranges.filter_map(|range| self.owner(&views, *range.start()));
        let mut owners: Vec<usize> = owners.collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// The other node of the two that have the same slots: a primary's replica, or a replica's primary.
    pub fn partner(&self, node: usize) -> usize {
        partner(node)
    }

    /// Blocks until all agree who has which slot and replicas are in sync: between two rounds of a test. Dead nodes are started,
    /// frozen ones thawed, proxies healed. Slots that are open stay so.
    ///
    /// # Panics
    /// When they do not come to terms.
    #[track_caller]
    pub fn settle(&mut self) {
        self.proxies.iter().for_each(Proxy::heal);
        self.nodes.iter_mut().for_each(Server::revive);
        self.wait_until_whole();
    }

    #[track_caller]
    fn wait_until_whole(&self) {
        wait_until(CLUSTER_DEADLINE, "the cluster is whole", || {
            self.is_whole() || pause()
        });
    }

    fn is_whole(&self) -> bool {
        let says = |node: &Server, word: &str| {
            let info: Option<String> = look(node, &["CLUSTER", "INFO"]);
            info.is_some_and(|info| info.contains(word))
        };
        let in_sync = |primary: &usize| {
            let linked = replication(&self.nodes[partner(*primary)]);
            linked.contains("master_link_status:up")
                && replication(&self.nodes[*primary]).contains("state=online")
        };
        // The cheap looks come first: most of them fail while the nodes find each other.
        self.nodes.iter().all(|node| says(node, "cluster_state:ok")) && {
            let views = self.views();
            let slots = |view: &Vec<Member>| {
                let slots = view.iter().filter(|member| member.primary);
                let mut slots: Vec<_> = slots.map(|m| (m.id.clone(), m.slots.clone())).collect();
                slots.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                slots
            };
            let primaries = self.primaries();
            views.len() == NODES
                && views.iter().all(|view| {
                    view.len() == NODES
                        && view.iter().all(|member| member.well)
                        && slots(view) == slots(&views[0])
                })
                && primaries.len() == PRIMARIES
                && primaries.iter().all(in_sync)
        }
    }

    /// All nodes, as each node that answers sees them.
    fn views(&self) -> Vec<Vec<Member>> {
        self.nodes.iter().filter_map(members).collect()
    }

    fn owner(&self, views: &[Vec<Member>], slot: u16) -> Option<usize> {
        let named = views.iter().flatten();
        let named = named.filter(|member| member.primary && member.has(slot));
        let first = named.max_by_key(|member| (member.own, member.epoch))?;
        self.known(&first.id)
    }

    /// Whether it says so, and none with a higher epoch says otherwise.
    fn is_primary(&self, node: usize) -> bool {
        let views = self.views();
        let own = |member: &&Member| member.own && member.primary && member.id == self.ids[node];
        let own = views.iter().flatten().find(own);
        let first = own.and_then(|own| Some(*own.slots.first()?.start()));
        first.is_some_and(|slot| self.owner(&views, slot) == Some(node))
    }

    fn known(&self, id: &str) -> Option<usize> {
        self.ids.iter().position(|known| known == id)
    }
}

/// The node that has the same slots as this one.
fn partner(node: usize) -> usize {
    (node + PRIMARIES) % NODES
}

/// Where a node takes commands: for TLS, if it speaks it.
fn data_addr(node: &Server) -> SocketAddr {
    SocketAddr::new(node.addr().ip(), node.peer_port())
}
