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

use rustix::process::Pid;
use tokio::{
    io::Interest,
    net::UnixStream,
    signal::unix::{SignalKind, signal},
};

use crate::guardian::{
    self,
    outgoing::Outgoing,
    wire::{self, Lines, Order, READ_MAX, Report},
};

/// A guardian: up, and waiting for the order to start CMD.
#[derive(Debug)]
pub(crate) struct Link {
    guardian: Pid,
    stream: UnixStream,
    orders: Outgoing<Order>,
    lines: Lines,
}

impl Link {
    /// Starts the guardian. It lives until CMD is gone, or until this link is dropped before that.
    pub(crate) fn start(name: &str, command: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        // If our parent ignored the end of children, so would the guardian, and never learn how CMD ended. A signal
        // that is caught here has its usual effect there.
        let _ = signal(SignalKind::child());
        // It ends by itself, right after its last report or before this process, and is not waited for. So its
        // number stays its own.
        let guardian = Command::new(own_binary()?)
            .arg(guardian::WORD)
            .arg(name)
            .args(command)
            .stdin(OwnedFd::from(theirs))
            .process_group(0)
            .spawn()?;
        wire::send_stdin(&ours, rustix::stdio::stdin())?;
        Self::over(Pid::from_child(&guardian), ours)
    }

    fn over(guardian: Pid, stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Link {
            guardian,
            stream: UnixStream::from_std(stream)?,
            orders: Outgoing::new(),
            lines: Lines::default(),
        })
    }

    pub(crate) fn guardian(&self) -> Pid {
        self.guardian
    }

    /// Sends this order as soon as the guardian takes it. A guardian that is stopped takes none, so this does not
    /// wait; [`report`](Self::report) sends what is left.
    pub(crate) fn tell(&mut self, order: Order) {
        match order {
            // There may be any number of these, and only the newest matters.
            Order::Until(_) => self.orders.replace(order),
            _ => self.orders.push(&order),
        }
        self.flush();
    }

    /// The next report; `None` when the guardian is gone. Cancel safe: a read takes all or nothing.
    pub(crate) async fn report(&mut self) -> io::Result<Option<Report>> {
        loop {
            if let Some(report) = self.lines.next()? {
                return Ok(Some(report));
            }
            let wanted = if self.orders.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            self.stream.ready(wanted).await?;
            self.flush();
            let mut bytes = [0; READ_MAX];
            match self.stream.try_read(&mut bytes) {
                Err(error) if wire::is_nothing_yet(&error) => {}
                Ok(0) | Err(_) => return Ok(None),
                Ok(length) => self.lines.push(&bytes[..length]),
            }
        }
    }

    /// If the guardian has ended, its last report is still to be read, so that is where its end is noticed.
    fn flush(&mut self) {
        self.orders.flush(|bytes| self.stream.try_write(bytes));
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        time::Duration,
    };

    use super::*;
    use crate::guardian::wire::Ended;

    /// A link to a guardian that is this test. Its number is ours, and not used.
    fn link() -> (StdStream, Link) {
        let (ours, theirs) = StdStream::pair().unwrap();
        (theirs, Link::over(rustix::process::getpid(), ours).unwrap())
    }

    #[tokio::test]
    async fn a_guardian_that_takes_no_orders_is_still_heard_and_gets_the_newest() {
        let (mut guardian, mut link) = link();
        let mut renewals = 0;
        while link.orders.is_empty() {
            renewals += 1;
            link.tell(Order::Until(Duration::from_secs(renewals)));
        }
        for _ in 0..1_000 {
            renewals += 1;
            link.tell(Order::Until(Duration::from_secs(renewals)));
        }
        let stopped = Report::Stopped(19);
        guardian.write_all(&wire::line(&stopped).unwrap()).unwrap();
        assert_eq!(link.report().await.unwrap(), Some(stopped));

        let ended = Report::Ended {
            how: Ended::Exited(0),
            why: None,
        };
        let reader = std::thread::spawn(move || {
            let newest = wire::line(&Order::Until(Duration::from_secs(renewals))).unwrap();
            let (mut taken, mut bytes) = (Vec::new(), [0; 4096]);
            while !taken.ends_with(&newest) {
                let length = guardian.read(&mut bytes).unwrap();
                assert_ne!(length, 0, "the newest did not come");
                taken.extend(&bytes[..length]);
            }
            guardian.write_all(&wire::line(&ended).unwrap()).unwrap();
        });
        assert_eq!(link.report().await.unwrap(), Some(ended));
        reader.join().unwrap();
        assert_eq!(link.report().await.unwrap(), None);
    }
}
