//! No client asks the server more often than a client can have a reason for.

use parking_lot::Mutex;

use crate::{config::SECOND, process::Process, shared::Shared};

/// In one second of virtual time. A task that locks and unlocks as fast as it can sends some 500.
const MOST: u32 = 2_500;

pub fn sent(process: &mut Process, now: u64, shared: &Mutex<Shared>) {
    let second = now / SECOND;
    if process.busy.0 != second {
        process.busy = (second, 0);
    }
    process.busy.1 += 1;
    if process.busy.1 == MOST {
        let what = format!(
            "client {} sent {MOST} requests within a second",
            process.letter()
        );
        shared.lock().breach("busy", "too many requests", what);
    }
}
