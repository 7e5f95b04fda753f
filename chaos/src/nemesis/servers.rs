//! The servers of a run, and how the workers reach them.

use std::sync::Arc;

use leasehold_testkit::{Flavor, Primaries, Proxy, Server};

use super::{
    front::{Front, Pids},
    group::Group,
    nodes::{Nodes, PAIRS},
    roles::Switch,
    schedule::Fault,
};
use crate::{kind, topology::Topology};

/// The servers of a run.
pub(crate) struct Servers {
    place: Place,
    /// For each worker a proxy before each server; none of a group.
    proxies: Vec<Vec<Arc<Proxy>>>,
    /// A front before each server of a quorum.
    fronts: Vec<Front>,
    /// The processes of the workers, for the fronts.
    pids: Pids,
}

enum Place {
    /// A single server, or those of a quorum.
    Apart(Primaries),
    Group(Box<Group>),
    Nodes(Box<Nodes>),
}

impl Servers {
    pub(crate) fn start(
        topology: Topology,
        flavor: Flavor,
        workers: usize,
        names: &[String],
        full_coverage: bool,
    ) -> Servers {
        let pids: Pids = Arc::default();
        pids.lock().expect("nobody has it").resize(workers, None);
        let place = match topology {
            Topology::Sentinel => Some(Place::Group(Box::new(Group::start(flavor)))),
            Topology::Cluster => {
                let nodes = Nodes::start(flavor, names, full_coverage);
                Some(Place::Nodes(Box::new(nodes)))
            }
            Topology::Single | Topology::Quorum3 | Topology::Quorum5 => None,
        };
        if let Some(place) = place {
            return Servers {
                place,
                proxies: vec![Vec::new(); workers],
                fronts: Vec::new(),
                pids,
            };
        }
        // On disk what was answered: a restarted server has forgotten nothing, unless it is made to.
        let disk = ["--appendonly", "yes", "--appendfsync", "no"];
        let debug = ["--enable-debug-command", "yes"];
        let args = [&disk[..], &debug].concat();
        let servers = Primaries::start_with(topology.servers(), flavor, &args);
        let before = |server: &Server| Arc::new(Proxy::start(server.addr()));
        let proxies: Vec<Vec<_>> = (0..workers)
            .map(|_| servers.servers().iter().map(before).collect())
            .collect();
        let front = |at: usize| {
            let networks = proxies.iter().map(|all| Arc::clone(&all[at]));
            let front = Front::start(Arc::clone(&pids), networks.collect());
            front.expect("a listener on a free port")
        };
        let fronts = if topology.is_quorum() {
            (0..servers.len()).map(front).collect()
        } else {
            Vec::new()
        };
        Servers {
            place: Place::Apart(servers),
            proxies,
            fronts,
            pids,
        }
    }

    /// The URL that a worker is given.
    pub(crate) fn url(&self, worker: usize) -> String {
        match &self.place {
            Place::Group(group) => group.url(),
            Place::Nodes(nodes) => nodes.url(),
            Place::Apart(_) if self.fronts.is_empty() => self.proxies[worker][0].url(),
            Place::Apart(_) => {
                let addrs: Vec<String> =
                    self.fronts.iter().map(|it| it.addr().to_string()).collect();
                format!("redlock://{}/", addrs.join(","))
            }
        }
    }

    /// A worker has another process, or none.
    pub(crate) fn has_process(&self, worker: usize, pid: Option<u32>) {
        self.pids.lock().expect("no holder panics")[worker] = pid;
    }

    /// All that hold data.
    pub(crate) fn all(&self) -> &[Server] {
        match &self.place {
            Place::Apart(servers) => servers.servers(),
            Place::Group(group) => group.servers(),
            Place::Nodes(nodes) => nodes.servers(),
        }
    }

    /// The servers that are asked for keys, each with the names that it has: all, but of a cluster its primaries.
    pub(crate) fn heartbeats(&self, names: &[String]) -> Vec<(&Server, Vec<String>)> {
        let Place::Nodes(nodes) = &self.place else {
            return self.all().iter().map(|it| (it, names.to_vec())).collect();
        };
        let with_its = |pair| {
            let its = nodes.names_of(pair).into_iter();
            Some((
                nodes.primary(pair)?,
                its.map(|it| names[it].clone()).collect(),
            ))
        };
        (0..PAIRS).filter_map(with_its).collect()
    }

