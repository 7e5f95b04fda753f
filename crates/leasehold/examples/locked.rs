//! A line above a function, and only one in the world is inside for each order.
//!
//! ```sh
//! cargo run --example locked                            # in memory, needs nothing
//! cargo run --example locked -- redis://127.0.0.1/      # on a server
//! ```

use std::time::Duration;

use leasehold::{Client, Error, locked};

struct Request {
    user: u64,
    order: u64,
}

/// What a shop says. A failure of the lock is one of them, by `From`, as `?` would need it.
#[derive(Debug)]
enum Refused {
    TryLater,
    Lock(Error),
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
    async fn deduct(&self, sku: &str, count: u64) -> Result<u64, Error> {
        let store = self.locks.fenced_store(format!("stock:{sku}"));
        let key = format!("left:{sku}");
        let left = match store.get(&key).await? {
            Some(left) => String::from_utf8_lossy(&left).parse().unwrap_or(0),
            None => 10_u64,
        };
        let left = left.saturating_sub(count);
        store.set(&key, left.to_string(), g.token()).await?;
        Ok(left)
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1);
    let client = Client::connect(url.as_deref().unwrap_or("memory:")).await?;
    leasehold::set_global(client.clone())?; // once per program

    let request = Request { user: 7, order: 42 };
    let (first, second) = tokio::join!(pay(&request, 4200), pay(&request, 4200));
    println!("{first:?}, and at the same time {second:?}");
    assert!(first.is_ok() && matches!(second, Err(Refused::TryLater)));

    let stock = Stock { locks: client };
    let left = tokio::join!(stock.deduct("lamp", 1), stock.deduct("lamp", 2));
    println!("lamps left: {:?} and {:?}", left.0, left.1);
    assert_eq!(left.0?.min(left.1?), 7);
    Ok(())
}
