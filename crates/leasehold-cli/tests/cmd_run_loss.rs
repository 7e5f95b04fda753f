//! `leasehold run` when the lock is lost: CMD is dead before another owner can hold the name, whichever process dies.

mod common;

use std::{
    fs,
    os::unix::process::CommandExt,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use common::{Notes, Process, SOON, is_there, leasehold, pttl, run};
use leasehold_testkit::{Flavor, Proxy, Server, wait_until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const FLAGS: [&str; 4] = ["--lease", "2s", "--grace", "500ms"];

/// How much later than the server's expiry the next one may come: a wake-up, a round trip, three process starts
/// on a busy machine.
const TAKEOVER: Duration = Duration::from_millis(200);

/// More stops than reports fit into a socket that is not read: 278 on Linux with its default sizes.
const ENOUGH_STOPS: usize = 400;

/// A command that hears SIGTERM, says so, and goes on.
fn stubborn(notes: &Notes) -> String {
    format!(
        "trap 'echo TERM >{term}' TERM; echo $$ >{pid}; while :; do sleep 0.02; done",
        term = notes.sh("term"),
        pid = notes.sh("pid")
    )
}

/// The next in line, which looks whether it is alone.
fn heir(server: &Server, notes: &Notes, victim: Pid) -> Process {
    let script = format!(
        "if kill -0 {victim} 2>/dev/null; then echo two; else echo alone; fi >{}",
        notes.sh("heir"),
        victim = victim.as_raw_pid()
    );
    let heir = Process::start(&mut run(&server.url(), &FLAGS, &script));
    wait_until(SOON, "the next one waits", || {
        let output = leasehold(&server.url())
            .args(["status", "--json", "job"])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).contains("\"waiting_clients\":1")
    });
    heir
}

/// The next in line comes when the server lets it, finds the victim dead, and ends well.
#[track_caller]
fn takes_over(mut heir: Process, server: &Server, notes: &Notes) {
    let left = Duration::from_millis(pttl(server, "job").max(0).unsigned_abs());
    let deadline = Instant::now() + left + TAKEOVER;
    assert_eq!(notes.wait("heir"), "alone");
    let late = Instant::now().saturating_duration_since(deadline);
    assert!(late.is_zero(), "{late:?} too late");
    assert_eq!(heir.code(), 0);
}

#[test]
fn an_unreachable_server_ends_the_command_before_the_name_is_free() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let proxy = Proxy::start(server.addr());
    let mut command = run(
        &proxy.url(),
        &["--lease", "3s", "--grace", "1s"],
        &stubborn(&notes),
    );
    let mut holder = Process::start_captured(&mut command);
    let victim = notes.wait_pid("pid");
    let heir = heir(&server, &notes, victim);

    proxy.black_hole(None);
    notes.wait("term");
    assert!(is_there(victim), "it has the grace it asked for");
    wait_until(SOON, "the command is dead", || !is_there(victim));
    let left = pttl(&server, "job");
    assert!(
        left > 0,
        "the name was free {left} before the command was dead"
    );
    takes_over(heir, &server, &notes);

    let (code, said) = holder.end();
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("could not be renewed"), "{said}");
}

#[test]
fn a_command_that_winds_down_on_sigterm_is_not_killed_and_the_loss_is_still_told() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let proxy = Proxy::start(server.addr());
    let script = format!(
        "trap 'echo done >{}; exit 0' TERM; echo $$ >{}; while :; do sleep 0.02; done",
        notes.sh("wound-down"),
        notes.sh("pid")
    );
    let mut holder = Process::start_captured(&mut run(&proxy.url(), &FLAGS, &script));
    notes.wait("pid");
    proxy.black_hole(None);
    assert_eq!(notes.wait("wound-down"), "done");
    assert_eq!(holder.code(), 76);
}

#[test]
fn a_name_taken_away_by_force_ends_the_command() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let mut holder = Process::start_captured(&mut run(&server.url(), &FLAGS, &stubborn(&notes)));
    let victim = notes.wait_pid("pid");
    let unlock = ["unlock", "--force", "job"];
    assert!(
        leasehold(&server.url())
            .args(unlock)
            .status()
            .unwrap()
            .success()
    );
    let (code, said) = holder.end();
    assert_eq!(code, 76, "{said}");
    assert!(!is_there(victim));
}

/// Also for its whole process group, as `kill -9 %1` in a shell does it.
#[test]
fn a_killed_supervisor_takes_the_command_with_it() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let mut command = run(&server.url(), &FLAGS, &stubborn(&notes));
    let mut holder = Process::start(command.process_group(0));
    let victim = notes.wait_pid("pid");
    let heir = heir(&server, &notes, victim);

    kill_process_group(holder.pid(), Signal::KILL).unwrap();
    assert_eq!(holder.code(), 137);
    takes_over(heir, &server, &notes);
    assert_eq!(notes.read("term"), "TERM\n", "it was told first");
}

