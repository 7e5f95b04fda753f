//! The guardian's end of the connection to its supervisor. Once CMD is being started, nothing here blocks (G5).

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::event::{PollFd, PollFlags};

use super::{
    keeper::Terms,
    outgoing::Outgoing,
    wire::{self, Facts, Lines, Order, Report},
};
use crate::clock::Alarm;

/// The command that the supervisor wants started.
pub(super) struct Job {
    pub(super) terms: Terms,
    pub(super) facts: Facts,
    pub(super) stdin: OwnedFd,
}

pub(super) struct Supervisor {
    stream: UnixStream,
    lines: Lines,
    reports: Outgoing<Report>,
    gone: bool,
}

impl Supervisor {
    /// The connection is our standard input.
    pub(super) fn on_stdin() -> io::Result<Self> {
        Ok(Supervisor {
            stream: UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?),
            lines: Lines::default(),
            reports: Outgoing::new(),
            gone: false,
        })
    }

    /// Waits for the order to start CMD, for as long as the lock takes; there is no deadline yet. `None` if the
    /// supervisor ends before that.
    pub(super) fn job(&mut self) -> io::Result<Option<Job>> {
        let Some(stdin) = wire::receive_stdin(&self.stream)? else {
            return Ok(None);
        };
        while !self.gone {
            if let Some(Order::Start { terms, facts }) = self.order() {
                self.stream.set_nonblocking(true)?;
                return Ok(Some(Job {
                    terms,
                    facts,
                    stdin,
                }));
            }
            self.read();
        }
        Ok(None)
    }

    /// The event to wait for before the next [`exchange`](Self::exchange).
    pub(super) fn to_poll(&self) -> Option<PollFd<'_>> {
        let mut wanted = PollFlags::IN;
        if !self.reports.is_empty() {
            wanted |= PollFlags::OUT;
        }
        (!self.gone).then(|| PollFd::new(&self.stream, wanted))
    }

    /// Sends and takes in all messages that can be sent and taken in at once.
    pub(super) fn exchange(&mut self) {
        self.flush();
        self.read();
    }

    /// The next order that has arrived. A supervisor that cannot be understood is as good as gone.
    pub(super) fn order(&mut self) -> Option<Order> {
        self.lines.next().unwrap_or_else(|_| {
            self.gone = true;
            None
        })
    }

    /// Whether nothing will be heard any more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Reports now, or as soon as the supervisor takes it.
    pub(super) fn tell(&mut self, report: Report) {
        match report {
            // There may be any number of these.
            Report::Stopped(_) => self.reports.replace(report),
            _ => self.reports.push(&report),
        }
        self.flush();
    }

    /// Waits until the supervisor has taken the last report, or is gone. Only when nothing is left of CMD's group:
    /// a supervisor that is stopped takes for ever.
    pub(super) fn see_off(mut self, alarm: &Alarm) -> io::Result<()> {
        self.flush();
        while !self.reports.is_empty() {
            alarm.wait(&[Some(PollFd::new(&self.stream, PollFlags::OUT))], None)?;
            self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.reports.flush(|bytes| self.stream.write(bytes));
    }

    fn read(&mut self) {
        match wire::read(&mut self.stream, &mut self.lines) {
            Ok(true) => {}
            Err(error) if wire::is_nothing_yet(&error) => {}
            // Another error is as good as the end: nothing will come any more.
            Ok(false) | Err(_) => self.gone = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::guardian::wire::Ended;

    fn pair() -> (UnixStream, Supervisor) {
        let (far, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let near = Supervisor {
            stream,
            lines: Lines::default(),
            reports: Outgoing::new(),
            gone: false,
        };
        (far, near)
    }

    #[test]
    fn a_supervisor_that_cannot_be_understood_is_gone() {
        for nonsense in [&b"nonsense\n"[..], &[b'x'; 4 * wire::LINE_MAX]] {
            let (mut far, mut near) = pair();
            far.write_all(&wire::line(&Order::Gone).unwrap()).unwrap();
            far.write_all(nonsense).unwrap();
            near.exchange();
            assert_eq!(near.order(), Some(Order::Gone));
            assert_eq!((near.order(), near.is_gone()), (None, true));
            assert!(near.to_poll().is_none());
        }
    }

    #[test]
    fn a_supervisor_that_says_nothing_is_not_gone_and_one_that_ended_is() {
        let (far, mut near) = pair();
        near.exchange();
        assert!(!near.is_gone());
        drop(far);
        near.exchange();
        assert!(near.is_gone());
    }

    #[test]
    fn the_last_report_waits_for_a_supervisor_that_lives_and_not_for_one_that_is_gone() {
        let ended = Report::Ended {
            how: Ended::Exited(0),
            why: None,
        };
        let alarm = Alarm::new().unwrap();
        for reads in [true, false] {
            let (mut far, mut near) = pair();
            while near.reports.is_empty() {
                near.tell(Report::Stopped(19));
            }
            near.tell(ended);
            let end = std::thread::spawn(move || {
                let mut text = String::new();
                if reads {
                    far.read_to_string(&mut text).unwrap();
                }
                text
            });
            near.see_off(&alarm).unwrap();
            assert_eq!(end.join().unwrap().contains("Ended"), reads);
        }
    }
}
