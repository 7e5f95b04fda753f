//! Parts that the tests of the command share.

#![allow(dead_code, reason = "each test file uses a part of it")]

#[cfg(target_os = "linux")]
pub(crate) mod terminal;

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Seek, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use leasehold_testkit::{Server, wait_until};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

/// An event that a test waits for comes in milliseconds, or the machine is very busy, or never.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// `leasehold`, talking to this server unless the test says otherwise.
pub(crate) fn leasehold(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .env("LEASEHOLD_URL", url)
        .env_remove("REDIS_URL")
        .env_remove("LEASEHOLD_PREFIX")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

/// `leasehold run FLAGS job -- sh -c SCRIPT`
pub(crate) fn run(url: &str, flags: &[&str], script: &str) -> Command {
    let mut command = leasehold(url);
    command
        .arg("run")
        .args(flags)
        .args(["job", "--", "sh", "-c", script]);
    command
}

/// The exit code, or 128 and the signal.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Milliseconds until the server forgets the name; negative if it has.
pub(crate) fn pttl(server: &Server, name: &str) -> i64 {
    match server.cli(&["PTTL", name]) {
        redis::Value::Int(ms) => ms,
        other => panic!("{other:?}"),
    }
}

/// A process that does not outlive its test.
pub(crate) struct Process {
    child: Child,
    /// Its stderr: a file, which can be read while processes still write to it.
    said: Option<File>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.spawn().expect("the process starts");
        Process { child, said: None }
    }

    /// With its stderr kept for [`end`](Process::end).
    pub(crate) fn start_captured(command: &mut Command) -> Self {
        let said = tempfile::tempfile().expect("there is room for a file");
        let stderr = said.try_clone().expect("a file can be opened twice");
        let mut process = Process::start(command.stderr(stderr));
        process.said = Some(said);
        process
    }

    /// With a stderr that is full and is not read. Returns its other end, which must live as long.
    pub(crate) fn start_unread(command: &mut Command) -> (Self, UnixStream) {
        let (mut near, far) = UnixStream::pair().expect("there is room for two sockets");
        near.set_nonblocking(true).expect("it is a socket");
        let full = loop {
            if let Err(error) = near.write(&[b'x'; 1024]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        near.set_nonblocking(false).expect("it is a socket");
        (Process::start(command.stderr(OwnedFd::from(near))), far)
    }

    /// Whether one of its threads waits in a system call on its stderr.
    #[cfg(target_os = "linux")]
    pub(crate) fn waits_for_its_reader(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid().as_raw_pid()));
        tasks.expect("the process is there").any(|task| {
            let call = task.and_then(|task| fs::read_to_string(task.path().join("syscall")));
            call.is_ok_and(|call| call.split(' ').nth(1) == Some("0x2"))
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process is there");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        let ended = self.child.try_wait().expect("it is our child");
        ended.is_some()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn code(&mut self) -> i32 {
        wait_until(SOON, "the process ended", || self.has_ended());
        code(self.child.wait().expect("it is our child"))
    }

    /// Waits for its end; the code and what was written to stderr.
    #[track_caller]
    pub(crate) fn end(&mut self) -> (i32, String) {
        let code = self.code();
        let mut said = String::new();
        if let Some(file) = &mut self.said {
            file.rewind().expect("it is a file");
            file.read_to_string(&mut said).expect("it is text");
        }
        (code, said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guardian ends the command.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory through which commands and their test talk: a file is an event.
pub(crate) struct Notes(TempDir);

impl Notes {
    pub(crate) fn new() -> Self {
        Notes(tempfile::tempdir().expect("there is room for a directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path as it stands in a script.
    pub(crate) fn sh(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file is written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until there is a whole line in the file.
    #[track_caller]
    pub(crate) fn wait(&self, name: &str) -> String {
        wait_until(SOON, &format!("{name} was written"), || {
            self.read(name).ends_with('\n')
        });
        self.read(name).trim().to_owned()
    }

    /// Waits for a process to write its number.
    #[track_caller]
    pub(crate) fn wait_pid(&self, name: &str) -> Pid {
        let pid = self.wait(name).parse().expect("a number");
        Pid::from_raw(pid).expect("a process")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }
}

/// Whether there is such a process. A process that has ended and was not collected counts.
pub(crate) fn is_there(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}