#[test]
fn a_stopped_supervisor_cannot_keep_the_command_alive() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let mut holder = Process::start_captured(&mut run(&server.url(), &FLAGS, &stubborn(&notes)));
    let victim = notes.wait_pid("pid");
    let heir = heir(&server, &notes, victim);

    holder.signal(Signal::STOP);
    takes_over(heir, &server, &notes);
    assert_eq!(notes.read("term"), "TERM\n", "it was told first");
    holder.signal(Signal::CONT);
    assert_eq!(holder.code(), 76);
}

/// Eight, since what they hear first when they go on is a matter of chance.
#[test]
fn a_stopped_supervisor_does_not_announce_a_loss_that_it_has_told() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let names: Vec<_> = (0..8).map(|number| format!("job:{number}")).collect();
    let holders = names.iter().map(|name| {
        let script = format!("echo runs >{}; exec sleep 60", notes.sh(name));
        let mut command = leasehold(&server.url());
        command.args(["run", "--lease", "2s", name, "sh", "-c", &script]);
        Process::start_captured(&mut command)
    });
    let mut holders: Vec<_> = holders.collect();
    for (name, holder) in names.iter().zip(&holders) {
        notes.wait(name);
        holder.signal(Signal::STOP);
    }
    wait_until(SOON, "their leases have ended", || {
        names.iter().all(|name| pttl(&server, name) < 0)
    });
    for holder in &mut holders {
        holder.signal(Signal::CONT);
        let (code, said) = holder.end();
        assert_eq!(code, 76, "{said}");
        let after = said.split_once("is lost").map_or("", |(_, after)| after);
        assert!(!after.contains("could not be renewed"), "{said}");
    }
}

/// `cpulimit` stops and continues a command like this. Each stop is reported to the supervisor, which takes none.
#[test]
fn reports_that_a_stopped_supervisor_does_not_take_do_not_delay_the_deadline() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let flags = ["--lease", "3s", "--grace", "500ms"];
    let mut holder = Process::start_captured(&mut run(&server.url(), &flags, &stubborn(&notes)));
    let victim = notes.wait_pid("pid");
    let heir = heir(&server, &notes, victim);

    holder.signal(Signal::STOP);
    let storm = Storm::over(victim);
    takes_over(heir, &server, &notes);
    let stops = storm.end();
    assert!(stops >= ENOUGH_STOPS, "only {stops} stops");
    assert_eq!(notes.read("term"), "TERM\n", "it was told first");
    holder.signal(Signal::CONT);
    let (code, said) = holder.end();
    assert_eq!(code, 76, "{said}");
}

/// As on a file server that hangs. A program that is loaded late must not run late.
#[test]
#[cfg(target_os = "linux")]
fn a_command_that_is_still_being_loaded_at_the_deadline_never_runs() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let slow = SlowProgram::new(&notes);
    let mut holder = Process::start_captured(&mut slow.run(&server));
    let (_, loading) = slow.is_being_loaded_for(&holder);

    holder.signal(Signal::STOP);
    wait_until(SOON, "what would have become the command is dead", || {
        !is_alive(loading)
    });
    let left = pttl(&server, "job");
    assert!(left > 0, "the name was free {left} before that");
    holder.signal(Signal::CONT);
    let (code, said) = holder.end();
    assert_eq!(code, 76, "{said}");
    assert_eq!(notes.read("ran"), "");
}

#[test]
#[cfg(target_os = "linux")]
fn a_guardian_stopped_before_the_command_runs_cannot_start_it_after_the_loss() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let slow = SlowProgram::new(&notes);
    let mut holder = Process::start_captured(&mut slow.run(&server));
    let (guardian, loading) = slow.is_being_loaded_for(&holder);

    kill_process(guardian, Signal::STOP).unwrap();
    server.cli(&["DEL", "job"]);
    let (code, said) = holder.end();
    assert_eq!(code, 76, "{said}");
    assert!(!is_alive(loading));
    assert!(!is_alive(guardian));
    assert_eq!(notes.read("ran"), "");
}

#[test]
fn a_loss_ends_the_run_although_its_guardian_is_stopped() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let mut holder = Process::start_captured(&mut run(&server.url(), &FLAGS, &stubborn(&notes)));
    let victim = notes.wait_pid("pid");
    let guardian = guardian_of(holder.pid());
    kill_process(guardian, Signal::STOP).unwrap();
    server.cli(&["DEL", "job"]);
    let (code, said) = holder.end();
    assert_eq!(code, 76, "{said}");
    assert!(!is_alive(victim));
    assert!(!is_alive(guardian));
}

