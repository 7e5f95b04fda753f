//! A parcel that was taken from one side and is not yet delivered to the other.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Way;
use super::carry::Next;
use super::faults::{Faults, Part, Passage};
use super::links::{End, Link, Parcel, Shared};
use super::requests::Requests;

/// The next parcel.
pub(super) struct Pending {
    pub(super) arrived: Instant,
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) written: usize,
    /// Whether its requests were looked at, which happens once.
    pub(super) inspected: bool,
    /// Stop behind these bytes, having lost this part of a command.
    pub(super) trapped: Option<(usize, Part)>,
}

impl Pending {
    pub(super) fn new(parcel: Parcel) -> Pending {
        Pending {
            arrived: parcel.arrived,
            bytes: parcel.bytes,
            written: 0,
            inspected: false,
            trapped: None,
        }
    }

    /// Does what can be done at once. Runs while the faults are locked.
    pub(super) fn step(
        &mut self,
        way: Way,
        faults: &mut Faults,
        socket: Option<&TcpStream>,
        requests: &mut Requests,
        shared: &Shared,
        link: &Link,
    ) -> Next {
        if link.end.get().is_some() {
            return Next::Stop;
        }
        match faults.passage(way, self.arrived, link) {
            Passage::Open => {}
            Passage::HeldUntil(due) => return Next::Wait(due),
            Passage::Swallowed => {
                link.gap.store(true, Ordering::SeqCst);
                return Next::Done;
            }
        }
        let Some(socket) = socket else {
            return Next::Connected;
        };
        match way {
            Way::ToServer => self.step_to_server(faults, socket, requests, shared, link),
            Way::ToClient => self.step_to_client(faults, socket, shared, link),
        }
    }

    pub(super) fn step_to_server(
        &mut self,
        faults: &mut Faults,
        socket: &TcpStream,
        requests: &mut Requests,
        shared: &Shared,
        link: &Link,
    ) -> Next {
        let Some(bytes) = &self.bytes else {
            // The server learns that the client is gone, and will close in turn.
            let _ = shutdown(socket, Shutdown::Write);
            return Next::Stop;
        };
        if !self.inspected {
            self.inspected = true;
            self.trapped =
                requests
                    .find(bytes, |command| faults.spring(command))
                    .map(|(range, part)| match part {
                        Part::Request => (range.start, part),
                        Part::Reply => (range.end, part),
                    });
            if let Some((_, Part::Reply)) = self.trapped {
                link.muted.store(true, Ordering::SeqCst);
            }
        }
        let stop = self.trapped.map_or(bytes.len(), |(stop, _)| stop);
        if self.written < stop {
            let wrote = socket.try_write(&bytes[self.written..stop]);
            return self.wrote(wrote, &shared.to_server);
        }
        match self.trapped {
            None => Next::Done,
            Some((_, Part::Request)) => {
                shared.struck.fetch_add(1, Ordering::SeqCst);
                link.finish(End::Orderly);
                Next::Stop
            }
            Some((_, Part::Reply)) => {
                // The server closes once it has run what it was sent, and not before.
                let _ = shutdown(socket, Shutdown::Write);
                Next::Stop
            }
        }
    }

    pub(super) fn step_to_client(
        &mut self,
        faults: &mut Faults,
        socket: &TcpStream,
        shared: &Shared,
        link: &Link,
    ) -> Next {
        let muted = link.muted.load(Ordering::SeqCst);
        let Some(bytes) = &self.bytes else {
            if muted {
                shared.struck.fetch_add(1, Ordering::SeqCst);
            }
            link.finish(End::Orderly);
            return Next::Stop;
        };
        if muted || self.written == bytes.len() {
            return Next::Done;
        }
        let rest = &bytes[self.written..];
        let Some(allowed) = faults.cut_reply_after else {
            let wrote = socket.try_write(rest);
            return self.wrote(wrote, &shared.to_client);
        };
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
        let wrote = if allowed == 0 {
            Ok(0)
        } else {
            socket.try_write(&rest[..rest.len().min(allowed)])
        };
        let left = allowed - wrote.as_ref().map_or(0, |count| *count);
        faults.cut_reply_after = (left > 0).then_some(left as u64);
        let next = self.wrote(wrote, &shared.to_client);
        if left > 0 {
            return next;
        }
        shared.struck.fetch_add(1, Ordering::SeqCst);
        link.finish(End::Orderly);
        Next::Stop
    }

    pub(super) fn wrote(&mut self, wrote: io::Result<usize>, counter: &AtomicU64) -> Next {
        match wrote {
            Ok(count) => {
                self.written += count;
                counter.fetch_add(count as u64, Ordering::SeqCst);
                Next::Again
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Writable,
            // The receiver is gone; the end of what is read from it tells the other side.
            Err(_) => Next::Stop,
        }
    }
}
