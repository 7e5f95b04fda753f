//! A process that locks with Leasehold, with rslock, or not at all, as it is told on its standard input (compare/README.md).

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::FileExt as _,
    str::FromStr as _,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, unbounded_channel},
        oneshot,
    },
    task::JoinSet,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The TTL of rslock's README.
const RSLOCK_TTL: Duration = Duration::from_secs(1);

enum Library {
    Leasehold(leasehold::Client),
    Rslock(rslock::LockManager),
    /// Grants to all: the runner must find it out.
    Nothing,
}

enum Held {
    Leasehold(leasehold::MutexGuard),
    Rslock(rslock::LockGuard),
    Nothing,
}

impl Library {
    async fn open(word: &str, url: String, lease: Duration) -> Result<Library, Failure> {
        Ok(match word {
            "leasehold" if lease.is_zero() => {
                Library::Leasehold(leasehold::Client::connect(&url).await?)
            }
            "leasehold" => {
                let builder = leasehold::Client::builder().url(url).lease(lease);
                Library::Leasehold(builder.connect().await?)
            }
            "rslock" => Library::Rslock(rslock::LockManager::new(vec![url])),
            "nothing" => Library::Nothing,
            other => return Err(format!("there is no library {other:?} here").into()),
        })
    }

    fn described(&self) -> (String, &'static str) {
        let commit = std::env::var("LEASEHOLD_VERSION").unwrap_or_default();
        let (version, settings) = match self {
            Library::Leasehold(_) => (
                // This very commit, which compare/run knows.
                &*commit,
                "lease 30 s, renewed each 10 s; waiters are woken",
            ),
            Library::Rslock(_) => (
                "0.10.0",
                "TTL 1 s, not renewed; asks again after 0 to 200 ms, `acquire` without an end",
            ),
            Library::Nothing => ("0", "never excludes"),
        };
        (version.to_owned(), settings)
    }

    async fn take(&self, name: &str, ttl: Duration) -> Result<Held, Failure> {
        Ok(match self {
            Library::Leasehold(client) => Held::Leasehold(client.mutex(name).lock().await?),
            Library::Rslock(locks) => Held::Rslock(locks.acquire(name, ttl).await?),
            Library::Nothing => {
                // As far away as a server is near.
                tokio::time::sleep(Duration::from_millis(1)).await;
                Held::Nothing
            }
        })
    }
}

impl Held {
    async fn free(self) -> Result<(), Failure> {
        match self {
            Held::Leasehold(guard) => drop(guard.release().await?),
            Held::Rslock(guard) => guard.release().await,
            Held::Nothing => {}
        }
        Ok(())
    }
}

/// Microseconds on the clock that all processes share.
fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// Adds one to the number in the file. Other tasks run between the two halves, so that a holder who is not alone loses a count.
async fn count(file: &File) -> Result<(), Failure> {
    let mut digits = [0; 12];
    file.read_exact_at(&mut digits, 0)?;
    let number = u64::from_str(std::str::from_utf8(&digits)?)?;
    tokio::task::yield_now().await;
    file.write_all_at(format!("{:012}", number + 1).as_bytes(), 0)?;
    Ok(())
}

#[derive(Default)]
struct Done {
    inside: u64,
    waits: Vec<u128>,
}

async fn until(
    end: Instant,
    library: Arc<Library>,
    name: String,
    file: Option<Arc<File>>,
) -> Result<Done, Failure> {
    let mut done = Done::default();
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok(done);
        }
        let held = library.take(&name, RSLOCK_TTL).await?;
        done.waits.push(asked.elapsed().as_micros());
        if let Some(file) = &file {
            count(file).await?;
        }
        held.free().await?;
        done.inside += u64::from(Instant::now() <= end);
    }
}

