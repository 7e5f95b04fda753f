//! The database, which refuses a holder of a lock that comes too late.

use std::path::Path;

use sqlx::{Row, Sqlite, SqlitePool, Transaction, sqlite::SqliteConnectOptions};

use crate::Refused;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS fences (name TEXT PRIMARY KEY, token BIGINT NOT NULL);
    CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, shipped_in_term BIGINT);
    CREATE TABLE IF NOT EXISTS reports (paid BIGINT NOT NULL);
";

/// The newest token of each name. No row changes: a newer token has been there.
const FENCE: &str = "
    INSERT INTO fences (name, token) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token
";

/// A transaction that a holder of the lock `name` has only if no newer holder had one.
pub(crate) async fn fenced(
    db: &SqlitePool,
    name: &str,
    token: u64,
) -> Result<Transaction<'static, Sqlite>, Refused> {
    let mut transaction = db.begin_with("BEGIN IMMEDIATE").await?; // Postgres: db.begin()
    let fence = sqlx::query(FENCE).bind(name).bind(token.cast_signed());
    if fence.execute(&mut *transaction).await?.rows_affected() == 0 {
        let name = name.to_owned();
        return Err(Refused::Stale { name, token }); // the drop rolls back
    }
    Ok(transaction)
}

/// Opens the database, or makes a new one.
///
/// # Errors
/// It cannot be opened.
pub async fn open(path: &Path) -> sqlx::Result<SqlitePool> {
    let options = SqliteConnectOptions::new().filename(path);
    let db = SqlitePool::connect_with(options.create_if_missing(true)).await?;
    sqlx::raw_sql(SCHEMA).execute(&db).await?;
    Ok(db)
}

type In<'a> = &'a mut Transaction<'static, Sqlite>;

pub(crate) async fn is_paid(transaction: In<'_>, id: i64) -> sqlx::Result<bool> {
    let look = sqlx::query("SELECT 1 FROM orders WHERE id = $1").bind(id);
    let row = look.fetch_optional(&mut **transaction).await?;
    Ok(row.is_some())
}

pub(crate) async fn set_paid(transaction: In<'_>, id: i64) -> sqlx::Result<()> {
    let pay = sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(id);
    pay.execute(&mut **transaction).await.map(drop)
}

/// Whether an order is paid and not yet shipped.
pub(crate) async fn is_any_to_ship(db: &SqlitePool) -> sqlx::Result<bool> {
    let look = sqlx::query("SELECT 1 FROM orders WHERE shipped_in_term IS NULL LIMIT 1");
    let row = look.fetch_optional(db).await?;
    Ok(row.is_some())
}

/// Marks the orders that are paid and not yet shipped; says how many.
pub(crate) async fn ship_paid(transaction: In<'_>, term: u64) -> sqlx::Result<u64> {
    let ship = "UPDATE orders SET shipped_in_term = $1 WHERE shipped_in_term IS NULL";
    let ship = sqlx::query(ship).bind(term.cast_signed());
    Ok(ship.execute(&mut **transaction).await?.rows_affected())
}

/// Writes how many orders are paid, and says it.
pub(crate) async fn write_report(db: &SqlitePool) -> sqlx::Result<i64> {
    let write = "INSERT INTO reports (paid) SELECT count(*) FROM orders RETURNING paid";
    sqlx::query(write).fetch_one(db).await?.try_get("paid")
}
