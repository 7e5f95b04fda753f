//! The servers of a run, and how the workers reach them.

use std::sync::Arc;

use leasehold_testkit::{Flavor, Primaries, Proxy, Server};

use super::{
    front::{Front, Pids},
    group::Group,
    schedule::Fault,
};
use crate::topology::Topology;

/// The servers of a run.
pub(crate) struct Servers {
    place: Place,
    /// For each worker a proxy before each server; none of a group.
    proxies: Vec<Vec<Arc<Proxy>>>,
    /// One before each server of a quorum.
    fronts: Vec<Front>,
    /// The processes of the workers, for the fronts.
    pids: Pids,
}

enum Place {
    /// One, or those of a quorum.
    Apart(Primaries),
    Group(Box<Group>),
}

impl Servers {
    pub(crate) fn start(topology: Topology, flavor: Flavor, workers: usize) -> Servers {
        let pids: Pids = Arc::default();
        pids.lock().expect("nobody has it").resize(workers, None);
        if topology == Topology::Sentinel {
            return Servers {
                place: Place::Group(Box::new(Group::start(flavor))),
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
        }
    }

    /// Those that clients connect to.
    pub(crate) fn all_and_sentinels(&self) -> impl Iterator<Item = &Server> {
        let sentinels: &[Server] = match &self.place {
            Place::Apart(_) => &[],
            Place::Group(group) => group.sentinels(),
        };
        self.all().iter().chain(sentinels)
    }

    /// One of them; of a group its primary, if it is well.
    pub(crate) fn at(&self, at: usize) -> Option<&Server> {
        match &self.place {
            Place::Apart(servers) => Some(servers.server(at)),
            Place::Group(group) => group.primary(),
        }
    }

    pub(crate) fn group(&mut self) -> Option<&mut Group> {
        match &mut self.place {
            Place::Apart(_) => None,
            Place::Group(group) => Some(group),
        }
    }

    /// What stands before the servers for this worker, in their order.
    pub(crate) fn proxies(&self, worker: usize) -> &[Arc<Proxy>] {
        &self.proxies[worker]
    }

    /// Begins a fault that needs the server's process.
    pub(crate) fn begin(&mut self, at: usize, fault: Fault) {
        match (&mut self.place, fault) {
            (Place::Apart(servers), Fault::StopServer) => servers.freeze(at),
            (Place::Apart(servers), _) => servers.kill(at),
            (Place::Group(_), _) => {}
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
