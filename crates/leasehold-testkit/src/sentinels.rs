//! A primary, its replicas, and the sentinels that replace it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::login::Login;
use crate::look::{look, pause, replication};
use crate::server::{Flavor, Server, TlsFiles, replica_of};
use crate::wait::wait_until;

/// By which name the sentinels know the primary.
const MASTER: &str = "main";

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;

/// So many must agree.
const QUORUM: &str = "2";

/// How long a group may take to know itself, or to have a new primary: some 3 s on an idle machine.
const GROUP_DEADLINE: Duration = Duration::from_secs(60);

/// How often sentinels ask servers for their state and tell each other of themselves, in milliseconds: as they are made, and while a group
/// comes to terms. Redis 7.0 and Valkey can be told so.
const PERIODS: [(&str, &str, &str); 2] = [
    ("info-period", "10000", "100"),
    ("publish-period", "2000", "100"),
];

/// A failover that the sentinels have given up is asked for again after that.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(6);

/// A primary, two replicas, and three sentinels that know the primary as `main`.
///
/// The servers are numbered 0 to 2, and 0 is the primary at first. The sentinels are numbered apart, 0 to 2; two must agree.
/// They take a server for dead after 1 s, and wait 3 s between two attempts to replace it.
///
/// | what happens | a new primary takes writes after some |
/// |---|---|
/// | [`failover`](SentinelGroup::failover) | 0.3 s |
/// | [`kill_primary`](SentinelGroup::kill_primary) | 1.4 s |
/// | `group.server(group.primary()).freeze()` | 2.3 s |
///
/// ```no_run
/// use leasehold_testkit::{Flavor, SentinelGroup};
///
/// let mut group = SentinelGroup::start(Flavor::Redis);
/// println!("{}", group.url()); // redis-sentinel://127.0.0.1:…,…/0?master=main
/// let second = group.failover();
/// group.settle();
/// group.kill_primary();
/// let third = group.wait_for_successor(second);
/// group.restart_empty(second); // it says that it is a primary, until the sentinels have seen it
/// assert_eq!(group.primary(), third);
/// ```
#[derive(Debug)]
pub struct SentinelGroup {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
    settings: SentinelSettings,
}

/// The logins of a [`SentinelGroup`], and whether it speaks TLS.
#[derive(Debug, Clone, Default)]
pub struct SentinelSettings {
    login: Login,
    sentinel_password: Option<String>,
    tls: Option<TlsFiles>,
    args: Vec<String>,
}

impl SentinelSettings {
    /// No passwords, no TLS.
    pub fn new() -> SentinelSettings {
        SentinelSettings::default()
    }

    /// The servers of data want this password, of their default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> SentinelSettings {
        self.login.password = Some(password.to_owned());
        self
    }

    /// The servers of data have this user beside their default one; both have this password. Replicas and sentinels log in as this user.
    #[must_use]
    pub fn user(mut self, user: &str, password: &str) -> SentinelSettings {
        self.login.user = Some(user.to_owned());
        self.password(password)
    }

    /// The sentinels want this password.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> SentinelSettings {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// All of them speak TLS at [ports of their own](Server::tls_url), and with each other.
    #[must_use]
    pub fn tls(mut self, tls: TlsFiles) -> SentinelSettings {
        self.tls = Some(tls);
        self
    }

    /// Further arguments of the servers of data, such as `["--min-replicas-to-write", "1"]`.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> SentinelSettings {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    fn server_args(&self) -> Vec<String> {
        let mut args = self.args.clone();
        let timing = ["--repl-diskless-sync-delay", "0"];
        let pings = ["--repl-ping-replica-period", "1"];
        args.extend(timing.into_iter().chain(pings).map(str::to_owned));
        args.extend(self.login.args());
        args.extend(self.between_each_other());
        args
    }

    fn sentinel_args(&self) -> Vec<String> {
        let password = self.sentinel_password.as_ref();
        let password = password.map(|password| ["--requirepass".to_owned(), password.clone()]);
        let mut args: Vec<String> = password.into_iter().flatten().collect();
        args.extend(self.between_each_other());
        args
    }

    fn between_each_other(&self) -> Vec<String> {
        let speak = ["--tls-replication", "yes"].map(str::to_owned);
        self.tls.iter().flat_map(|_| speak.clone()).collect()
    }

    /// The file with which a sentinel starts, and to which it then adds.
    fn file(&self, primary: u16) -> String {
        let mut lines = vec![format!("monitor {MASTER} 127.0.0.1 {primary} {QUORUM}")];
        let of_master = self.of_master().into_iter();
        lines.extend(of_master.map(|(option, value)| format!("{option} {MASTER} {value}")));
        let own = self.sentinel_password.iter();
        lines.extend(own.map(|password| format!("sentinel-pass {password}")));
        lines
            .iter()
            .fold(String::new(), |file, line| file + "sentinel " + line + "\n")
    }

    /// How sentinels watch the primary.
    fn of_master(&self) -> Vec<(&'static str, &str)> {
        let mut options = vec![
            ("down-after-milliseconds", "1000"),
            ("failover-timeout", "3000"),
        ];
        let user = self.login.user.iter();
        options.extend(user.map(|user| ("auth-user", &**user)));
        let password = self.login.password.iter();
        options.extend(password.map(|password| ("auth-pass", &**password)));
        options
    }
}

