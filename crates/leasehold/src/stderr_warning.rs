//! Warnings for those who run the program, whether or not the program listens to `tracing`.

use std::{panic::Location, sync::Once, time::Duration};

use tracing::{Dispatch, dispatcher, subscriber::NoSubscriber};

use crate::{name::Name, user_callback};

/// Warns once per process that a URL has chosen memory: in production that locks no other process out, and nothing else shows it.
pub(crate) fn memory_was_chosen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        warn(
            "the URL is memory:, so all leases are in the memory of this process, and no other process is locked out; give the \
             URL of a server, such as redis://127.0.0.1/, or say that memory is meant: \
             Client::builder().memory(&MemoryServer::new())",
        );
    });
}

/// Warns of a task that waits for a name that its own process holds. A program that is being written may have no subscriber yet: there it
/// is said once.
pub(crate) fn waits_for_itself(
    name: &Name,
    waiting_at: &Location<'_>,
    held_at: &Location<'_>,
    after: Duration,
) {
    static ONCE: Once = Once::new();
    const REMEDY: &str = "if the holder waits for this, it waits for ever: pass the guard on, or lock through an Owner";
    user_callback::catch_panic(|| {
        if has_subscriber() {
            tracing::warn!(
                target: "leasehold",
                %name,
                %waiting_at,
                %held_at,
                "waiting for {after:?} for a name that this process holds itself; {REMEDY}"
            );
        } else if cfg!(debug_assertions) {
            ONCE.call_once(|| {
                eprintln!(
                    "leasehold: {waiting_at} waits for {after:?} for {name:?}, which this process holds itself, taken at {held_at}; {REMEDY}"
                );
            });
        }
    });
}

fn has_subscriber() -> bool {
    !dispatcher::get_default(Dispatch::is::<NoSubscriber>)
}

/// A warning for the subscriber; where there is none, a line on standard error.
fn warn(message: &str) {
    user_callback::catch_panic(|| {
        // `eprintln!` panics where stderr is closed, so it stands within, beside the code of the subscriber.
        if has_subscriber() {
            tracing::warn!("{message}");
        } else {
            eprintln!("leasehold: {message}");
        }
    });
}