/// The supervisor reads what its guardian said before the loss only after the loss, and must not take it for an
/// answer to it.
#[test]
fn a_loss_ends_the_run_although_its_guardian_was_stopped_after_it_had_reported() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let flags = ["--lease", "3s", "--grace", "1s"];
    let mut holder = Process::start_captured(&mut run(&server.url(), &flags, &stubborn(&notes)));
    let victim = notes.wait_pid("pid");
    let guardian = guardian_of(holder.pid());
    let before = pttl(&server, "job");
    wait_until(SOON, "it renews, so it knows its command", || {
        pttl(&server, "job") > before
    });

    holder.signal(Signal::STOP);
    kill_process_group(victim, Signal::STOP).unwrap();
    // The guardian reports the stop. Later it sends SIGTERM, which the command hears.
    notes.wait("term");
    kill_process(guardian, Signal::STOP).unwrap();
    wait_until(SOON, "the lease ends", || pttl(&server, "job") == -2);
    holder.signal(Signal::CONT);
    let (code, said) = holder.end();
    assert_eq!(code, 76, "{said}");
    assert!(!is_alive(victim));
    assert!(!is_alive(guardian));
}

#[test]
fn a_supervisor_killed_while_it_waits_never_starts_the_command() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let _first = Process::start(&mut run(&server.url(), &FLAGS, &stubborn(&notes)));
    let victim = notes.wait_pid("pid");
    let mut heir = heir(&server, &notes, victim);
    let guardian = guardian_of(heir.pid());
    heir.signal(Signal::KILL);
    assert_eq!(heir.code(), 137);
    wait_until(SOON, "its guardian is gone, too", || !is_alive(guardian));
    assert_eq!(notes.read("heir"), "");
}

#[test]
fn a_command_whose_guardian_was_killed_is_ended_at_once() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let mut holder = Process::start_captured(&mut run(&server.url(), &FLAGS, &stubborn(&notes)));
    let victim = notes.wait_pid("pid");
    kill_process(guardian_of(holder.pid()), Signal::KILL).unwrap();
    let (code, said) = holder.end();
    assert_eq!(code, 70, "{said}");
    assert!(!is_alive(victim));
    assert_eq!(pttl(&server, "job"), -2, "released");
}

/// Stops and continues a group, over and over.
struct Storm {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Storm {
    /// How long each stop and each run lasts, so that the guardian sees each.
    const RHYTHM: Duration = Duration::from_millis(1);

    fn over(group: Pid) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let mut stops = 0;
            while !told.load(Ordering::Relaxed) && kill_process_group(group, Signal::STOP).is_ok() {
                stops += 1;
                thread::sleep(Self::RHYTHM);
                let _ = kill_process_group(group, Signal::CONT);
                thread::sleep(Self::RHYTHM);
            }
            stops
        });
        Storm {
            ended,
            thread: Some(thread),
        }
    }

    /// Ends it; how often the group was stopped.
    fn end(mut self) -> usize {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// A program that takes 45 s to load: a process has leased its file from the kernel (`F_SETLEASE`, see fcntl(2)),
/// and does not give the lease back when another wants to run it.
#[cfg(target_os = "linux")]
struct SlowProgram<'a> {
    notes: &'a Notes,
    _file_server: Process,
}

#[cfg(target_os = "linux")]
impl<'a> SlowProgram<'a> {
    const FILE_SERVER: &'static str = "\
import fcntl, os, signal, sys
program, wanted, leased, ran = sys.argv[1:]
def say(name):
    with open(name, 'w') as note: note.write('yes\\n')
with open(program, 'w') as file: file.write('#!/bin/sh\\necho ran >' + ran + '\\nsleep 100\\n')
os.chmod(program, 0o755)
signal.signal(signal.SIGIO, lambda *_: say(wanted))
file = os.open(program, os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
say(leased)
while True: signal.pause()
";

    fn new(notes: &'a Notes) -> Self {
        let files = ["program", "wanted", "leased", "ran"].map(|name| notes.path(name));
        let mut python = Command::new("python3");
        let file_server = Process::start(python.args(["-c", Self::FILE_SERVER]).args(files));
        notes.wait("leased");
        SlowProgram {
            notes,
            _file_server: file_server,
        }
    }

    fn run(&self, server: &Server) -> Command {
        let mut command = leasehold(&server.url());
        command.arg("run").args(FLAGS).args(["job", "--"]);
        command.arg(self.notes.path("program"));
        command
    }

    /// Waits until the program is wanted; the guardian, and its child that is to become the command.
    fn is_being_loaded_for(&self, holder: &Process) -> (Pid, Pid) {
        self.notes.wait("wanted");
        let guardian = guardian_of(holder.pid());
        (guardian, children(guardian)[0])
    }
}

/// The only child of `leasehold run`.
fn guardian_of(supervisor: Pid) -> Pid {
    children(supervisor)[0]
}

/// Of all threads of this process.
fn children(parent: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", parent.as_raw_pid())).unwrap();
    let lists =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap());
    let pids = lists.collect::<String>();
    pids.split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap())
        .collect()
}

/// Neither gone nor dead and waiting to be collected by the process that collects orphans here.
fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
