//! A lock in front of a SQL database, and the database refuses a holder that comes too late.
//!
//! ```sh
//! cargo run --example fenced_sql                          # the lock in memory, needs nothing
//! cargo run --example fenced_sql -- redis://127.0.0.1/    # the lock on a server
//! ```
//!
//! A table has the newest fencing token of each name. The first statement of each transaction moves it on; if that finds no row,
//! a newer holder has been there. The database serializes the rest: the row stays locked until the transaction ends, so an
//! older holder's statement waits for it, looks at the row again, and finds nothing. The statement makes the row of a name that
//! has none yet, so names may be made at run time.
//!
//! | database | the first statement of the transaction |
//! |---|---|
//! | SQLite, in `BEGIN IMMEDIATE`; PostgreSQL, `READ COMMITTED` | `INSERT INTO fences (name, token) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token` |
//! | MySQL, InnoDB | `UPDATE fences SET token = ? WHERE name = ? AND token <= ?`, and once for each name, in a transaction before it: `INSERT IGNORE INTO fences (name, token) VALUES (?, 0)` |
//!
//! Each answers with the number of rows: 1, or 0 for a stale token. MySQL counts the rows that *changed* unless the driver asks for
//! those that were found (`CLIENT_FOUND_ROWS`; `useAffectedRows=false` in JDBC): without that a holder's second transaction would
//! seem stale. With `REPEATABLE READ` or stricter, PostgreSQL fails the older one with 40001 instead: do not repeat it.
//!
//! SQLite is tested here, with the text that PostgreSQL takes; PostgreSQL 15 was tried by hand, and MySQL was not.

use std::{error::Error, time::Duration};

use leasehold::{Client, ClientBuilder, MemoryServer};
use rusqlite::{Connection, Transaction, TransactionBehavior};

/// For SQLite and PostgreSQL alike. No row changes: a newer token has been there.
const FENCE: &str = "
    INSERT INTO fences (name, token) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token
";

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS fences (name TEXT PRIMARY KEY, token BIGINT NOT NULL);
    CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, left_over INTEGER NOT NULL);
    INSERT OR IGNORE INTO stock VALUES ('umbrella', 50);
";

/// The holder comes too late: a newer one has written.
#[derive(Debug)]
struct Stale;

impl std::fmt::Display for Stale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a newer holder has written; nothing was changed")
    }
}

impl Error for Stale {}

/// Carries out `work` in a transaction, unless the token is stale.
fn fenced<T>(
    db: &mut Connection,
    name: &str,
    token: u64,
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> Result<T, Box<dyn Error>> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let passes = transaction.execute(FENCE, (name, i64::try_from(token)?))?;
    if passes == 0 {
        return Err(Stale.into()); // the drop of the transaction rolls it back
    }
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

fn sell(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let sold = "UPDATE stock SET left_over = left_over - 1 WHERE item = 'umbrella'";
    transaction.execute(sold, ()).map(drop)
}

fn left(db: &Connection) -> rusqlite::Result<u32> {
    let left = "SELECT left_over FROM stock WHERE item = 'umbrella'";
    db.query_row(left, (), |row| row.get(0))
}

/// Needs no server, and locks no other process out.
fn in_memory() -> ClientBuilder {
    Client::builder().memory(&MemoryServer::new())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = match std::env::args().nth(1) {
        Some(url) => Client::connect(&url).await?,
        None => in_memory().connect().await?,
    };
    let mut db = Connection::open_in_memory()?;
    db.execute_batch(SCHEMA)?;

    // The first holder pauses past the end of its lease.
    let short = Duration::from_millis(50);
    let paused = client
        .fenced_mutex("stock")
        .fixed_lease(short)
        .lock()
        .await?;
    let next = client.fenced_mutex("stock").lock().await?;
    fenced(&mut db, "stock", next.token(), sell)?;
    println!(
        "token {} has sold one, {} are left",
        next.token(),
        left(&db)?
    );

    match fenced(&mut db, "stock", paused.token(), sell) {
        Err(stale) => println!("token {} has not: {stale}", paused.token()),
        Ok(()) => unreachable!("a stale token was let through"),
    }
    assert_eq!(left(&db)?, 49);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_write_of_a_paused_holder_is_refused_200_of_200() {
        let client = Client::connect("memory:").await.unwrap();
        let mut db = Connection::open_in_memory().unwrap();
        db.execute_batch(SCHEMA).unwrap();
        let mut refused = 0;
        for _ in 0..200 {
            let short = Duration::from_millis(5);
            let mutex = client.fenced_mutex("stock");
            let paused = mutex.fixed_lease(short).lock().await.unwrap();
            let next = mutex.lock().await.unwrap();
            let before = left(&db).unwrap();
            // Two transactions of one holder, and none of the one before.
            fenced(&mut db, "stock", next.token(), |_| Ok(())).unwrap();
            fenced(&mut db, "stock", next.token(), |_| Ok(())).unwrap();
            let late = fenced(&mut db, "stock", paused.token(), sell).unwrap_err();
            assert!(late.is::<Stale>(), "{late}");
            refused += u32::from(left(&db).unwrap() == before);
        }
        assert_eq!(refused, 200);
    }

    /// Each on a connection of its own, at once: which is first is up to the database, and the newer one stays.
    #[test]
    fn of_two_holders_at_once_the_newer_one_has_the_last_word() {
        let dir = std::env::temp_dir().join(format!("leasehold-fenced-{}", std::process::id()));
        let open = || {
            let db = Connection::open(&dir).unwrap();
            db.busy_timeout(Duration::from_secs(10)).unwrap();
            db
        };
        open().execute_batch(SCHEMA).unwrap();
        for round in 0..50_u64 {
            std::thread::scope(|scope| {
                for token in [2 * round + 1, 2 * round + 2] {
                    scope.spawn(move || {
                        let write = |transaction: &Transaction<'_>| {
                            let set = "UPDATE stock SET left_over = ?1 WHERE item = 'umbrella'";
                            transaction.execute(set, [i64::try_from(token).unwrap()])
                        };
                        let _ = fenced(&mut open(), "stock", token, write);
                    });
                }
            });
            assert_eq!(u64::from(left(&open()).unwrap()), 2 * round + 2);
        }
        std::fs::remove_file(&dir).unwrap();
    }
}
