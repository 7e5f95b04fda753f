//! A shop that sells umbrellas: `POST /buy` under a lock, in any number of processes, and no umbrella twice.

pub mod idempotency;
pub mod metrics;
mod stock;

use std::{fmt::Display, sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, middleware, routing::post};
use futures_util::future::BoxFuture;
use leasehold::Client;

pub use self::stock::Stock;

/// How long a buyer waits for a turn, and how long the bank may take.
const WAIT: Duration = Duration::from_secs(2);
const PAY: Duration = Duration::from_secs(5);

/// Reserves the price on a buyer's account, or says no. A reservation that no sale follows lapses by itself.
pub type Bank = Arc<dyn Fn(&str) -> BoxFuture<'static, bool> + Send + Sync>;

/// A process of the shop. All of them use the same server and the same database.
#[derive(Clone)]
pub struct Shop {
    /// The client of the lock server.
    pub client: Client,
    /// The umbrellas.
    pub stock: Stock,
    /// The bank of the buyers.
    pub bank: Bank,
}

type Refused = (StatusCode, &'static str);

fn unavailable(why: impl Display) -> Refused {
    eprintln!("nothing was sold: {why}"); // for those who run the shop
    (StatusCode::SERVICE_UNAVAILABLE, "not sold, try again")
}

impl Shop {
    /// The requests that the shop answers to.
    pub fn router(self) -> Router {
        let once = middleware::from_fn_with_state(self.clone(), idempotency::once);
        let buy = post(buy).layer(once);
        Router::new().route("/buy", buy).with_state(self)
    }

    async fn sell(&self, buyer: &str) -> Result<String, Refused> {
        let mutex = self.client.fenced_mutex("stock:umbrella");
        let guard = mutex.try_lock_for(WAIT).await.map_err(unavailable)?;
        let guard = guard.ok_or_else(|| unavailable("too many buyers"))?;

        // From here on the database refuses holders that came before.
        let umbrella = self.stock.look(guard.token()).map_err(unavailable)?;
        if umbrella == 0 {
            return Err((StatusCode::GONE, "no umbrella is left"));
        }
        // Nothing is sold yet, so this may be cut short: if the lock is lost, or the bank is slow.
        let payment = tokio::time::timeout(PAY, (self.bank)(buyer));
        let paid = guard.run(payment).await.map_err(unavailable)?;
        if !paid.map_err(unavailable)? {
            return Err((StatusCode::PAYMENT_REQUIRED, "the bank says no"));
        }
        // The step that counts is not cut short: the answer to the buyer is what the database says.
        let sold = self.stock.sell(guard.token(), umbrella, buyer);
        sold.map_err(unavailable)?;
        Ok(format!("umbrella {umbrella} for {buyer}\n"))
        // The drop of the guard releases the lock in the background: a dead server changes no answer.
    }
}

/// A sale is a task of its own, so that a buyer that hangs up cuts none in half.
async fn buy(State(shop): State<Shop>, buyer: String) -> Result<String, Refused> {
    let sale = tokio::spawn(async move { shop.sell(&buyer).await });
    sale.await.unwrap_or_else(|panic| Err(unavailable(panic)))
}
