//! Eight processes, one file, and a read-wait-write that only the lock makes safe.

mod common;

use std::{process::Command, thread};

use common::{Notes, leasehold};
use leasehold_testkit::{Flavor, Server};

const PROCESSES: usize = 8;
const TIMES: usize = 100;

/// Reads a number from a plain file, waits, and writes it back plus one.
const INCREMENT: &str = "read n <\"$1\"; sleep 0.001; echo $((n + 1)) >\"$1\"";

/// The number in the file when each process has run its commands.
fn count(command: impl Fn() -> Command + Sync) -> usize {
    let notes = Notes::new();
    notes.write("number", "0\n");
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                for _ in 0..TIMES {
                    let mut command = command();
                    command
                        .args(["sh", "-c", INCREMENT, "sh"])
                        .arg(notes.path("number"));
                    // Without the lock, one may read while another has just emptied the file.
                    command.stderr(std::process::Stdio::null());
                    command.status().expect("it starts");
                }
            });
        }
    });
    notes.read("number").trim().parse().unwrap_or(0)
}

#[test]
fn eight_processes_lose_no_update_under_the_lock() {
    let server = Server::start(Flavor::Redis);
    let total = count(|| {
        let mut command = leasehold(&server.url());
        command.args(["run", "number", "--"]);
        command
    });
    assert_eq!(total, PROCESSES * TIMES);
}

/// The control: the same work without the lock must fail, or the test above proves nothing.
#[test]
fn eight_processes_lose_updates_without_the_lock() {
    let total = count(|| Command::new("env"));
    assert!(total < PROCESSES * TIMES, "{total} is all of them");
}
