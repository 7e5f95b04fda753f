//! Finds the ends of commands in the bytes that clients send.

use std::ops::Range;

/// Finds the commands in the bytes of a client.
#[derive(Default)]
pub(super) struct Requests {
    /// The command that is not complete yet.
    pub(super) pending: Vec<u8>,
}

impl Requests {
    /// Looks at the commands that `bytes` completes, in order, until `look` makes something of one,
    /// and says which of `bytes` belong to that one.
    pub(super) fn find<T>(
        &mut self,
        bytes: &[u8],
        mut look: impl FnMut(&[u8]) -> Option<T>,
    ) -> Option<(Range<usize>, T)> {
        let earlier = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = command_length(&self.pending[start..]) {
            let end = start + length;
            if let Some(made) = look(&self.pending[start..end]) {
                return Some((start.saturating_sub(earlier)..end - earlier, made));
            }
            start = end;
        }
        self.pending.drain(..start);
        None
    }
}

/// The length of the first command, `None` while it is not complete. A command that is not RESP is one line.
pub(super) fn command_length(bytes: &[u8]) -> Option<usize> {
    let line_end =
        |from: usize| Some(from + bytes.get(from..)?.iter().position(|&byte| byte == b'\n')? + 1);
    let number = |from: usize, to: usize| {
        let digits = bytes.get(from + 1..to)?.trim_ascii_end();
        std::str::from_utf8(digits).ok()?.parse::<usize>().ok()
    };
    let mut end = line_end(0)?;
    if bytes[0] != b'*' {
        return Some(end);
    }
    for _ in 0..number(0, end).unwrap_or(0) {
        let header = end;
        end = line_end(header)?;
        end += number(header, end)? + 2;
    }
    (end <= bytes.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::{faults::contains, links::Parcel};
    use super::*;

    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

    #[test]
    fn a_command_ends_where_resp_says() {
        for short in 0..GET.len() {
            assert_eq!(command_length(&GET[..short]), None, "{short} bytes");
        }
        assert_eq!(command_length(GET), Some(GET.len()));
        assert_eq!(command_length(&[GET, GET].concat()), Some(GET.len()));
        assert_eq!(command_length(b"PING\r\nPING\r\n"), Some(6));
    }

    #[test]
    fn a_subscriber_is_known_by_its_first_subscribe() {
        let parcel = |bytes: &[u8]| Parcel {
            arrived: Instant::now(),
            bytes: Some(bytes.to_vec()),
        };
        assert!(parcel(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n").subscribes());
        assert!(parcel(b"*2\r\n$10\r\nSSUBSCRIBE\r\n$1\r\na\r\n").subscribes());
        assert!(!parcel(b"*2\r\n$12\r\nSUNSUBSCRIBE\r\n$1\r\na\r\n").subscribes());
        assert!(!parcel(b"*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\na\r\n").subscribes());
        assert!(!parcel(GET).subscribes());
    }

    #[test]
    fn a_command_is_found_across_reads() {
        let stream = [GET, b"*1\r\n$4\r\nPING\r\n", GET].concat();
        let (ping, end) = (GET.len(), GET.len() + 14);
        for split in 0..=stream.len() {
            let mut requests = Requests::default();
            let (one, two) = stream.split_at(split);
            let look = |command: &[u8]| contains(command, b"PING").then_some(());
            let found = requests
                .find(one, look)
                .map(|(range, ())| range)
                .or_else(|| {
                    let (range, ()) = requests.find(two, look)?;
                    Some(range.start + split..range.end + split)
                });
            assert_eq!(
                found,
                Some(ping.max(if split < end { split.min(end) } else { ping })..end),
                "split at {split}"
            );
        }
    }
}
