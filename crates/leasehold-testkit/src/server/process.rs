//! The process of a server: started, answering, stopped by its own pid.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{fs, io};

use rustix::process::Pid;

use super::flavor::Flavor;
use super::role::Role;
use super::{ANSWER_DEADLINE, LOG, START_DEADLINE};
use crate::wait::wait_until;

/// The server's process and its reaper. Both are ours until they are waited for, so neither pid can
/// mean another process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) server: Child,
    pub(super) reaper: Option<Child>,
}

impl Process {
    pub(super) fn start(binary: &Path, args: &[OsString], dir: &Path) -> io::Result<Process> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join(LOG))?;
        let server = Command::new(binary)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log)
            .spawn()?;
        let mut process = Process {
            server,
            reaper: None,
        };
        process.reaper = Some(
            Command::new("/bin/sh")
                .args([
                    "-c",
                    r#"read -r _; kill -KILL "$1"; rm -r -- "$2""#,
                    "leasehold-testkit-reaper",
                ])
                .arg(process.server.id().to_string())
                .arg(dir)
                // Ctrl-C is for the test, not for the process that cleans up after it.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        Ok(process)
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.server)
    }

    pub(super) fn ended(&mut self) -> bool {
        matches!(self.server.try_wait(), Ok(Some(_)))
    }

    /// Kills both and waits for both; the reaper first, as it must not outlive what it names.
    pub(super) fn end(&mut self) {
        for child in self.reaper.iter_mut().chain([&mut self.server]) {
            // It may be gone already, which is what we want.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) enum Launch {
    Up(Process),
    PortTaken,
}

#[track_caller]
pub(super) fn launch(flavor: Flavor, role: Role, args: &[String], port: u16, dir: &Path) -> Launch {
    let Some(binary) = flavor.binary() else {
        panic!(
            "no {} in PATH and no {} in the environment: {}",
            flavor.program(),
            flavor.variable(),
            flavor.remedy()
        );
    };
    let fixed = [
        "--bind",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--daemonize",
        "no",
        "--logfile",
        "",
    ]
    .map(str::to_owned);
    let args: Vec<OsString> = (role.first_args().iter().map(OsString::from))
        .chain(args.iter().chain(&fixed).map(OsString::from))
        .collect();

    // A log of an earlier start has said that it is ready, too.
    let said_before = read_log(dir).len();
    let mut process = Process::start(&binary, &args, dir)
        .unwrap_or_else(|error| panic!("could not run {}: {error}", binary.display()));
    let started = Instant::now();
    let mut exited = None;
    wait_until(
        START_DEADLINE + ANSWER_DEADLINE,
        "the server was up or gone",
        || {
            exited = process.server.try_wait().expect("the server is our child");
            // Another server on this port would answer as well; the log is the word of this one.
            let up = || read_log(dir)[said_before..].contains(role.ready()) && answers(port);
            exited.is_some() || up() || started.elapsed() > START_DEADLINE
        },
    );
    let log = read_log(dir).split_off(said_before);
    match exited {
        None if started.elapsed() <= START_DEADLINE => Launch::Up(process),
        None => panic!(
            "{} did not answer within {START_DEADLINE:?}; its log:\n{log}",
            binary.display()
        ),
        Some(_) if log.contains("Address already in use") => Launch::PortTaken,
        Some(status) => panic!("{} ended with {status}; its log:\n{log}", binary.display()),
    }
}

pub(super) fn read_log(dir: &Path) -> String {
    let bytes = fs::read(dir.join(LOG)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Asks for a `PONG`. A server that wants a password first answers, too.
pub(super) fn answers(port: u16) -> bool {
    let ask = || -> io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply)?;
        Ok(&reply == b"+PONG\r\n" || &reply == b"-NOAUTH")
    };
    ask().unwrap_or(false)
}
