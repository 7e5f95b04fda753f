//! The processes that a killed guardian leaves behind.
//!
//! Its children become ours, so CMD is found even if the guardian died before it could say which process that
//! is, and collected when it is dead.

use std::time::Duration;

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process_group, wait, waitpid},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    children::{children, group_of},
    clock,
};

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Collects children that have ended, but for the guardian, which is not waited for. Process 1 of a container gets all orphans there, such as
/// those of `docker exec`, and no other process collects them. CMD is none of these children: the guardian collects it.
pub(crate) async fn collect_strangers(guardian: Pid) {
    let Ok(mut ended) = signal(SignalKind::child()) else {
        return;
    };
    loop {
        for stranger in children().into_iter().filter(|pid| *pid != guardian) {
            let _ = waitpid(Some(stranger), WaitOptions::NOHANG);
        }
        ended.recv().await;
    }
}

/// The children this process may get beside its guardian.
#[derive(Debug)]
pub(super) struct Orphans {
    /// The guardian, and the children of a shell that became this process.
    known: Vec<Pid>,
}

impl Orphans {
    /// From now on orphans below this process become its children.
    pub(super) fn adopt() -> Self {
        // Where it does not work, CMD is found by the guardian's report.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Orphans { known: children() }
    }

    /// Kills the guardian, this group, and those of all orphans; returns when they are gone, or at this time.
    pub(super) async fn kill(&self, guardian: Pid, group: Option<Pid>, until: Duration) {
        // The guardian leads a group, in which a child is that it has just forked.
        let mut groups: Vec<Pid> = group.into_iter().chain([guardian]).collect();
        loop {
            groups.retain(|group| kill_process_group(*group, Signal::KILL) != Err(Errno::SRCH));
            // The dead keep their numbers until they are collected.
            while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
            // The guardian's children become ours at its end, so as long as it is there more may come.
            let children = children();
            let orphans = children.iter().filter(|pid| !self.known.contains(pid));
            let ours = group_of(getpid());
            for group in orphans.filter_map(|pid| group_of(*pid)) {
                if Some(group) != ours && !groups.contains(&group) {
                    groups.push(group);
                }
            }
            let is_over = groups.is_empty() && !children.contains(&guardian);
            if is_over || clock::now() >= until {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
