//! The messages between supervisor and guardian: one JSON document per line, over a pair of sockets.
//!
//! The first byte from the supervisor carries its standard input along, because the guardian's own is this
//! connection. In the same way the guardian hands it to the process that becomes CMD on a terminal.

use std::{
    io::{self, IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::keeper::{Terms, Why};

/// From the supervisor. The end of the stream is an order, too: the lease is not renewed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The lock is held: start CMD.
    Start { terms: Terms, facts: Facts },
    /// The lease was renewed and lasts until then.
    Until(Duration),
    /// The lease was taken away.
    Gone,
}

/// The facts that CMD finds in its environment, beside the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The end of the lease, in ms since 1970.
    pub(crate) valid_until_ms: u64,
    /// The fencing token, of a lock that has one.
    pub(crate) token: Option<u64>,
}

/// From the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// CMD runs, and leads the process group of this number.
    Started(i32),
    /// CMD could not be started; this is the error number. On a terminal it may come after `Started`.
    CannotStart(i32),
    /// CMD was not started, because the lease was about to end.
    TooLate,
    /// CMD was stopped by this signal (Ctrl-Z and the like) and can be continued.
    Stopped(i32),
    /// The group was told to end.
    Ending(Why),
    /// The group runs as another user and cannot be ended.
    OutOfReach,
    /// CMD has ended, and nothing is left of its group. If it was ended by us, this is why.
    Ended { how: Ended, why: Option<Why> },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    Exited(i32),
    Signaled(i32),
}

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// No message is longer.
pub(crate) const LINE_MAX: usize = 1024;

/// More than a socket holds of messages as short as ours, so that one read takes in all that has arrived: a
/// process that was stopped for long acts on the newest.
pub(crate) const READ_MAX: usize = 16 * 1024;

/// Reads once; `false` at the end of the stream.
pub(super) fn read(stream: &mut UnixStream, lines: &mut Lines) -> io::Result<bool> {
    let mut bytes = [0; READ_MAX];
    let length = stream.read(&mut bytes)?;
    lines.push(&bytes[..length]);
    Ok(length > 0)
}

/// Whether a read or write that does not block may be repeated later.
pub(crate) fn is_nothing_yet(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock)
}

/// Puts lines together from the pieces that arrive.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole message, if it has arrived. An error is final: later bytes cannot be told apart from it.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let Some(end) = self.0.iter().position(|byte| *byte == b'\n') else {
            return match self.0.len() {
                0..=LINE_MAX => Ok(None),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        };
        let message = serde_json::from_slice(&self.0[..end])?;
        self.0.drain(..=end);
        Ok(Some(message))
    }
}

/// Hands over what is to be the standard input of CMD.
pub(crate) fn send_stdin(to: &UnixStream, stdin: BorrowedFd<'_>) -> io::Result<()> {
    let stdin = [stdin];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&stdin));
    sendmsg(to, &[IoSlice::new(b"\n")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives the standard input of CMD, or `None` if the sender is gone.
pub(crate) fn receive_stdin(from: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut byte)];
    recvmsg(from.as_fd(), &mut pieces, &mut control, RecvFlags::empty())?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    // Programs that CMD starts must not inherit a second copy.
    if let Some(fd) = &fd {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_being_cut_into_pieces() {
        let orders = [
            Order::Start {
                terms: Terms {
                    until: Duration::from_millis(1_234_567),
                    grace: Duration::from_secs(5),
                    margin: Duration::from_millis(250),
                },
                facts: Facts {
                    valid_until_ms: 1_700_000_000_000,
                    token: Some((1 << 53) - 1),
                },
            },
            Order::Until(Duration::new(7, 89)),
            Order::Gone,
        ];
        let mut lines = Lines::default();
        let mut arrived = Vec::new();
        for byte in orders.iter().flat_map(|order| line(order).unwrap()) {
            lines.push(&[byte]);
            arrived.extend(lines.next::<Order>().unwrap());
        }
        assert_eq!(arrived, orders);
    }

    #[test]
    fn standard_input_arrives_before_the_first_order() {
        let (supervisor, guardian) = UnixStream::pair().unwrap();
        send_stdin(&supervisor, rustix::stdio::stdin()).unwrap();
        assert!(receive_stdin(&guardian).unwrap().is_some());
        drop(supervisor);
        assert!(receive_stdin(&guardian).unwrap().is_none());
    }
}
