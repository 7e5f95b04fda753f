//! The work of a process beside its requests: a report each hour, and the shipping, which one process leads.

use std::time::Duration;

use leasehold::{Error, Term};
use sqlx::SqlitePool;
use tokio::time::{interval, sleep};

use crate::{
    App, Refused,
    data::{self, fenced},
};

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
/// How often the leader looks for orders.
const LOOK: Duration = Duration::from_millis(200);

/// Writes the report of this hour, unless a process has done so: `None`.
///
/// # Errors
/// The lock server or the database failed.
pub async fn report(app: &App) -> Result<Option<i64>, Refused> {
    let hour = app.locks.mutex("report");
    let written = hour.run_once_per(HOUR, data::write_report(&app.db)).await?;
    Ok(written.transpose()?)
}

/// Asks each minute, until the client is shut down.
pub async fn report_hourly(app: App) {
    let mut timer = interval(MINUTE);
    loop {
        timer.tick().await;
        match report(&app).await {
            Ok(_) => {}
            Err(Refused::Lock(Error::Closed)) => return,
            Err(error) => tracing::warn!(%error, "no report"),
        }
    }
}

/// Ships whenever this process leads, until the client is shut down.
pub async fn ship(app: App) {
    let election = app.locks.election("shipping");
    loop {
        match election.run(|term| ship_in(term, &app.db)).await {
            Err(Error::Closed) => return,
            Err(error) => tracing::warn!(%error, "no candidate for the shipping"),
            Ok(()) => {}
        }
        sleep(MINUTE).await;
    }
}

/// A term of the leader. It is dropped when the lead is lost.
async fn ship_in(term: Term, db: &SqlitePool) {
    loop {
        if let Err(error) = ship_paid(db, term.token()).await {
            tracing::warn!(%error, "nothing was shipped");
        }
        sleep(LOOK).await;
    }
}

async fn ship_paid(db: &SqlitePool, term: u64) -> Result<(), Refused> {
    // Most looks find nothing, and a transaction with the fence would write each time.
    if !data::is_any_to_ship(db).await? {
        return Ok(());
    }
    let mut write = fenced(db, "shipping", term).await?;
    data::ship_paid(&mut write, term).await?;
    write.commit().await?;
    Ok(())
}
