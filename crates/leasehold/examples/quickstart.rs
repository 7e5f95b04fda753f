//! The lines of the README, and what they print.
//!
//! ```sh
//! cargo run --example quickstart                            # in memory, needs nothing
//! cargo run --example quickstart -- redis://127.0.0.1/      # on a server
//! ```

use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error, MemoryServer, Released};

/// Needs no server, and locks no other process out.
fn in_memory() -> ClientBuilder {
    Client::builder().memory(&MemoryServer::new())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = match std::env::args().nth(1) {
        Some(url) => Client::connect(&url).await?,
        None => in_memory().connect().await?,
    };

    let mutex = client.mutex("order:42"); // a handle; no I/O
    let guard = mutex.lock().await?; // waits its turn; renewed while the guard lives
    println!("holding order:42 for {:?} and longer", guard.remaining());

    // Another caller does not get it, and does not wait for ever.
    let other = mutex.try_lock_for(Duration::from_millis(100)).await?;
    println!("another caller got it: {}", other.is_some());

    // Dropped the moment the lease is lost.
    let receipt = guard.run(async { "charged 42.00" }).await?;
    println!(
        "{receipt}, and the lock is still ours: {}",
        guard.is_valid()
    );

    let released = guard.release().await?; // or just drop it
    println!("gave it back: {released:?}");

    assert!(other.is_none());
    assert_eq!(released, Released::Freed);
    Ok(())
}
