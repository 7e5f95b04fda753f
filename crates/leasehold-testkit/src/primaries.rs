//! Several servers that know nothing of each other.

use crate::proxy::Proxy;
use crate::server::{Flavor, Server};

/// Servers that know nothing of each other: the N of a quorum. They are numbered from 0.
///
/// ```
/// # use leasehold_testkit::{Flavor, Primaries};
/// # if Flavor::Redis.binary().is_none() { return }
/// let mut servers = Primaries::start(3, Flavor::Redis).behind_proxies();
/// let urls = servers.urls();
/// servers.proxy(0).black_hole(None); // no answer
/// servers.kill(1); // a refusal
/// servers.restart_empty(1); // on its port, as one that has forgotten
/// assert_eq!(servers.urls(), urls);
/// ```
#[derive(Debug)]
pub struct Primaries {
    servers: Vec<Server>,
    /// A proxy before each server, or none at all.
    proxies: Vec<Proxy>,
}

impl Primaries {
    /// Starts `n` servers and blocks until they answer.
    ///
    /// # Panics
    /// As [`Server::start`].
    #[track_caller]
    pub fn start(n: usize, flavor: Flavor) -> Primaries {
        Primaries::start_with(n, flavor, &[])
    }

    /// Starts `n` servers with further arguments, such as `["--appendonly", "yes"]`.
    ///
    /// # Panics
    /// As [`Server::start`].
    #[track_caller]
    pub fn start_with(n: usize, flavor: Flavor, args: &[&str]) -> Primaries {
        Primaries {
            servers: (0..n).map(|_| Server::start_with(flavor, args)).collect(),
            proxies: Vec::new(),
        }
    }

    /// Puts a [`Proxy`] in front of each: the URLs lead there from now on.
    #[must_use]
    pub fn behind_proxies(mut self) -> Primaries {
        let proxies = self.servers.iter().map(Server::addr).map(Proxy::start);
        self.proxies = proxies.collect();
        self
    }

    /// How many there are, dead or alive.
    #[allow(clippy::len_without_is_empty, reason = "there is no group of none")]
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// The server with this number.
    #[track_caller]
    pub fn server(&self, i: usize) -> &Server {
        &self.servers[i]
    }

    /// All of them, in their order.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The proxy in front of a server.
    ///
    /// # Panics
    /// When they are not [behind proxies](Primaries::behind_proxies).
    #[track_caller]
    pub fn proxy(&self, i: usize) -> &Proxy {
        let proxy = self.proxies.get(i);
        proxy.expect("the servers were put behind_proxies")
    }

    /// Where a client reaches a server, through its proxy if it has one. This URL stays the same for good.
    #[track_caller]
    pub fn url(&self, i: usize) -> String {
        let server = &self.servers[i];
        let addr = self.proxies.get(i).map_or(server.addr(), Proxy::addr);
        server.url_at(addr)
    }

    /// [`url`](Primaries::url) of each, in their order.
    pub fn urls(&self) -> Vec<String> {
        (0..self.len()).map(|i| self.url(i)).collect()
    }

    /// Kills one (`SIGKILL`). Its port refuses connections; its proxy takes them and closes them.
    pub fn kill(&mut self, i: usize) {
        self.servers[i].kill();
    }

    /// Stops one from running; see [`Server::freeze`].
    pub fn freeze(&self, i: usize) {
        self.servers[i].freeze();
    }

    /// Lets a frozen one run again; see [`Server::thaw`].
    pub fn thaw(&self, i: usize) {
        self.servers[i].thaw();
    }

    /// Kills one if it runs, and starts it on the same port with its data, if its arguments ask for persistence; else empty.
    ///
    /// # Panics
    /// As [`Server::restart`].
    #[track_caller]
    pub fn restart(&mut self, i: usize) {
        self.servers[i].restart();
    }

    /// Kills one if it runs, and starts it on the same port as one that has forgotten everything.
    ///
    /// # Panics
    /// As [`Server::restart`].
    #[track_caller]
    pub fn restart_empty(&mut self, i: usize) {
        self.servers[i].restart_empty();
    }
}
