//! The supervisor's end of the connection to its guardian.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdStream, process::CommandExt},
    },
    path::PathBuf,
    process::Command,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::guardian::{
    self,
    wire::{self, Lines, Order, Report},
};

/// A guardian: up, and waiting for the order to start CMD.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    lines: Lines,
}

impl Link {
    /// Starts the guardian. It lives until CMD is gone, or until this link is dropped before that.
    pub(crate) fn start(name: &str, command: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        // Nobody waits for it: it ends by itself, right after its last report or before this process.
        Command::new(own_binary()?)
            .arg(guardian::WORD)
            .arg(name)
            .args(command)
            .stdin(OwnedFd::from(theirs))
            .process_group(0)
            .spawn()?;
        wire::send_stdin(&ours)?;
        ours.set_nonblocking(true)?;
        Ok(Link {
            stream: UnixStream::from_std(ours)?,
            lines: Lines::default(),
        })
    }

    pub(crate) async fn tell(&mut self, order: Order) -> io::Result<()> {
        self.stream.write_all(&wire::line(&order)?).await
    }

    /// The next report; `None` when the guardian is gone. Cancel safe: a read takes all or nothing.
    pub(crate) async fn report(&mut self) -> io::Result<Option<Report>> {
        loop {
            if let Some(report) = self.lines.next()? {
                return Ok(Some(report));
            }
            let mut bytes = [0; 512];
            match self.stream.read(&mut bytes).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(length) => self.lines.push(&bytes[..length]),
            }
        }
    }
}

/// This very binary, even if the file was replaced meanwhile by an upgrade.
pub(crate) fn own_binary() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe()
    }
}
