//! What a guardian leaves behind that was killed itself.
//!
//! Its children become ours, so CMD is found even if the guardian died before it could say which process that
//! is, and collected when it is dead.

use std::{fs, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, wait},
};

use crate::clock;

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The children this process may get beside its guardian.
#[derive(Debug)]
pub(super) struct Orphans {
    /// The guardian, and what a shell had started before it became this process.
    known: Vec<Pid>,
}

impl Orphans {
    /// From now on orphans below this process become its children.
    pub(super) fn adopt() -> Self {
        // Where it does not work, CMD is found by what the guardian said.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Orphans { known: children() }
    }

    /// Kills this group, and those of all orphans; returns when they are gone, or at this time.
    pub(super) async fn kill(&self, group: Option<Pid>, until: Duration) {
        let orphans = children()
            .into_iter()
            .filter(|pid| !self.known.contains(pid));
        kill(group.into_iter().chain(orphans).collect(), until).await;
    }
}

async fn kill(mut groups: Vec<Pid>, until: Duration) {
    for group in &groups {
        let _ = kill_process_group(*group, Signal::KILL);
    }
    loop {
        // The dead keep their numbers until they are collected.
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        groups.retain(|group| test_kill_process_group(*group) != Err(Errno::SRCH));
        if groups.is_empty() || clock::now() >= until {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Our children; none where the system does not tell.
fn children() -> Vec<Pid> {
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