impl SentinelGroup {
    /// Starts all six and blocks until they know each other and the replicas are in sync.
    ///
    /// # Panics
    /// As [`Server::start`], and when they do not find each other.
    #[track_caller]
    pub fn start(flavor: Flavor) -> SentinelGroup {
        SentinelGroup::start_with(flavor, SentinelSettings::new())
    }

    /// [`start`](SentinelGroup::start) with logins, TLS or further arguments.
    ///
    /// # Panics
    /// As [`start`](SentinelGroup::start).
    #[track_caller]
    pub fn start_with(flavor: Flavor, settings: SentinelSettings) -> SentinelGroup {
        let args = settings.server_args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let tls = settings.tls.as_ref();
        let mut servers = vec![Server::start_node(flavor, &args, tls)];
        let primary = servers[0].peer_port();
        let under = replica_of(primary);
        let under: Vec<&str> = under.iter().map(String::as_str).collect();
        let args = [args, under].concat();
        servers.extend((0..REPLICAS).map(|_| Server::start_node(flavor, &args, tls)));

        let (file, args) = (settings.file(primary), settings.sentinel_args());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let sentinels = (0..SENTINELS)
            .map(|_| Server::start_sentinel(flavor, &file, &args, tls))
            .collect();
        let group = SentinelGroup {
            servers,
            sentinels,
            settings,
        };
        group.wait_until_whole();
        group
    }