    /// Makes the semaphores where they are not. Where no server is the primary now, the next is told.
    pub(crate) fn prepare(&self, names: &[String]) -> redis::RedisResult<()> {
        match &self.place {
            Place::Apart(servers) => kind::prepare(servers.server(0), names, &["PUBLISH"]),
            Place::Group(group) => {
                let prepared = |primary| kind::prepare(primary, names, &["PUBLISH"]);
                group.primary().map_or(Ok(()), prepared)
            }
            Place::Nodes(_) => {
                let mut all = self.heartbeats(names).into_iter();
                let both = ["PUBLISH", "SPUBLISH"];
                all.try_for_each(|(server, names)| kind::prepare(server, &names, &both))
            }
        }
    }

    /// Looks after servers that replace each other. Answers whether one has become a primary that may have forgotten the semaphores.
    pub(crate) fn look(&mut self) -> bool {
        let before = self.switches().len();
        match &mut self.place {
            Place::Apart(_) => {}
            Place::Group(group) => group.look(),
            Place::Nodes(nodes) => nodes.look(),
        }
        self.switches().len() > before
    }

    /// How often a replica has become a primary, and when.
    pub(crate) fn switches(&self) -> &[Switch] {
        match &self.place {
            Place::Apart(_) => &[],
            Place::Group(group) => &group.switches,
            Place::Nodes(nodes) => &nodes.switches,
        }
    }

    /// No faults any more, and all are at one.
    pub(crate) fn settle(&mut self) {
        match &mut self.place {
            Place::Apart(_) => {}
            Place::Group(group) => group.settle(),
            Place::Nodes(nodes) => nodes.settle(),
        }
    }

    /// The servers that clients connect to.
    pub(crate) fn all_and_sentinels(&self) -> impl Iterator<Item = &Server> {
        let sentinels: &[Server] = match &self.place {
            Place::Apart(_) | Place::Nodes(_) => &[],
            Place::Group(group) => group.sentinels(),
        };
        self.all().iter().chain(sentinels)
    }

    /// The server with this number; of those that replace each other the primary, if it is well.
    pub(crate) fn at(&self, at: usize) -> Option<&Server> {
        match &self.place {
            Place::Apart(servers) => Some(servers.server(at)),
            Place::Group(group) => group.primary(),
            Place::Nodes(nodes) => nodes.primary(at),
        }
    }

    pub(crate) fn group(&mut self) -> Option<&mut Group> {
        match &mut self.place {
            Place::Group(group) => Some(group),
            Place::Apart(_) | Place::Nodes(_) => None,
        }
    }

    pub(crate) fn nodes(&mut self) -> Option<&mut Nodes> {
        match &mut self.place {
            Place::Nodes(nodes) => Some(nodes),
            Place::Apart(_) | Place::Group(_) => None,
        }
    }

    /// The proxies before the servers for this worker, in their order.
    pub(crate) fn proxies(&self, worker: usize) -> &[Arc<Proxy>] {
        &self.proxies[worker]
    }

    /// Begins a fault that needs the server's process.
    pub(crate) fn begin(&mut self, at: usize, fault: Fault) {
        match (&mut self.place, fault) {
            (Place::Apart(servers), Fault::StopServer) => servers.freeze(at),
            (Place::Apart(servers), _) => servers.kill(at),
            (Place::Group(_) | Place::Nodes(_), _) => {}
        }
    }

    pub(crate) fn end(&mut self, at: usize, fault: Fault) {
        match (&mut self.place, fault) {
            (Place::Apart(servers), Fault::StopServer) => servers.thaw(at),
            (Place::Apart(servers), Fault::RestartServer) => servers.restart(at),
            (Place::Apart(servers), Fault::RestartEmpty) => servers.restart_empty(at),
            _ => {}
        }
    }
}
