//! Multi-locks of several processes, some of which are killed: no deadlock, no overlap, nothing left.

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use common::{
    assert_nothing_left, few_or, keys,
    process::{Job, Process, hear, job, say},
    servers,
};
use futures_util::future::join_all;
use leasehold::{Client, ErrorKind};
use leasehold_testkit::Server;

const PROCESSES: usize = 4;
const TASKS: usize = 2;
const NAMES: usize = 6;
const KILLS: u64 = 3;
const LEASE: Duration = Duration::from_secs(2);
/// All of it takes some seconds, and each kill one lease. Longer, and they wait for each other.
const MOST: Duration = Duration::from_secs(180);

fn rounds_wanted() -> u64 {
    few_or(3_000, 10_000)
}

/// A file for each name, there while a holder is inside, and a byte for each round.
struct Folder(PathBuf);

impl Folder {
    /// The holder of these names goes inside. Two that are inside at once are one too many.
    fn enter(&self, names: &[usize]) {
        for name in names {
            // A link comes with the number of its process in it, or not at all.
            let made = fs::hard_link(self.card(), self.0.join(name.to_string()));
            if let Err(error) = made {
                say(&format!("two are inside {name}: {error}"));
                std::process::exit(1);
            }
        }
    }

    fn leave(&self, names: &[usize]) {
        for name in names {
            fs::remove_file(self.0.join(name.to_string())).unwrap();
        }
    }

    /// A killed process is not inside any more.
    fn forget(&self, process: u32) {
        for name in 0..NAMES {
            let file = self.0.join(name.to_string());
            if fs::read_to_string(&file).is_ok_and(|inside| inside == process.to_string()) {
                fs::remove_file(file).unwrap();
            }
        }
    }

    /// A file with the number of this process.
    fn card(&self) -> PathBuf {
        self.0.join(format!("process {}", std::process::id()))
    }

    fn rounds(&self) -> u64 {
        fs::metadata(self.0.join("rounds")).map_or(0, |file| file.len())
    }
}

async fn take_turns(client: Client, folder: &Path) {
    let folder = Folder(folder.to_owned());
    let rounds = folder.0.join("rounds");
    let mut rounds: File = OpenOptions::new().append(true).open(rounds).unwrap();
    while folder.rounds() < rounds_wanted() {
        let mut names: Vec<usize> = (0..NAMES).collect();
        fastrand::shuffle(&mut names);
        names.truncate(fastrand::usize(1..=NAMES));
        let multi = client.multi_lock(names.iter().map(|name| format!("name {name}")));
        let guard = match fastrand::u8(0..4) {
            0 => multi.try_lock().await,
            1 => {
                let wait = Duration::from_millis(fastrand::u64(0..20));
                multi.try_lock_for(wait).await
            }
            _ => Ok(Some(multi.lock().await.unwrap())),
        };
        let guard = match guard {
            // On a machine with much to do: no answer in this time, or none to the other task's, whose lease is being given up.
            Err(error) if [ErrorKind::Ambiguous, ErrorKind::NotSent].contains(&error.kind()) => {
                None
            }
            other => other.unwrap(),
        };
        let Some(guard) = guard else { continue };
        folder.enter(&names);
        assert!(guard.is_valid());
        tokio::task::yield_now().await;
        folder.leave(&names);
        rounds.write_all(b".").unwrap();
        if fastrand::bool() {
            guard.release().await.unwrap();
        }
    }
}

#[test]
#[ignore = "not a test: the other processes of the test below"]
fn child() {
    let Some(job) = job() else { return };
    let folder = PathBuf::from(job.name);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = Client::builder().url(&job.url).lease(job.lease);
        let client = builder.connect().await.unwrap();
        let card = Folder(folder.clone()).card();
        fs::write(card, std::process::id().to_string()).unwrap();
        say("ready");
        let tasks = (0..TASKS).map(|_| {
            let (client, folder) = (client.clone(), folder.clone());
            tokio::spawn(async move { take_turns(client, &folder).await })
        });
        for task in join_all(tasks.collect::<Vec<_>>()).await {
            task.unwrap();
        }
        common::wait_until_idle(&client).await;
    });
    say("done");
    hear();
}

fn start(server: &Server, folder: &Path) -> Process {
    let process = Process::start(&Job {
        what: "turns".to_owned(),
        url: server.url(),
        name: folder.display().to_string(),
        lease: LEASE,
    });
    process.wait_for("ready");
    process
}

#[tokio::test]
async fn processes_take_random_subsets_without_overlap_or_deadlock_though_some_are_killed() {
    for server in servers() {
        let path = server.dir().join("inside");
        fs::create_dir(&path).unwrap();
        File::create(path.join("rounds")).unwrap();
        let folder = Folder(path.clone());
        let began = Instant::now();
        let mut processes: Vec<Process> = (0..PROCESSES).map(|_| start(&server, &path)).collect();
        let mut kills = 0;
        let mut done = 0;
        while done < PROCESSES {
            assert!(
                began.elapsed() < MOST,
                "they wait for each other: {} rounds",
                folder.rounds()
            );
            if kills < KILLS && folder.rounds() > (kills + 1) * rounds_wanted() / (KILLS + 2) {
                kills += 1;
                let victim = fastrand::usize(..PROCESSES);
                let id = processes[victim].id();
                processes[victim].kill();
                folder.forget(id);
                processes[victim] = start(&server, &path);
            }
            for process in &mut processes {
                if let Some(word) = process.try_next() {
                    assert_eq!(word, "done");
                    done += 1;
                }
                process.assert_runs();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let took = began.elapsed();
        eprintln!(
            "{}: {} rounds in {took:?}",
            server.flavor(),
            folder.rounds()
        );
        assert_eq!(kills, KILLS);
        drop(processes);
        // A hold of a killed process ends with its lease.
        let held = || keys(&server).iter().any(|key| key.starts_with("name "));
        leasehold_testkit::wait_until_async(2 * LEASE, "nothing is held", || !held()).await;
        let places = || keys(&server).iter().any(|key| key.ends_with(":queue"));
        leasehold_testkit::wait_until_async(40 * LEASE, "no place is left", || !places()).await;
        assert_nothing_left(&server, "multi-locks of several processes").await;
    }
}
