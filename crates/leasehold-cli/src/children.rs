//! The children of this process, as the kernel lists them.

use std::fs;

use rustix::process::Pid;

/// Also those that are still on their way to another program. None where the system does not tell.
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
