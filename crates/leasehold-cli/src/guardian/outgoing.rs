//! Messages on their way to a process that may take none, from a process that must not wait for that.

use std::io;

use serde::Serialize;

use super::wire;

/// The messages that could not be sent yet. It stays small even if the peer reads nothing, as long as only messages of
/// which there is a fixed number are pushed, and those that may come without end replace each other.
#[derive(Debug)]
pub(crate) struct Outgoing<M> {
    /// Whole lines, but for the first, of which a part may be sent.
    bytes: Vec<u8>,
    /// Worth sending only as long as nothing newer is there.
    newest: Option<M>,
}

impl<M: Serialize> Outgoing<M> {
    pub(crate) fn new() -> Self {
        Outgoing {
            bytes: Vec::new(),
            newest: None,
        }
    }

    /// Sends this message after all that were pushed before it.
    pub(crate) fn push(&mut self, message: &M) {
        self.newest = None;
        self.append(message);
    }

    /// Sends this message, unless a newer one comes before there is room for it.
    pub(crate) fn replace(&mut self, message: M) {
        self.newest = Some(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.newest.is_none()
    }

    /// Sends as much as `write` takes now. It must not block.
    pub(crate) fn flush(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) {
        use io::ErrorKind::{Interrupted, WouldBlock};
        loop {
            if self.bytes.is_empty() {
                match self.newest.take() {
                    Some(message) => self.append(&message),
                    None => return,
                }
            }
            match write(&self.bytes) {
                Ok(length @ 1..) => drop(self.bytes.drain(..length)),
                Err(error) if error.kind() == Interrupted => {}
                Err(error) if error.kind() == WouldBlock => return,
                // A peer that is gone need not be told, and messages to it would stay for ever.
                Ok(0) | Err(_) => {
                    self.bytes.clear();
                    self.newest = None;
                }
            }
        }
    }

    fn append(&mut self, message: &M) {
        if let Ok(line) = wire::line(message) {
            self.bytes.extend(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
        thread,
    };

    use super::*;
    use crate::guardian::{keeper::Why, wire::Ended, wire::Lines, wire::Report};

    const ENDING: Report = Report::Ending(Why::LeaseEnds);
    const ENDED: Report = Report::Ended {
        how: Ended::Exited(0),
        why: None,
    };

    /// The messages of `outgoing` that arrive when each write takes at most `at_once` bytes.
    fn arrives(outgoing: &mut Outgoing<Report>, at_once: usize) -> Vec<Report> {
        let mut lines = Lines::default();
        outgoing.flush(|bytes| {
            let length = bytes.len().min(at_once);
            lines.push(&bytes[..length]);
            Ok(length)
        });
        std::iter::from_fn(|| lines.next().unwrap()).collect()
    }

    fn would_block(_: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    #[test]
    fn messages_survive_partial_writes_in_their_order() {
        let mut outgoing = Outgoing::new();
        outgoing.push(&Report::Started(7));
        outgoing.push(&ENDING);
        outgoing.push(&ENDED);
        let expected = [Report::Started(7), ENDING, ENDED];
        assert_eq!(arrives(&mut outgoing, 1), expected);
        assert!(outgoing.is_empty());
    }

    #[test]
    fn a_message_that_is_partly_sent_is_finished_before_a_newer_one() {
        let mut outgoing = Outgoing::new();
        let mut sent = Vec::new();
        outgoing.replace(Report::Stopped(19));
        outgoing.flush(|bytes| match sent.len() {
            0 => {
                sent.extend(&bytes[..3]);
                Ok(3)
            }
            _ => would_block(bytes),
        });
        outgoing.push(&ENDED);
        outgoing.flush(|bytes| {
            sent.extend(bytes);
            Ok(bytes.len())
        });
        let mut lines = Lines::default();
        lines.push(&sent);
        assert_eq!(lines.next().unwrap(), Some(Report::Stopped(19)));
        assert_eq!(lines.next().unwrap(), Some(ENDED));
    }

    #[test]
    fn replaced_messages_take_no_room_and_the_newest_arrives() {
        let mut outgoing = Outgoing::new();
        outgoing.push(&Report::Started(7));
        for signal in 0..100_000 {
            outgoing.replace(Report::Stopped(signal));
            outgoing.flush(would_block);
        }
        assert!(outgoing.bytes.capacity() < 1024);
        assert_eq!(
            arrives(&mut outgoing, 8),
            [Report::Started(7), Report::Stopped(99_999)]
        );
    }

    #[test]
    fn a_pushed_message_supersedes_one_that_may_be_replaced() {
        let mut outgoing = Outgoing::new();
        outgoing.replace(Report::Stopped(19));
        outgoing.push(&ENDING);
        assert_eq!(arrives(&mut outgoing, 64), [ENDING]);
    }

    #[test]
    fn an_interrupted_write_is_repeated_and_a_dead_peer_is_told_no_more() {
        let mut outgoing = Outgoing::new();
        outgoing.push(&ENDED);
        let mut answers = [io::ErrorKind::Interrupted, io::ErrorKind::BrokenPipe].into_iter();
        outgoing.flush(|_| Err(answers.next().expect("no third write").into()));
        assert!(outgoing.is_empty());
    }

    #[test]
    fn what_is_pushed_into_a_full_socket_arrives_once_the_peer_reads() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut outgoing = Outgoing::new();
        let mut stops = 0;
        while outgoing.is_empty() {
            outgoing.replace(Report::Stopped(19));
            outgoing.flush(|bytes| near.write(bytes));
            stops += 1;
        }
        outgoing.push(&ENDED);

        let reader = thread::spawn(move || {
            let mut text = String::new();
            far.read_to_string(&mut text).unwrap();
            text
        });
        near.set_nonblocking(false).unwrap();
        outgoing.flush(|bytes| near.write(bytes));
        drop(near);
        let text = reader.join().unwrap();
        assert!(text.ends_with('\n') && text.contains("Ended"), "{text}");
        // The last stop found no room; the end replaces it, unless a part of it was sent.
        let arrived = text.lines().count();
        assert!(
            (stops..=stops + 1).contains(&arrived),
            "{arrived} of {stops}"
        );
    }
}
