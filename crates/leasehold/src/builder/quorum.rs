//! Several servers, of which a majority decides.

use std::{io, sync::Arc, time::Duration};

use super::{ClientBuilder, InProcess, given::check_characters};
use crate::{
    Error,
    address::{self, Several},
    backend::{
        Backend, Sink,
        memory::MemoryServer,
        quorum::{Quorum, Sinks},
        redis::{GivenServer, Login, Redis},
    },
    background::BackgroundRuntime,
    clock::Clock,
    config::{Config, LEASE_DEFAULT},
    durations::humane,
    error::Invalid,
    user_callback,
};

/// The servers, as they were given.
#[derive(Clone)]
pub(super) enum Given {
    Urls(Vec<String>),
    InProcess(Vec<InProcess>),
}

/// A quorum that lacks at most its connections.
pub(super) struct PreparedQuorum {
    pub(super) quorum: Quorum,
    pub(super) clock: Clock,
    pub(super) background: BackgroundRuntime,
}

impl ClientBuilder {
    /// Keep the leases on several servers that know nothing of each other, of which a majority decides (Redlock), instead of on one. Each
    /// URL is one of [`url`](ClientBuilder::url), of a single server.
    ///
    /// A lock survives the loss of a minority: of three servers one may die, of five two. There are
    /// [`Mutex`](crate::Mutex), [`SpinMutex`](crate::SpinMutex), [`PlainMutex`](crate::PlainMutex) and [`MultiLock`](crate::MultiLock)s of these;
    /// other kinds are refused with the reason. All clients must name the same servers.
    ///
    /// **After a restart a server has no vote** for [`longest_lease`](ClientBuilder::longest_lease), since it may have forgotten locks. So
    /// servers that were all just started give no lock for that long; the error says which, and for how long.
    ///
    /// [`docs::guarantees`](crate::docs::guarantees) says what a quorum promises, and what not.
    ///
    /// # Errors
    /// [`connect`](ClientBuilder::connect) refuses less than three servers, and one that is given twice, by its address or by its `run_id`; and
    /// replicas, which forget what their primary forgets. It fails if fewer than a majority can be reached within the
    /// connect timeout. An even number is warned about: it survives no more than one server less.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::Client;
    ///
    /// let servers = ["redis://a.internal/", "redis://b.internal/", "rediss://c.elsewhere/"];
    /// let client = Client::builder().quorum(servers).connect().await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// # drop(guard); Ok(()) }
    /// ```
    ///
    /// # Source
    /// [Redis: distributed locks](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), and `docs/rules.md` for the
    /// rules that this library adds.
    #[doc(alias("redlock", "RedissonRedLock"))]
    pub fn quorum<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.quorum = Some(Given::Urls(urls.into_iter().map(Into::into).collect()));
        self
    }

    /// The same with servers in this process, for tests. They are not warned about.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, MemoryServer};
    ///
    /// let servers = [MemoryServer::new(), MemoryServer::new(), MemoryServer::new()];
    /// let client = Client::builder().quorum_memory(&servers).connect().await?;
    /// servers[0].cut(true); // two are left, a majority
    /// let guard = client.mutex("order:42").lock().await?;
    /// let status = client.status("order:42").await?;
    /// assert_eq!(status.holder().map(|holder| &*holder.owner), Some(&*guard.owner()));
    /// assert!(client.rw_lock("order:42").read().await.is_err()); // a kind that a quorum lacks
    /// # Ok(()) }
    /// ```
    pub fn quorum_memory<'a>(
        mut self,
        servers: impl IntoIterator<Item = &'a MemoryServer>,
    ) -> Self {
        let servers = servers.into_iter().cloned().map(InProcess::Memory);
        self.quorum = Some(Given::InProcess(servers.collect()));
        self
    }

    /// The longest lease that any client of this quorum asks for. Default: 30 s; a client whose lease is longer must say it.
    ///
    /// A server of a quorum that has restarted has no vote for so long, since it may have forgotten locks; then all leases of before have
    /// ended. **All clients must say the same.** Longer leases are refused. Means nothing for one server.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::Client;
    ///
    /// let builder = Client::builder().url("redlock://a,b,c/").lease(Duration::from_secs(5));
    /// let client = builder.longest_lease(Duration::from_secs(10)).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn longest_lease(mut self, longest: Duration) -> Self {
        self.config.longest_lease = Some(longest);
        self
    }

    /// How long each server of a quorum may take to answer, in one round of requests. Default: the
    /// [`operation_timeout`](ClientBuilder::operation_timeout), and at most a tenth of the lease: 2 s for a lease of 30 s, 300 ms for one of 3 s.
    ///
    /// A server must be nearer than this, there and back, and nearer than a ninth of a lease that is renewed, or renewals come late. A round that a majority has decided waits for no other server, so a longer time
    /// costs nothing while the servers are well. When too many are silent, each attempt takes this long to fail. At most a third of the lease
    /// is given to a server, also where a lock has a shorter lease than the client. Means nothing for one server.
    ///
    /// # Errors
    /// [`connect`](ClientBuilder::connect) refuses less than 1 ms, and more than the operation timeout or a third of the lease.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::Client;
    ///
    /// // Servers 400 ms away, there and back: a renewed lease lasts nine round trips at least.
    /// let builder = Client::builder().url("redlock://a,b,c/").lease(Duration::from_secs(9));
    /// let client = builder.server_timeout(Duration::from_secs(1)).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Source
    /// [Redis: distributed locks](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/): "a timeout which is small
    /// compared to the total lock auto-release time".
    pub fn server_timeout(mut self, timeout: Duration) -> Self {
        self.config.server_timeout = Some(timeout);
        self
    }

    /// Says that no server of the quorum forgets a lock when it restarts: each writes every command to its disk before it answers
    /// (`appendonly yes`, `appendfsync always`). Its vote then counts at once. Default: `false`.
    ///
    /// **If one forgets all the same, a lock may have two holders.** Means nothing for one server.
    pub fn persistent_servers(mut self, persistent: bool) -> Self {
        self.config.persistent_servers = persistent;
        self
    }
}

