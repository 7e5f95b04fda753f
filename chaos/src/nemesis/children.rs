//! The worker processes: started, stopped, killed, and none of them left behind.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{checker::Checker, journal::Tail, worker::Job};

/// A life of a worker. Dropping it kills the process.
pub(crate) struct Worker {
    child: Child,
    tail: Option<Tail>,
    journal: PathBuf,
    pub(crate) process: u64,
    pub(crate) exited: Option<ExitStatus>,
}

impl Worker {
    pub(crate) fn start(job: &Job) -> io::Result<Worker> {
        let child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .args(["--url", &job.url])
            .arg("--journal")
            .arg(&job.journal)
            .arg("--counter")
            .arg(&job.counter)
            .args(["--names", &job.names.to_string()])
            .args(["--kinds", &job.kinds.to_string()])
            .args(["--tasks", &job.tasks.to_string()])
            .args(["--lease-ms", &job.lease_ms.to_string()])
            .args(["--seed", &job.seed.to_string()])
            .args(["--process", &job.process.to_string()])
            .args(["--parent", &job.parent.to_string()])
            .args(job.classic.then_some("--classic"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Worker {
            child,
            tail: None,
            journal: job.journal.clone(),
            process: job.process,
            exited: None,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Hands what it wrote to the checker.
    pub(crate) fn collect(&mut self, checker: &mut Checker) {
        if self.tail.is_none() {
            // It has not come so far yet.
            self.tail = Tail::open(&self.journal).ok();
        }
        if let Some(tail) = &mut self.tail {
            let records = tail.read().expect("a journal can be read");
            for record in records {
                checker.add(self.process, record);
            }
        }
    }

    /// The last word of a process that is gone.
    pub(crate) fn bury(mut self, checker: &mut Checker) {
        self.kill();
        self.collect(checker);
        checker.process_ended(self.process);
        // A run of hours would fill the disk.
        let _ = std::fs::remove_file(&self.journal);
    }

    pub(crate) fn tell(&mut self, word: &str) {
        if let Some(stdin) = &mut self.child.stdin {
            // Should it be gone, its exit says so.
            let _ = writeln!(stdin, "{word}");
        }
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// A child that was not waited for keeps its pid, so no other process can be meant.
    fn signal(&self, signal: Signal) {
        if self.exited.is_none() {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// SIGKILL. Returns once the process is gone, with its sockets.
    pub(crate) fn kill(&mut self) {
        if self.exited.is_none() {
            let _ = self.child.kill();
            self.exited = self.child.wait().ok();
        }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_exited(&mut self) -> bool {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().ok().flatten();
        }
        self.exited.is_some()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}
