//! **L4** What one waiter asks for, or how long it waits, neither delays nor fails another: `lock()` fails only if the
//! server was silent towards its client for as long as the lease that this caller asked for.

use leasehold::{Error, ErrorKind};

use crate::{
    config::SECOND,
    invariants::Asked,
    shared::{LETTERS, Shared, span},
    tasks,
};

thread_local! {
    static ASKED: std::cell::RefCell<Asked> = std::cell::RefCell::default();
}

/// Which promises this thread asks about.
pub fn ask(asked: &Asked) {
    ASKED.set(asked.clone());
}

pub fn check(shared: &mut Shared, error: &Error, client: u8, since: u64, lease: u64) {
    if !tasks::is_transport(error) || !ASKED.with_borrow(|asked| asked.about("L4")) {
        return;
    }
    let silent = shared.now - since.max(shared.last_answer[usize::from(client)]);
    let patience = match error.kind() {
        // Only if this very lease is too short for the way to the server and back.
        ErrorKind::Rejected if lease <= SECOND => return,
        ErrorKind::Rejected => u64::MAX,
        // What cannot be sent is tried for one operation timeout, or one lease.
        ErrorKind::NotSent => lease.min(shared.config.operation_timeout),
        _ => lease,
    };
    // Clocks differ by a percent; and timers are late.
    if silent < patience - patience / 10 {
        let letter = LETTERS[usize::from(client)];
        let what = format!(
            "a lock() of client {letter} for a lease of {} failed after {} of silence: {error}",
            span(lease),
            span(silent)
        );
        shared.breach("L4", format!("{:?}", error.kind()), what);
    }
}
