//! How a cluster is made.

use crate::login::Login;
use crate::server::TlsFiles;

/// The logins of a [`Cluster`](super::Cluster), whether it speaks TLS, and whether its nodes are behind proxies.
#[derive(Debug, Clone, Default)]
pub struct ClusterSettings {
    pub(super) login: Login,
    pub(super) tls: Option<TlsFiles>,
    pub(super) proxies: bool,
    args: Vec<String>,
}

impl ClusterSettings {
    /// No passwords, no TLS, no proxies.
    pub fn new() -> ClusterSettings {
        ClusterSettings::default()
    }

    /// The nodes want this password, of their default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> ClusterSettings {
        self.login.password = Some(password.to_owned());
        self
    }

    /// The nodes have this user beside their default one; both have this password. Replicas log in as this user.
    #[must_use]
    pub fn user(mut self, user: &str, password: &str) -> ClusterSettings {
        self.login.user = Some(user.to_owned());
        self.password(password)
    }

    /// All nodes speak TLS at [ports of their own](crate::Server::tls_url), and with each other.
    #[must_use]
    pub fn tls(mut self, tls: TlsFiles) -> ClusterSettings {
        self.tls = Some(tls);
        self
    }

    /// Each node tells clients and its replica to come to a [`Proxy`](crate::Proxy) in front of it.
    #[must_use]
    pub fn behind_proxies(mut self) -> ClusterSettings {
        self.proxies = true;
        self
    }

    /// Further arguments of the nodes, such as `["--cluster-preferred-endpoint-type", "unknown-endpoint"]`. They win over the kit's.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> ClusterSettings {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    pub(super) fn node_args(&self) -> Vec<String> {
        let own = [
            ("--cluster-node-timeout", "1000"),
            ("--cluster-replica-validity-factor", "0"),
            // Each node keeps the partner it has.
            ("--cluster-allow-replica-migration", "no"),
            ("--repl-diskless-sync-delay", "0"),
            ("--repl-ping-replica-period", "1"),
        ];
        let speak = [("--tls-replication", "yes"), ("--tls-cluster", "yes")];
        let speak = self.tls.iter().flat_map(|_| speak);
        let both = |(name, value): (&str, &str)| [name.to_owned(), value.to_owned()];
        let mut args: Vec<String> = own.into_iter().chain(speak).flat_map(both).collect();
        args.extend(self.login.args());
        args.extend(self.args.iter().cloned());
        args
    }

    /// By which setting a node names the port of its proxy.
    pub(super) fn announces(&self) -> &'static str {
        if self.tls.is_some() {
            "cluster-announce-tls-port"
        } else {
            "cluster-announce-port"
        }
    }
}
