//! How your own program reacts to a lost lock: a test on the memory backend, where thirty seconds take none.
//!
//! ```sh
//! cargo test --example own_tests
//! cargo run --example own_tests       # runs the same
//! ```

use leasehold::{Client, Error, Guard};

/// The code under test: works as long as it may.
async fn import(guard: &Guard, rows: &mut Vec<u32>) -> Result<(), Error> {
    let work = async {
        loop {
            rows.push(0);
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    };
    guard.run(work).await
}

/// The server becomes unreachable, and the work stops before another owner can get the name.
async fn work_stops_before_the_lock_is_lost() -> Result<(), Error> {
    use leasehold::{ErrorKind, MemoryServer};

    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await?;
    let rival = Client::builder().memory(&server).connect().await?;
    let guard = client.mutex("import").lock().await?;

    server.cut(true); // from here on nothing gets through
    let mut rows = Vec::new();
    let error = import(&guard, &mut rows).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(
        (29..=30).contains(&rows.len()),
        "a lease of 30 s, less its margin"
    );
    assert_eq!(
        server.names(),
        ["import"],
        "the rival cannot have got it yet"
    );
    server.cut(false);
    assert!(rival.mutex("import").lock().await?.is_valid());
    Ok(())
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Error> {
    work_stops_before_the_lock_is_lost().await?;
    println!("the work stopped in time");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test(start_paused = true)]
    async fn work_stops_before_the_lock_is_lost() {
        super::work_stops_before_the_lock_is_lost().await.unwrap();
    }
}
