//! The children of this process, as the kernel lists them, and the group of a process.

use std::fs;

use rustix::process::Pid;

/// The group of a process; `None`: it has ended, or its group is none of this container (`unshare --pid --fork`), and has no number here.
pub(crate) fn group_of(pid: Pid) -> Option<Pid> {
    let pid = nix::unistd::Pid::from_raw(pid.as_raw_pid());
    Pid::from_raw(nix::unistd::getpgid(Some(pid)).ok()?.as_raw())
}

/// Our children, also those still on their way to another program. Empty where the system does not tell.
pub(crate) fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|line| {
            let pids = line
                .split_whitespace()
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            pids.collect::<Vec<_>>()
        })
        .collect()
}
