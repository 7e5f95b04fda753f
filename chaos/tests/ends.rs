//! The nemesis leaves no process behind, whichever way it ends.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use leasehold_testkit::{Flavor, wait_until};

const SOON: Duration = Duration::from_secs(20);

/// Five workers, a server and the server's reaper.
const CHILDREN: usize = 7;

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// The letter for its state in /proc; `None` if there is no such process.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process is there and no zombie.
fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

#[test]
fn a_killed_nemesis_takes_its_processes_with_it() {
    if Flavor::Redis.binary().is_none() {
        return;
    }
    let faults = "stop-worker,stop-server";
    let mut nemesis = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["--server", "redis", "--seconds", "60", "--faults", faults])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the nemesis starts");
    let pid = nemesis.id();
    wait_until(SOON, "all children were there", || {
        children(pid).len() >= CHILDREN
    });
    wait_until(SOON, "one of them was stopped", || {
        children(pid).iter().any(|&pid| state(pid) == Some('T'))
    });
    let left = children(pid);
    nemesis.kill().expect("it is ours");
    nemesis.wait().expect("it is ours");
    wait_until(SOON, "all children were gone", || {
        !left.iter().any(|&pid| lives(pid))
    });
}

#[test]
fn a_wrong_fault_is_refused_with_the_list_of_them() {
    let answer = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["--faults", "earthquake"])
        .output()
        .expect("it starts");
    assert_eq!(answer.status.code(), Some(2));
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(
        said.contains("earthquake") && said.contains("stop-worker"),
        "{said}"
    );
}
