//! The setting of every bench: a server on one core, the clients on another, and what the kernel and the server
//! say about their work.

use std::{collections::BTreeSet, fs, future::Future, path::Path, time::Duration};

use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Flavor, Primaries, Server};
use rustix::{
    process::{Pid, setpriority_process},
    thread::{CpuSet, gettid, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use tokio::runtime::{Builder, Runtime};

use crate::float::float;

/// Where the server runs.
const SERVER_CORE: usize = 0;
/// Where all clients run.
const CLIENT_CORE: usize = 1;

/// Without a core each, the scheduler's luck decides: the same round trip takes 8 or 81 µs.
const CORES_NEEDED: usize = 2;

/// The server of this run, and how long to measure.
pub(crate) struct Stage {
    pub(crate) server: Server,
    short: bool,
    pinned: bool,
    load_before: String,
    /// Commands that only scripts send.
    inner: BTreeSet<String>,
}

impl Stage {
    /// Starts the server and pins each process to its core.
    pub(crate) fn set(short: bool) -> Stage {
        let load_before = load();
        let server = Server::start(Flavor::Redis);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pinned = cores >= CORES_NEEDED
            && pin(server.pid(), SERVER_CORE)
            && pin(std::process::id(), CLIENT_CORE);
        if !pinned {
            eprintln!(
                "not pinned to cores ({cores} found): latencies depend on the scheduler's luck"
            );
        }
        Stage {
            server,
            short,
            pinned,
            load_before,
            inner: commands_in_scripts(),
        }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Puts another server where the first runs.
    pub(crate) fn put(&self, server: &Server) {
        if self.pinned {
            pin(server.pid(), SERVER_CORE);
        }
    }

    /// Five servers that know nothing of each other.
    pub(crate) fn five(&self) -> Primaries {
        let five = Primaries::start(5, Flavor::Redis);
        five.servers().iter().for_each(|server| self.put(server));
        five
    }

    /// This many, or fewer if asked to be short.
    pub(crate) fn rounds(&self, full: usize) -> usize {
        if self.short { full.min(3) } else { full }
    }

    /// So long, or a quarter of it.
    pub(crate) fn time(&self, full: Duration) -> Duration {
        if self.short { full / 4 } else { full }
    }

    pub(crate) fn is_short(&self) -> bool {
        self.short
    }

    /// How many commands clients have sent. The statistics of the server count what scripts call as well, so
    /// these are left out; no client of ours sends one of them by itself.
    pub(crate) fn commands(&self) -> u64 {
        let calls = self.server.calls();
        let sent = calls.iter().filter(|(name, _)| {
            // The kit's own questions, and ours for these very statistics.
            *name != "info" && !self.inner.contains(*name)
        });
        sent.map(|(_, calls)| calls).sum()
    }

    /// Where this was measured, for readers of the table.
    pub(crate) fn described(&self) -> String {
        let info = self.server.cli(&["INFO", "server"]);
        let info: String = redis::from_redis_value(info).unwrap_or_default();
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"))
            .unwrap_or("?");
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map_or("?", |rest| rest.trim_start_matches([' ', '\t', ':']));
        let cores = if self.pinned {
            format!("server on core {SERVER_CORE}, clients on core {CLIENT_CORE}")
        } else {
            "NOT pinned to cores".to_owned()
        };
        let short = if self.short { ", short windows" } else { "" };
        format!(
            "redis-server {version} on loopback, {cpu}; {cores}; load average before {}, after {}{short}",
            self.load_before,
            load()
        )
    }
}

/// A client with the default settings.
pub(crate) async fn connect(url: &str) -> Client {
    connect_with(Client::builder().url(url)).await
}

pub(crate) async fn connect_with(builder: ClientBuilder) -> Client {
    builder.connect().await.expect("our own server takes us")
}

/// A client of several servers, of which a majority decides.
pub(crate) async fn majority(urls: Vec<String>) -> Client {
    // They were just started, and nothing is on them yet.
    connect_with(Client::builder().quorum(urls).persistent_servers(true)).await
}

pub(crate) fn one_thread() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

pub(crate) fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Runs a future to its end on a runtime's own threads, where tasks run in real life: `block_on` would poll it on
/// the caller's thread and pay a hop to another for each message.
pub(crate) fn on<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let task = runtime.spawn(work);
    runtime.block_on(task).expect("the bench does not panic")
}

/// Nanoseconds on a clock that all processes of this machine share.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the machine has started");
    let nanos = u64::try_from(now.tv_nsec).expect("a fraction of a second");
    seconds * 1_000_000_000 + nanos
}

/// User and system time of a process so far. Not from `/proc/PID/stat`, which counts the ticks of 10 ms in which the process was seen: a
/// tenth of what P8 finds.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let pid = nix::unistd::Pid::from_raw(pid.try_into().expect("the id of a process"));
    let clock = nix::time::clock_getcpuclockid(pid).expect("the process lives");
    clock.now().expect("a clock of Linux").into()
}

/// The CPU time of the first thread of a process, to the nanosecond.
pub(crate) fn main_thread_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    Some(Duration::from_nanos(stat.split(' ').next()?.parse().ok()?))
}

/// Memory of this process that no file stands behind.
pub(crate) fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells about ourselves");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .expect("Linux 4.5 or later");
    let kibibytes = line.trim().trim_end_matches(" kB");
    kibibytes.parse::<u64>().expect("a number of KiB") * 1024
}

/// A part of one core.
pub(crate) fn percent(work: Duration, of: Duration) -> f64 {
    work.as_secs_f64() / of.as_secs_f64() * 100.0
}

/// Puts all threads of a process on one core; the ones it makes later follow.
fn pin(pid: u32, core: usize) -> bool {
    let mut cores = CpuSet::new();
    cores.set(core);
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads
        .filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .all(|thread| sched_setaffinity(Some(thread), &cores).is_ok())
}

fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("?").to_owned()
}

/// The commands that the scripts call, in lower case.
fn commands_in_scripts() -> BTreeSet<String> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/redis/scripts");
    let mut scripts = vec![scripts];
    let mut texts = Vec::new();
    while let Some(path) = scripts.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("our own folder");
            scripts.extend(entries.map(|entry| entry.expect("our own folder").path()));
        } else if path.extension().is_some_and(|extension| extension == "lua") {
            texts.push(fs::read_to_string(path).expect("our own script"));
        }
    }
    let mut commands = BTreeSet::new();
    for script in &texts {
        for call in script.split("call(").skip(1) {
            // A comment or a name that ends so has no command in quotes.
            let Some(call) = call.strip_prefix('\'') else {
                continue;
            };
            let mut words = call.split('\'').step_by(2);
            let command = words.next().unwrap_or_default().to_ascii_lowercase();
            if command == "pubsub" {
                let subcommand = words.next().expect("a literal subcommand");
                commands.insert(format!("pubsub|{}", subcommand.to_ascii_lowercase()));
            } else {
                commands.insert(command);
            }
        }
    }
    commands
}

/// Lets this thread go before all others on its core: a meter must not wait for the threads it measures. Where that is
/// not permitted, it waits.
pub(crate) fn go_first() {
    const FIRST: i32 = -19;
    let _ = setpriority_process(Some(gettid()), FIRST);
}

/// Pairs per second.
pub(crate) fn rate(count: u64, time: Duration) -> f64 {
    float(count) / time.as_secs_f64()
}
