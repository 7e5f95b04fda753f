//! Many buyers, one stock: the read and the write in between are not atomic, the lock makes them so.
//!
//! ```sh
//! cargo run --example deduct_stock                          # in memory, needs nothing
//! cargo run --example deduct_stock -- redis://127.0.0.1/    # on a server
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, ClientBuilder, Error, MemoryServer};
use tokio::task::JoinSet;

const STOCK: u32 = 50;
const BUYERS: usize = 100;

/// A shop with a database without transactions.
#[derive(Default)]
struct Shop {
    stock: AtomicU32,
    sold: AtomicU32,
}

impl Shop {
    /// Sells one if there is one. Two at once would sell the last one twice.
    async fn sell(&self) {
        let left = self.stock.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_micros(100)).await; // the way to the database and back
        if left > 0 {
            self.stock.store(left - 1, Ordering::Relaxed);
            self.sold.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Needs no server, and locks no other process out.
fn in_memory() -> ClientBuilder {
    Client::builder().memory(&MemoryServer::new())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = match std::env::args().nth(1) {
        Some(url) => Client::connect(&url).await?,
        None => in_memory().connect().await?,
    };
    let shop = Arc::new(Shop {
        stock: AtomicU32::new(STOCK),
        ..Shop::default()
    });

    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let (shop, mutex) = (Arc::clone(&shop), client.mutex("stock:umbrella"));
        buyers.spawn(async move {
            let guard = mutex.lock().await?;
            guard.run(shop.sell()).await
        });
    }
    while let Some(bought) = buyers.join_next().await {
        bought.expect("a buyer does not panic")?;
    }

    let (sold, left) = (
        shop.sold.load(Ordering::Relaxed),
        shop.stock.load(Ordering::Relaxed),
    );
    println!("{BUYERS} buyers, {STOCK} umbrellas: {sold} sold, {left} left");
    assert_eq!((sold, left), (STOCK, 0), "oversold");
    Ok(())
}
