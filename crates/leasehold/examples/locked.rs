//! A line above a function, and only one in the world is inside for each order.
//!
//! ```sh
//! cargo run --example locked                            # in memory, needs nothing
//! cargo run --example locked -- redis://127.0.0.1/      # on a server
//! ```

use std::{fmt, time::Duration};

use leasehold::{Client, Error, locked};

struct Request {
    user: u64,
    order: u64,
}

/// The refusals of a shop. A failure of the lock is one of them, by `From`, as `?` would need it.
enum Refused {
    TryLater,
    Lock(Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::TryLater => f.write_str("try later"),
            Refused::Lock(error) => error.fmt(f),
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Lock(error)
    }
}

/// The name is written as for `format!`. Behind a holder it waits up to 200 ms, and then returns what `busy` says.
#[locked("pay:{}:{}", request.user, request.order, wait = "200ms", busy = Err(Refused::TryLater))]
async fn pay(request: &Request, cents: u64) -> Result<String, Refused> {
    tokio::time::sleep(Duration::from_millis(300)).await; // the bank is slow
    Ok(format!("user {} paid {cents}", request.user))
}

struct Stock {
    locks: Client,
}

impl Stock {
    /// A method, with a client of its own; its writes carry the fencing token of its guard.
    #[locked("stock:{sku}", client = self.locks, kind = fenced, guard = g)]
    async fn sell(&self, sku: &str, count: u64) -> Result<u64, Error> {
        let store = self.locks.fenced_store(format!("stock:{sku}"));
        let key = format!("sold:{sku}");
        let sold = store.get(&key).await?.unwrap_or_default();
        let sold: u64 = String::from_utf8_lossy(&sold).parse().unwrap_or(0);
        store
            .set(&key, (sold + count).to_string(), g.token())
            .await?;
        Ok(sold + count)
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1);
    let client = Client::connect(url.as_deref().unwrap_or("memory:")).await?;
    leasehold::set_global(client.clone())?; // once per program

    let request = Request { user: 7, order: 42 };
    let (first, second) = tokio::join!(pay(&request, 4200), pay(&request, 4200));
    for paid in [&first, &second] {
        match paid {
            Ok(receipt) => println!("{receipt}"),
            Err(refused) => println!("at the same time: {refused}"),
        }
    }
    assert!(first.is_ok() != second.is_ok());

    let stock = Stock { locks: client };
    let sold = tokio::join!(stock.sell("lamp", 1), stock.sell("lamp", 2));
    println!("lamps sold in all: {:?}, then {:?}", sold.0, sold.1);
    assert!(sold.0? != sold.1?);
    Ok(())
}
