//! A service that takes payments for orders, in any number of processes. `docs/service.md` says why each line stands here.

pub mod data;
pub mod jobs;
pub mod metrics;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use futures_util::future::BoxFuture;
use leasehold::{Client, Error, locked};
use sqlx::SqlitePool;
use tokio::time::{error::Elapsed, timeout};

use crate::data::fenced;

/// How long the bank may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Charges for an order. The order is the bank's idempotency key: two calls for one order charge once.
pub type Bank = Arc<dyn Fn(i64) -> BoxFuture<'static, ()> + Send + Sync>;

/// A process of the service. All of them use one lock server and one database.
#[derive(Clone)]
pub struct App {
    /// The client of the lock server.
    pub locks: Client,
    /// The orders.
    pub db: SqlitePool,
    /// The bank of the buyers.
    pub bank: Bank,
}

impl App {
    /// The requests that the service answers to.
    pub fn router(self) -> Router {
        let routes = Router::new().route("/orders/{id}/pay", post(pay));
        routes.with_state(self)
    }
}

#[locked("order:{id}", client = app.locks, kind = fenced, guard = guard, wait = "0s")]
async fn pay(State(app): State<App>, Path(id): Path<i64>) -> Result<String, Refused> {
    let mut look = fenced(&app.db, guard.name(), guard.token()).await?;
    let paid = data::is_paid(&mut look, id).await?;
    look.commit().await?;
    if paid {
        return Ok(format!("order {id} was paid before\n"));
    }

    timeout(PATIENCE, (app.bank)(id)).await?;

    let mut write = fenced(&app.db, guard.name(), guard.token()).await?;
    data::set_paid(&mut write, id).await?;
    write.commit().await?;
    Ok(format!("order {id} is paid\n"))
}

/// Why a request, or a job, was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The lock is held, is lost, or cannot be asked for.
    #[error(transparent)]
    Lock(#[from] Error),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    /// The bank took too long.
    #[error("the bank has not answered within {PATIENCE:?}")]
    Bank(#[from] Elapsed),
    /// The database has seen a newer holder of the lock.
    #[error("token {token} of {name} is stale: a newer holder was here, and nothing was changed")]
    Stale {
        /// The name of the lock.
        name: String,
        /// The token of the older holder.
        token: u64,
    },
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let wait = [(RETRY_AFTER, "1")];
        if let Refused::Lock(Error::Busy { .. }) = self {
            return (StatusCode::CONFLICT, wait, "being paid already\n").into_response();
        }
        tracing::warn!(error = %self, "a request failed");
        (StatusCode::SERVICE_UNAVAILABLE, wait, "try again\n").into_response()
    }
}
