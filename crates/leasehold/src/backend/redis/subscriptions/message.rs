//! The meaning of a message on a channel to those that wait.

use std::time::Duration;

use crate::{
    backend::{WakeUp, redis::kinds::wire},
    name::{FREE, LockId, OURS},
};

/// To the clients of those that held it.
const FORCED: &[u8] = b"forced";

/// The wake-up that a message brings to those that wait for this lock. `None`: it brings none.
pub(crate) fn wake_up(id: &LockId, channel: &str, payload: &[u8]) -> Option<WakeUp> {
    // Redisson's channels, and that of a plain mutex, tell that a name is free. The others of ours tell one client something.
    if !channel.starts_with(OURS) || channel.ends_with(FREE) {
        return Some(freed(payload));
    }
    if payload == FORCED {
        return Some(WakeUp::Forced);
    }
    if let Some(grant) = wire(id.kind).grant(payload) {
        return Some(WakeUp::Granted(grant));
    }
    // To the first in the queue: for how many milliseconds the lock is held.
    match std::str::from_utf8(payload).ok()?.parse().ok()? {
        0 => Some(WakeUp::TryAgain),
        ms => Some(WakeUp::Watch(Duration::from_millis(ms))),
    }
}

/// The wake-up that a release brings on Redisson's channel: zeros before its number leave so many turns to Redisson's waiters, a plus none.
fn freed(payload: &[u8]) -> WakeUp {
    let zeros = payload.iter().take_while(|digit| **digit == b'0').count();
    // Of a message of zeros alone the last is the number itself: Redisson's own release says `0`.
    match zeros - usize::from(zeros > 0 && zeros == payload.len()) {
        0 if payload.first() != Some(&b'+') => WakeUp::TryAgain,
        turns => WakeUp::Turns(u32::try_from(turns).unwrap_or(0)),
    }
}