    /// By which name the sentinels know the primary: `main`.
    pub fn master(&self) -> &'static str {
        MASTER
    }

    /// `redis-sentinel://[USER:PASSWORD@]127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT/0?master=main` with the login of the servers of data;
    /// `rediss-sentinel://` and the ports of TLS, if they speak it. The sentinels' password is not in it.
    pub fn url(&self) -> String {
        let scheme = if self.settings.tls.is_some() {
            "rediss-sentinel"
        } else {
            "redis-sentinel"
        };
        let login = self.settings.login.in_url();
        let hosts: Vec<String> = self
            .sentinel_addrs()
            .iter()
            .map(ToString::to_string)
            .collect();
        format!("{scheme}://{login}{}/0?master={MASTER}", hosts.join(","))
    }

    /// Where the sentinels listen: for TLS, if they speak it.
    pub fn sentinel_addrs(&self) -> Vec<SocketAddr> {
        let addr = |sentinel: &Server| SocketAddr::new(sentinel.addr().ip(), sentinel.peer_port());
        self.sentinels.iter().map(addr).collect()
    }

    /// A server of data.
    #[track_caller]
    pub fn server(&self, i: usize) -> &Server {
        &self.servers[i]
    }

    /// All servers of data, in their order.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// A sentinel, which is a [`Server`] without data.
    #[track_caller]
    pub fn sentinel(&self, i: usize) -> &Server {
        &self.sentinels[i]
    }

    /// All sentinels, in their order.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Which server is the primary, as the sentinels say: of those that answer, the one with the highest configuration epoch.
    ///
    /// # Panics
    /// When no sentinel answers.
    #[track_caller]
    pub fn primary(&self) -> usize {
        self.named()
            .expect("a sentinel answers with one of the servers")
    }

    /// Kills a server of data (`SIGKILL`).
    pub fn kill(&mut self, i: usize) {
        self.servers[i].kill();
    }

    /// Kills a sentinel (`SIGKILL`). A [`restart_sentinel`](SentinelGroup::restart_sentinel) brings it back.
    pub fn kill_sentinel(&mut self, i: usize) {
        self.sentinels[i].kill();
    }

    /// Kills a sentinel if it runs, and starts it again with all that it knew.
    ///
    /// # Panics
    /// As [`Server::restart`].
    #[track_caller]
    pub fn restart_sentinel(&mut self, i: usize) {
        self.sentinels[i].restart();
    }

    /// `SENTINEL REMOVE` at one sentinel: it knows neither the primary nor the other sentinels any more, until it is
    /// [set anew](SentinelGroup::set_anew).
    ///
    /// # Panics
    /// When it cannot be asked.
    #[track_caller]
    pub fn forget_primary(&self, i: usize) {
        // It may have been done before.
        let _ = self.sentinels[i].try_cli(&["SENTINEL", "REMOVE", MASTER]);
    }

    /// Has one sentinel watch server `primary` from now on, as operators do who replace a primary by hand: `SENTINEL REMOVE`, `MONITOR` and
    /// `SET`. It begins with the configuration epoch 0 and knows no other sentinel. If it hears of a higher epoch, from a sentinel that
    /// watches a server of the same primary, it is back there within 2 s: have [all of them forget](SentinelGroup::forget_primary) first.
    ///
    /// # Panics
    /// When it refuses.
    #[track_caller]
    pub fn set_anew(&self, i: usize, primary: usize) {
        self.forget_primary(i);
        let port = self.servers[primary].peer_port().to_string();
        let sentinel = &self.sentinels[i];
        sentinel.cli(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, QUORUM]);
        for (option, value) in self.settings.of_master() {
            sentinel.cli(&["SENTINEL", "SET", MASTER, option, value]);
        }
    }

    /// Kills the primary, and says which it was.
    ///
    /// # Panics
    /// As [`primary`](SentinelGroup::primary).
    #[track_caller]
    pub fn kill_primary(&mut self) -> usize {
        let primary = self.primary();
        self.kill(primary);
        primary
    }

    /// Freezes the replicas, and breaks what leads from the primary to them: none of what is written from now on reaches them, also if the
    /// primary dies before the [thaw](SentinelGroup::thaw_replicas). Says which they are.
    ///
    /// A replica that is only frozen finds in its socket what was written meanwhile.
    ///
    /// # Panics
    /// As [`primary`](SentinelGroup::primary).
    #[track_caller]
    pub fn freeze_replicas(&self) -> Vec<usize> {
        let primary = self.primary();
        let replicas: Vec<usize> = (0..self.servers.len()).filter(|&i| i != primary).collect();
        for &i in &replicas {
            self.servers[i].freeze();
        }
        self.servers[primary].cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        wait_until(GROUP_DEADLINE, "the primary has no replica", || {
            replication(&self.servers[primary]).contains("connected_slaves:0")
        });
        replicas
    }

    /// Lets these run again.
    pub fn thaw_replicas(&self, replicas: &[usize]) {
        for &i in replicas {
            self.servers[i].thaw();
        }
    }

    /// `SENTINEL FAILOVER`: returns once the sentinels name another primary and this says so, too, and says which it is.
    ///
    /// The old one takes writes on open connections for up to 10 s more. [`settle`](SentinelGroup::settle) ends that.
    ///
    /// # Panics
    /// When the sentinels do not do it.
    #[track_caller]
    pub fn failover(&self) -> usize {
        let old = self.primary();
        let mut asked: Option<Instant> = None;
        self.wait_for(old, || {
            if asked.is_none_or(|at| at.elapsed() > ASK_AGAIN_AFTER) {
                let ask = |sentinel: &Server| sentinel.ask(&["SENTINEL", "FAILOVER", MASTER]);
                let accepted = self.sentinels.iter().any(|sentinel| ask(sentinel).is_ok());
                asked = accepted.then(Instant::now);
            }
        })
    }

    /// Blocks until the sentinels name another primary than `old` and this says so, too, and says which it is.
    ///
    /// # Panics
    /// When the sentinels name none.
    #[track_caller]
    pub fn wait_for_successor(&self, old: usize) -> usize {
        self.wait_for(old, || {})
    }

    #[track_caller]
    fn wait_for(&self, old: usize, mut ask: impl FnMut()) -> usize {
        let mut new = None;
        wait_until(GROUP_DEADLINE, "the sentinels name a new primary", || {
            ask();
            let other = self.named().filter(|&named| named != old);
            new = other.filter(|&named| is_primary(&self.servers[named]));
            new.is_some() || pause()
        });
        new.expect("waited for")
    }

    /// Makes a replica a primary without a word to the sentinels (`REPLICAOF NO ONE`). These make it a replica again some 10 s later,
    /// if theirs is alive.
    #[track_caller]
    pub fn promote_by_hand(&self, i: usize) {
        self.servers[i].cli(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Kills a server of data if it runs, and starts it empty on the same port, as one that replicates none. If the sentinels name another,
    /// they make it a replica some 10 s later; until then it says that it is a primary.
    ///
    /// # Panics
    /// As [`Server::restart`].
    #[track_caller]
    pub fn restart_empty(&mut self, i: usize) {
        self.servers[i].restart_empty_under(None);
    }

    /// Kills a server of data if it runs, and starts it empty on the same port, as a replica of the one that the sentinels name.
    ///
    /// # Panics
    /// As [`Server::restart`] and [`primary`](SentinelGroup::primary), or when it is the one that they name.
    #[track_caller]
    pub fn restart_as_replica(&mut self, i: usize) {
        let primary = self.primary();
        assert_ne!(primary, i, "server {i} is the primary; fail over first");
        let port = self.servers[primary].peer_port();
        self.servers[i].restart_empty_under(Some(port));
    }

    /// Makes all other servers replicas of the primary at once, where the sentinels would take their time, and blocks until all of the
    /// group are at one: between two rounds of a test. Dead servers are started, frozen ones thawed.
    ///
    /// # Panics
    /// When they do not come to terms.
    #[track_caller]
    pub fn settle(&mut self) {
        let sentinels = self.sentinels.iter_mut();
        sentinels.chain(&mut self.servers).for_each(Server::revive);
        let primary = self.primary();
        let port = self.servers[primary].peer_port().to_string();
        for (i, server) in self.servers.iter().enumerate() {
            if i != primary && !follows(server, &port) {
                server.cli(&["REPLICAOF", "127.0.0.1", &port]);
            }
        }
        self.wait_until_whole();
    }

    #[track_caller]
    fn wait_until_whole(&self) {
        self.hurry(true);
        wait_until(GROUP_DEADLINE, "the group is whole", || {
            self.is_whole() || pause()
        });
        self.hurry(false);
    }

    /// Has the sentinels look more often, or as often as ever: tests see these as they are.
    fn hurry(&self, hurry: bool) {
        for sentinel in &self.sentinels {
            for (name, usual, short) in PERIODS {
                let period = if hurry { short } else { usual };
                // An older one takes its time.
                let _ = sentinel.ask(&["SENTINEL", "DEBUG", name, period]);
            }
        }
    }

    fn is_whole(&self) -> bool {
        let Some(primary) = self.named() else {
            return false;
        };
        let primary = &self.servers[primary];
        let port = primary.peer_port().to_string();
        let others = (SENTINELS - 1).to_string();
        let agrees = |sentinel: &Server| {
            let master: Option<Fields> = look(sentinel, &["SENTINEL", "MASTER", MASTER]);
            let replicas: Option<Vec<Fields>> = look(sentinel, &["SENTINEL", "REPLICAS", MASTER]);
            let good = |replica: &Fields| {
                has(replica, "flags", "slave")
                    && has(replica, "master-link-status", "ok")
                    && has(replica, "master-port", &port)
            };
            master.is_some_and(|master| {
                has(&master, "flags", "master")
                    && has(&master, "port", &port)
                    && has(&master, "num-other-sentinels", &others)
            }) && replicas
                .is_some_and(|replicas| replicas.len() == REPLICAS && replicas.iter().all(good))
        };
        replication(primary).matches("state=online").count() == REPLICAS
            && self.sentinels.iter().all(agrees)
    }

    /// Which server the sentinels name.
    fn named(&self) -> Option<usize> {
        let answers = self.sentinels.iter().filter_map(|sentinel| {
            let fields: Fields = look(sentinel, &["SENTINEL", "MASTER", MASTER])?;
            let epoch: u64 = fields.get("config-epoch")?.parse().ok()?;
            Some((epoch, fields.get("port")?.parse().ok()?))
        });
        let (_, port): (u64, u16) = answers.max()?;
        let mut servers = self.servers.iter();
        servers.position(|server| server.peer_port() == port)
    }
}

type Fields = HashMap<String, String>;

fn has(fields: &Fields, field: &str, value: &str) -> bool {
    fields.get(field).is_some_and(|is| is == value)
}

fn is_primary(server: &Server) -> bool {
    replication(server).contains("role:master")
}

fn follows(server: &Server, port: &str) -> bool {
    let line = format!("master_port:{port}\r\n");
    replication(server).contains(&line)
}