impl Given {
    /// The servers that were given, or those of a URL of several.
    pub(super) fn of(given: Option<Given>, url: Option<&str>) -> Result<Option<Given>, Error> {
        let given = match (given, url) {
            (Some(given), _) => given,
            (None, Some(url)) => match split(url) {
                Some(urls) => Given::Urls(urls?),
                None => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        if let Given::Urls(urls) = &given {
            urls.iter().try_for_each(|url| check(url))?;
        }
        let servers = given.addresses();
        if servers.len() < 3 {
            let limit = "at least 3, so that a majority is left when one dies";
            let invalid = Invalid::new("servers of a quorum", servers.len().to_string(), limit);
            return Err(invalid
                .remedy("give three or five, or use one server by its own URL")
                .into());
        }
        // A warning, and no error: an even number is as safe, and servers are added and taken away one at a time.
        if servers.len() % 2 == 0 {
            let (all, less) = (servers.len(), servers.len() - 1);
            user_callback::catch_panic(|| {
                tracing::warn!(
                    target: "leasehold",
                    "a quorum of {all} servers survives no more failures than one of {less}; take an odd number"
                );
            });
        }
        let mut sorted = servers;
        sorted.sort_unstable();
        // By address only, before anything is asked. Two addresses of one server are found by its run id (`Servers::check`).
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(_) => {
                let limit = "given once each: the vote of one would count twice";
                let invalid = Invalid::new("servers of a quorum", "one of them twice", limit);
                Err(invalid.remedy("leave out all but one").into())
            }
            None => Ok(Some(given)),
        }
    }

    #[cfg(feature = "blocking")]
    pub(super) fn is_of_memory(&self) -> bool {
        matches!(self, Given::InProcess(_))
    }

    /// The addresses that tell the servers apart, as far as that is known without a connection.
    fn addresses(&self) -> Vec<String> {
        match self {
            Given::Urls(urls) => urls.iter().map(|url| address_of(url)).collect(),
            Given::InProcess(servers) => servers.iter().map(InProcess::called).collect(),
        }
    }

    pub(super) fn prepare(
        self,
        client: (&Arc<str>, &str, &Config),
        login: &Login,
        sink: Arc<dyn Sink>,
        background: impl FnOnce() -> io::Result<BackgroundRuntime>,
    ) -> Result<PreparedQuorum, Error> {
        let (uuid, label, config) = client;
        check_lease(config)?;
        let sinks = Sinks::new(sink);
        let (backends, clock, background): (Vec<Box<dyn Backend>>, _, _) = match self {
            Given::InProcess(servers) => {
                // All servers of memory count from instants of their own: a client measures all votes on one clock (QB1).
                let clock = servers.first().map_or(Clock::Boot, InProcess::clock);
                let member = |(at, server): (usize, InProcess)| {
                    server.client(uuid, label.to_owned(), config, sinks.of(at))
                };
                let backends = servers.into_iter().enumerate().map(member);
                (backends.collect(), clock, BackgroundRuntime::here())
            }
            Given::Urls(urls) => {
                // Settings for TLS are for those servers that speak it, if any does.
                let without_tls = Login {
                    #[cfg(feature = "tls")]
                    tls: None,
                    ..login.clone()
                };
                let is_mixed = urls.iter().any(|url| speaks_tls(url));
                let parse = |url: &String| {
                    let login = if is_mixed && !speaks_tls(url) {
                        &without_tls
                    } else {
                        login
                    };
                    GivenServer::parse(url, login)
                };
                // Before the thread is started: a URL that is wrong starts nothing.
                let targets = urls.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
                let background = background().map_err(|error| Error::NotSent {
                    doing: "start the thread of this client".into(),
                    source: Arc::new(error),
                })?;
                let member = |(at, target)| {
                    let redis = Redis::new(target, uuid, label, config, sinks.of(at), &background);
                    Box::new(redis) as Box<dyn Backend>
                };
                let backends = targets.into_iter().enumerate().map(member).collect();
                (backends, Clock::Boot, background)
            }
        };
        Ok(PreparedQuorum {
            quorum: Quorum::new(backends, sinks, clock.clone(), config, &background),
            clock,
            background,
        })
    }
}

/// Refuses a lease of which the other clients of a quorum cannot know.
fn check_lease(config: &Config) -> Result<(), Error> {
    // Servers that forget nothing have no quarantine that a lease could outlast (QB6).
    if config.longest_lease.is_some() || config.persistent_servers || config.lease <= LEASE_DEFAULT
    {
        return Ok(());
    }
    // Bug 226: a client beside this one that says nothing keeps a restarted server from voting for the default lease only.
    let usual = humane(LEASE_DEFAULT);
    let limit = format!("at most {usual} on a quorum, unless all of its clients say longest_lease");
    Err(Invalid::new("lease", humane(config.lease), limit)
        .remedy(
            "take a shorter one, which is renewed, or say the same longest_lease in all clients",
        )
        .into())
}

/// The servers of a URL of several; `None`: it is one of a single server.
fn split(url: &str) -> Option<Result<Vec<String>, Invalid>> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = match &*scheme.to_ascii_lowercase() {
        "redlock" => "redis",
        "redlocks" => "rediss",
        _ => return None,
    };
    Some(Several::of(rest).map(|Several { login, hosts, tail }| {
        let url = |host| format!("{scheme}://{login}{host}{tail}");
        hosts.into_iter().map(url).collect()
    }))
}

