//! A cluster as it is given: some of its nodes, and how to log in to each.

use std::{collections::HashMap, fmt};

use crate::{
    address::{self, Several, shown},
    backend::redis::{
        discovery::Address,
        target::{Login, Target},
    },
    cluster::ClusterNodes,
    error::{Error, Invalid},
};

/// How the URL of a cluster begins.
const SCHEMES: [&str; 4] = [
    "redis-cluster",
    "rediss-cluster",
    "valkey-cluster",
    "valkeys-cluster",
];

/// A cluster, before anything is asked.
pub(crate) struct GivenCluster {
    /// The nodes that were given.
    pub(super) seeds: Vec<Address>,
    /// How to log in to a node, at whichever address.
    pub(super) target: Target,
    /// Where nodes are reached that say that they are elsewhere.
    pub(super) elsewhere: HashMap<Address, Address>,
}

impl GivenCluster {
    /// From a URL such as `redis-cluster://user:password@host:6379,host`; `None`: it is that of something else.
    pub(crate) fn parse(given: &str, login: &Login) -> Option<Result<GivenCluster, Error>> {
        let (scheme, rest) = given.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        if !SCHEMES.contains(&&*scheme) {
            return None;
        }
        let Several {
            login: user,
            hosts,
            tail,
        } = match Several::of(rest) {
            Ok(several) => several,
            Err(invalid) => return Some(Err(invalid.into())),
        };
        let scheme = scheme.trim_end_matches("-cluster");
        let urls = hosts
            .iter()
            .map(|host| format!("{scheme}://{user}{host}{tail}"));
        Some(GivenCluster::of_urls(urls, login))
    }

    /// From the settings of a program.
    pub(crate) fn of(given: &ClusterNodes, login: &Login) -> Result<GivenCluster, Error> {
        // Hosts come without a scheme here: settings for TLS say that the nodes speak it.
        #[cfg(feature = "tls")]
        let scheme = login.tls.as_ref().map_or("redis", |_| "rediss");
        #[cfg(not(feature = "tls"))]
        let scheme = "redis";
        let elsewhere = given
            .elsewhere
            .iter()
            .flat_map(|(says, is_at)| [says, is_at]);
        for host in given.hosts.iter().chain(elsewhere) {
            // Before a URL is made of it: a login in a host would be shown by the error of that URL (bug 276).
            address::check_given("the address of a node", host)?;
        }
        let urls = given.hosts.iter().map(|host| format!("{scheme}://{host}/"));
        let mut cluster = GivenCluster::of_urls(urls, login)?;
        for (says, is_at) in &given.elsewhere {
            let says = Target::address_of(says)?;
            cluster.elsewhere.insert(says, Target::address_of(is_at)?);
        }
        Ok(cluster)
    }

    fn of_urls(urls: impl Iterator<Item = String>, login: &Login) -> Result<GivenCluster, Error> {
        let (mut seeds, mut first) = (Vec::new(), None);
        for url in urls {
            let target = Target::parse(&url, login)?;
            let address = target.address().ok_or_else(no_host)?;
            if !seeds.contains(&address) {
                seeds.push(address);
            }
            // Login, TLS and database are the same in all URLs, so the first stands for each node at whichever address.
            first.get_or_insert(target);
        }
        let mut target = first.ok_or_else(no_host)?;
        target.in_cluster = true;
        Ok(GivenCluster {
            seeds,
            target,
            elsewhere: HashMap::new(),
        })
    }
}

fn no_host() -> Error {
    let limit = "at least one host";
    Invalid::new("the nodes of the cluster", "none", limit)
        .remedy("such as redis-cluster://host:6379,host:6379")
        .into()
}

/// As a URL, without secrets.
impl fmt::Display for GivenCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Shown as Redis also where the URL said Valkey: the two schemes mean the same.
        let scheme = if self.target.speaks_tls() {
            "rediss"
        } else {
            "redis"
        };
        let hosts: Vec<_> = self.seeds.iter().map(shown).collect();
        write!(f, "{scheme}-cluster://{}", hosts.join(","))?;
        match self.target.database() {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<GivenCluster, Error> {
        GivenCluster::parse(url, &Login::default()).unwrap()
    }

    #[test]
    fn a_cluster_is_read_from_its_url_and_shown_without_secrets() {
        let cluster =
            parse("Valkey-cluster://me:hu%40sh@one:7000,two,[::1]:7002,two:6379/").unwrap();
        let shown = "redis-cluster://one:7000,two:6379,[::1]:7002";
        assert_eq!(cluster.to_string(), shown);
        assert_eq!(
            cluster.target.info.redis_settings().password(),
            Some("hu@sh")
        );
        let cluster = parse("redis-cluster://one,two:7000/3").unwrap();
        assert_eq!(cluster.to_string(), "redis-cluster://one:6379,two:7000/3");
        let login = Login {
            database: Some(5),
            ..Login::default()
        };
        let cluster = GivenCluster::of(&ClusterNodes::new(["one"]), &login).unwrap();
        assert_eq!(cluster.to_string(), "redis-cluster://one:6379/5");
        assert!(GivenCluster::parse("redis://one", &Login::default()).is_none());
    }

    #[test]
    fn what_is_wrong_with_the_url_of_a_cluster_is_said_without_its_secrets() {
        for (url, says) in [
            ("redis-cluster://:hush@one:0,two", "between 1 and 65535"),
            ("redis-cluster://:hush@", "empty host"),
            ("redis-cluster://:hush@one,/", "empty host"),
            ("redis-cluster://:hush@one,two/-3", "at least 0"),
            ("redis-cluster://:12#hush@one", "# as %23"),
            ("redis-cluster://:12/hush@one", "/ as %2F"),
        ] {
            let Err(error) = parse(url) else {
                panic!("{url} was taken")
            };
            let error = error.to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush"), "{url}: {error}");
        }
    }
}
