//! A terminal, and a shell in it.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    num::NonZero,
    os::fd::OwnedFd,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use leasehold_testkit::Server;
use rustix::{
    process::Pid,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcgetpgrp, tcgetwinsize, tcsetwinsize},
};

use super::{Process, SOON};

/// A terminal, seen from where a person sits.
pub(crate) struct Terminal {
    keys: File,
    shown: Arc<Mutex<String>>,
    _shell: Process,
}

impl Terminal {
    /// A shell with job control that runs this script; `$leasehold` is the command.
    pub(crate) fn run(server: &Server, script: &str) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = name.to_str().unwrap();
        let slave: OwnedFd = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
            .into();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "sh", "-mc", script])
            .env("leasehold", env!("CARGO_BIN_EXE_leasehold"))
            .env("LEASEHOLD_URL", server.url())
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio());
        let shell = Process::start(&mut command);

        let shown = Arc::new(Mutex::new(String::new()));
        let mut screen = File::from(master.try_clone().unwrap());
        let text = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(length @ 1..) = screen.read(&mut bytes) {
                let piece = String::from_utf8_lossy(&bytes[..length]);
                text.lock().unwrap().push_str(&piece);
            }
        });
        Terminal {
            keys: File::from(master),
            shown,
            _shell: shell,
        }
    }

    /// The process group that reads what is typed.
    pub(crate) fn foreground(&self) -> Pid {
        tcgetpgrp(&self.keys).unwrap()
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Takes another size, of so many columns and lines, and tells the programs.
    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    /// All that was written to it.
    pub(crate) fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// The text that a person sees now.
    pub(crate) fn screen(&self) -> String {
        let size = tcgetwinsize(&self.keys).unwrap();
        let cells = |count| NonZero::new(count).unwrap();
        let mut screen = vt100::Parser::new(cells(size.ws_row), cells(size.ws_col), 0);
        screen.process(self.shown().as_bytes());
        screen.screen().contents()
    }

    #[track_caller]
    pub(crate) fn sees(&self, text: &str) {
        let sees = || self.screen().contains(text);
        let deadline = Instant::now() + SOON;
        while !sees() {
            let late = Instant::now() > deadline;
            assert!(!late, "no {text:?} after {SOON:?}, but\n{}", self.screen());
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        let deadline = Instant::now() + SOON;
        while !self.shown().contains(text) {
            let late = Instant::now() > deadline;
            assert!(!late, "no {text:?} after {SOON:?}, but {:?}", self.shown());
            thread::sleep(Duration::from_millis(2));
        }
    }
}
