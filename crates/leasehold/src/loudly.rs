//! What the library has to tell those who run the program, whether or not the program listens to `tracing`.

use std::sync::Once;

use tracing::{Dispatch, dispatcher, subscriber::NoSubscriber};

use crate::callout;

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

/// A warning for the subscriber; where there is none, a line on standard error.
fn warn(message: &str) {
    callout::quietly(|| {
        if dispatcher::get_default(Dispatch::is::<NoSubscriber>) {
            eprintln!("leasehold: {message}");
        } else {
            tracing::warn!("{message}");
        }
    });
}