async fn work(library: &Arc<Library>, words: &[&str]) -> Result<String, Failure> {
    let [tasks, names, name, ms, path] = words else {
        return Err("work TASKS NAMES NAME MS FILE".into());
    };
    let (tasks, names) = (u64::from_str(tasks)?, u64::from_str(names)?);
    let file = match *path {
        "-" => None,
        path => Some(Arc::new(File::options().read(true).write(true).open(path)?)),
    };
    let end = Instant::now() + Duration::from_millis(u64::from_str(ms)?);
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let name = format!("{name}:{}", task % names);
        all.spawn(until(end, Arc::clone(library), name, file.clone()));
    }
    let mut sum = Done::default();
    while let Some(done) = all.join_next().await {
        let done = done??;
        sum.inside += done.inside;
        sum.waits.extend(done.waits);
    }
    sum.waits.sort_unstable();
    let count = sum.waits.len();
    let at = |percent: usize| sum.waits.get((count * percent / 100).min(count.max(1) - 1));
    let at = |percent| at(percent).copied().unwrap_or(0);
    let (p50, p99, longest) = (at(50), at(99), at(100));
    Ok(format!(
        "worked {} {count} {p50} {p99} {longest}",
        sum.inside
    ))
}

/// By name, the order to give back that the task waits for which has taken it.
type Frees = Arc<std::sync::Mutex<Vec<(String, oneshot::Sender<()>)>>>;

async fn keep(
    library: Arc<Library>,
    name: String,
    ttl: Duration,
    frees: Frees,
) -> Result<(), Failure> {
    let held = library.take(&name, ttl).await?;
    let at = now();
    let (free, told) = oneshot::channel();
    frees.lock().expect("no panic").push((name.clone(), free));
    say(&format!("got {name} {at}"));
    told.await?;
    let at = now();
    held.free().await?;
    say(&format!("freed {name} {at}"));
    Ok(())
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The runner may have ended; then so does this process, when it reads its input.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

async fn obey(
    library: &Arc<Library>,
    frees: &Frees,
    line: &str,
) -> Result<Option<String>, Failure> {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["work", words @ ..] => work(library, words).await.map(Some),
        ["take", name, tasks, ms] => {
            let ttl = Duration::from_millis(u64::from_str(ms)?);
            for _ in 0..u64::from_str(tasks)? {
                let keeps = keep(
                    Arc::clone(library),
                    (*name).to_owned(),
                    ttl,
                    Arc::clone(frees),
                );
                tokio::spawn(async move {
                    if let Err(failure) = keeps.await {
                        say(&format!("failed {failure}"));
                    }
                });
            }
            Ok(None)
        }
        ["free", name] => {
            let mut frees = frees.lock().expect("no panic");
            let at = frees.iter().position(|(of, _)| of == name);
            let (_, free) = frees.swap_remove(at.ok_or("this process does not hold it")?);
            free.send(()).map_err(|()| "its task has ended")?;
            Ok(None)
        }
        _ => Err(format!("there is no order {line:?}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [word, address, lease] = words.as_slice() else {
        return Err("peer LIBRARY HOST:PORT LEASE_MS".into());
    };
    let lease = Duration::from_millis(u64::from_str(lease)?);
    let library = Arc::new(Library::open(word, format!("redis://{address}/"), lease).await?);
    let (version, settings) = library.described();
    say(&format!("ready\t{version}\t{settings}"));
    let frees = Frees::default();
    let mut lines = lines();
    // Not `block_on`'s own thread for the work: tasks run where they run in real life.
    while let Some(line) = lines.recv().await {
        let (library, frees) = (Arc::clone(&library), Arc::clone(&frees));
        let obeyed = tokio::spawn(async move { obey(&library, &frees, &line).await }).await?;
        match obeyed {
            Ok(None) => {}
            Ok(Some(answer)) => say(&answer),
            Err(failure) => say(&format!("failed {failure}")),
        }
    }
    Ok(())
}

/// The orders. The process ends with its input in any case, also while tasks wait for a server that has ended with the runner.
fn lines() -> UnboundedReceiver<String> {
    let (send, lines) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            // Fails while the process ends.
            let _ = send.send(line);
        }
        std::process::exit(0);
    });
    lines
}
