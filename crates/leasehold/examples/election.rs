//! At most one scheduler at a time, and others that take over.
//!
//! ```sh
//! cargo run --example election                                        # three candidates in memory; ends by itself
//! cargo run --example election -- redis://127.0.0.1/ 10.0.0.7:8080     # a candidate; start some, and stop the one that leads
//! ```

use std::time::Duration;

use leasehold::{Client, Error, MemoryServer, Term};

/// The work of the leader. It is dropped at an `.await` if the lead is lost, before the next leader can begin.
async fn schedule(value: &str, jobs: Option<u32>, term: Term) -> u32 {
    println!("{value} leads, by token {}", term.token());
    let mut done = 0;
    while jobs.is_none_or(|jobs| done < jobs) {
        done += 1;
        // A write to a database would carry term.token(), so that it refuses an old leader: see fenced_sql.rs.
        println!("{value} schedules job {done}");
        tokio::time::sleep(Duration::from_millis(if jobs.is_some() {
            20
        } else {
            1000
        }))
        .await;
    }
    done
}

/// Campaigns until its work has ended. Another lease than 30 s: so long after a crash the next leader begins.
async fn candidate(client: Client, value: String, jobs: Option<u32>) -> Result<u32, Error> {
    let election = client.election("scheduler").value(&value);
    let election = election.lease(Duration::from_secs(5));
    election.run(|term| schedule(&value, jobs, term)).await
}

/// Says who leads, whenever that changes.
async fn look(client: Client) -> Result<(), Error> {
    let mut seen = client.election("scheduler").observe();
    loop {
        match seen.next().await? {
            Some(leader) => println!("seen: {} leads", leader.value),
            None => println!("seen: there is no leader"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    if let Some(url) = args.next() {
        let client = Client::connect(&url).await?;
        let value = args
            .next()
            .unwrap_or_else(|| format!("process {}", std::process::id()));
        tokio::select! {
            ended = candidate(client.clone(), value, None) => drop(ended?),
            ended = look(client) => ended?,
        }
        return Ok(());
    }

    let server = MemoryServer::new();
    let mut candidates = tokio::task::JoinSet::new();
    for value in ["one", "two", "three"] {
        let client = Client::builder().memory(&server).connect().await?;
        candidates.spawn(candidate(client, value.to_owned(), Some(3)));
    }
    let client = Client::builder().memory(&server).connect().await?;
    let looks = tokio::spawn(look(client.clone()));

    // Each leads once, one after the other: the next begins when the work of the one before has ended.
    let done = candidates.join_all().await;
    let done = done.into_iter().sum::<Result<u32, Error>>()?;
    looks.abort();
    println!(
        "{done} jobs in all, and no leader is left: {:?}",
        client.election("scheduler").leader().await?
    );
    assert_eq!(done, 9);
    Ok(())
}