/// Refuses what is no single server.
fn check(url: &str) -> Result<(), Error> {
    check_characters(url)?;
    let scheme = url.split(':').next().unwrap_or_default();
    if !scheme.to_ascii_lowercase().contains("sentinel") {
        return Ok(());
    }
    let limit = "servers that know nothing of each other: nothing tells when a Sentinel's primary was promoted, and for how long it has no vote";
    let invalid = Invalid::new("servers of a quorum", address::scheme(url), limit);
    Err(invalid.remedy("give the URLs of single servers").into())
}

pub(super) fn beside_another_server() -> Error {
    let limit = "the only place that names servers";
    let invalid = Invalid::new("servers of a quorum", "given beside another server", limit);
    invalid.remedy("leave the other out").into()
}

fn speaks_tls(url: &str) -> bool {
    let scheme = url.split(':').next().unwrap_or_default();
    ["rediss", "valkeys"].contains(&&*scheme.to_ascii_lowercase())
}

/// Host and port, or what was given.
fn address_of(given: &str) -> String {
    let url = url::Url::parse(given).ok();
    let address = url.and_then(|url| {
        let host = url.host_str()?.to_ascii_lowercase();
        // The port that a URL leaves out is filled in: with and without it, the address is the same server's.
        Some(format!("{host}:{}", url.port().unwrap_or(6379)))
    });
    address.unwrap_or_else(|| given.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_several_servers_is_one_url_of_each() {
        let urls = split("redlock://orders:a%40b@one,two:7000,[::1]:7001/3");
        let urls = urls.unwrap().unwrap();
        let expected = ["one", "two:7000", "[::1]:7001"];
        let expected = expected.map(|host| format!("redis://orders:a%40b@{host}/3"));
        assert_eq!(urls, expected);
        assert_eq!(split("redlocks://a,b,c").unwrap().unwrap()[1], "rediss://b");
        assert_eq!(split("redis://a,b/"), None);
        assert_eq!(
            address_of("redis://user@Host/2"),
            address_of("valkey://host:6379")
        );
    }
}
