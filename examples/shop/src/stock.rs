//! The umbrellas, in a SQLite database that all processes of the shop open.

use std::{path::Path, sync::Arc, time::Duration};

use axum::http::StatusCode;
use parking_lot::Mutex;
use rusqlite::{Connection, Error, OptionalExtension, Result, TransactionBehavior::Immediate};

/// SQLite answers at once; a database behind a network has an asynchronous client, and needs no mutex here.
#[derive(Clone)]
pub struct Stock(Arc<Mutex<Connection>>);

impl Stock {
    /// Opens the database, and puts so many umbrellas into a new one.
    pub fn open(path: &Path, umbrellas: u32) -> Result<Stock> {
        let db = Connection::open(path)?;
        db.busy_timeout(Duration::from_secs(5))?;
        db.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS stock (id INTEGER PRIMARY KEY, umbrellas INTEGER, token INTEGER);
             INSERT OR IGNORE INTO stock VALUES (1, {umbrellas}, 0);
             CREATE TABLE IF NOT EXISTS sales (umbrella INTEGER, buyer TEXT);
             CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, status INTEGER, body BLOB);"
        ))?;
        Ok(Stock(Arc::new(Mutex::new(db))))
    }

    /// How many are left. Fails, as `sell` does, if a holder of the lock with a newer token has looked.
    pub(crate) fn look(&self, token: u64) -> Result<u32> {
        let look = "UPDATE stock SET token = ?1 WHERE token <= ?1 RETURNING umbrellas";
        let db = self.0.lock();
        db.query_row(look, [token.cast_signed()], |row| row.get(0))
    }

    /// Sells umbrella number `umbrella`.
    pub(crate) fn sell(&self, token: u64, umbrella: u32, buyer: &str) -> Result<()> {
        let mut db = self.0.lock();
        let sale = db.transaction_with_behavior(Immediate)?;
        let take = "UPDATE stock SET umbrellas = ?1 WHERE token = ?2";
        if sale.execute(take, (umbrella - 1, token.cast_signed()))? == 0 {
            return Err(Error::QueryReturnedNoRows); // a newer token is there; the drop rolls back
        }
        sale.execute("INSERT INTO sales VALUES (?1, ?2)", (umbrella, buyer))?;
        sale.commit()
    }

    /// The answer to an earlier request with this key.
    pub(crate) fn answer(&self, key: &str) -> Result<Option<(StatusCode, Vec<u8>)>> {
        let look = "SELECT status, body FROM answers WHERE key = ?1";
        let answer = self.0.lock().query_row(look, [key], |row| {
            let status = StatusCode::from_u16(row.get(0)?).unwrap_or_default();
            Ok((status, row.get(1)?))
        });
        answer.optional()
    }

    pub(crate) fn keep_answer(&self, key: &str, status: StatusCode, body: &[u8]) -> Result<()> {
        let keep = "INSERT OR IGNORE INTO answers VALUES (?1, ?2, ?3)";
        let db = self.0.lock();
        db.execute(keep, (key, status.as_u16(), body)).map(drop)
    }
}
