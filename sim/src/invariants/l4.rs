//! **L4** What one waiter asks for, or how long it waits, neither delays nor fails another: `lock()` fails only if the
//! server was silent towards its client about this name for as long as the lease that this caller asked for, or could not
//! be reached for an operation timeout.

use std::time::Duration;

use leasehold::{Error, ErrorKind};

use crate::{
    config::{MS, SECOND},
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

pub fn check(shared: &mut Shared, error: &Error, waiter: (u8, u8), since: u64, lease: u64) {
    if !tasks::is_transport(error) || !ASKED.with_borrow(|asked| asked.about("L4")) {
        return;
    }
    let (client, _) = waiter;
    let answered = shared.last_answer.get(&waiter).copied().unwrap_or(0);
    let silent = shared.now - since.max(answered);
    let refused = shared
        .last_refusal
        .get(&client)
        .is_some_and(|at| *at >= since);
    // `max_hold` makes a lease shorter than the one asked for.
    if shared.config.max_hold == 0.0
        && let Some(other) = lease_of_another(error, lease)
    {
        let letter = LETTERS[usize::from(client)];
        let what = format!(
            "a lock() of client {letter} for {} failed for {other}",
            span(lease)
        );
        shared.breach("L4", "failed for the lease of another", what);
        return;
    }
    let stop = shared.last_stop.get(&client);
    let stopped = stop.is_some_and(|at| *at >= since);
    let patience = match error.kind() {
        // Only if this very lease is too short for the way to the server and back; or this client was stopped, which
        // looks the same to it.
        ErrorKind::Rejected if lease <= SECOND || stopped => return,
        // The replica lags, and the policy says that the lock is given back then.
        ErrorKind::Rejected if shared.config.durable => return,
        ErrorKind::Rejected => u64::MAX,
        // A request that cannot be sent is tried for one operation timeout, or one lease.
        _ if refused => lease.min(shared.config.operation_timeout),
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

/// "The lease of 30ms is over before the answer is here", to a caller that asked for another one.
fn lease_of_another(error: &Error, lease: u64) -> Option<String> {
    let words = error.to_string();
    let (_, named) = words.split_once("the lease of ")?;
    let (named, _) = named.split_once(" is over")?;
    let own = [lease, lease / MS * MS, lease.div_ceil(MS) * MS];
    let own = own.map(|nanos| format!("{:?}", Duration::from_nanos(nanos)));
    (!own.iter().any(|own| own == named)).then(|| named.to_owned())
}
