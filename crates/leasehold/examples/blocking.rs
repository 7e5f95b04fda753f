//! A program without async code: its threads sell the last ten umbrellas, and never an eleventh.
//!
//! ```sh
//! cargo run --example blocking --features blocking                            # in memory, needs nothing
//! cargo run --example blocking --features blocking -- redis://127.0.0.1/      # on a server: start it twice at once
//! cargo test --example blocking --features blocking
//! ```

use std::{thread, time::Duration};

use leasehold::{Error, Fenced, MemoryServer, blocking};

const IN_STOCK: u32 = 10;

/// The shop's data, on the server, with the lock that its writers take.
#[derive(Clone)]
struct Stock {
    lock: blocking::FencedMutex,
    data: blocking::FencedStore,
}

impl Stock {
    fn new(client: &blocking::Client) -> Stock {
        Stock {
            lock: client.fenced_mutex("stock:umbrella"),
            data: client.fenced_store("stock:umbrella"),
        }
    }

    /// Sells one, if there is one. Any number of threads and processes may call this at once.
    fn sell(&self) -> Result<bool, Error> {
        // Waits its turn; the lease is renewed while the closure works.
        self.lock.run(|guard| self.sell_one(guard))?
    }

    fn sell_one(&self, guard: &blocking::Guard<Fenced>) -> Result<bool, Error> {
        let left = self.data.get("umbrellas")?;
        let left = left.and_then(|left| String::from_utf8(left).ok()?.parse().ok());
        let left: u32 = left.unwrap_or(IN_STOCK);
        if left == 0 {
            return Ok(false);
        }
        // A thread cannot be stopped when the lease is lost. So it asks before the step that counts …
        guard.ensure(Duration::from_secs(1))?;
        // … and the data refuse a thread that was asleep between the two: its token is old by then.
        let left = (left - 1).to_string();
        self.data.set("umbrellas", left, guard.token())?;
        Ok(true)
    }
}

/// How many the threads have sold.
fn sell_all(client: &blocking::Client, threads: usize) -> Result<u32, Error> {
    let sellers: Vec<_> = (0..threads)
        .map(|_| {
            let stock = Stock::new(client);
            thread::spawn(move || {
                let mut sold = 0;
                while stock.sell()? {
                    sold += 1;
                }
                Ok::<u32, Error>(sold)
            })
        })
        .collect();
    let sold = sellers.into_iter().map(|seller| seller.join().unwrap());
    sold.sum()
}

fn main() -> Result<(), Error> {
    let client = match std::env::args().nth(1) {
        Some(url) => blocking::Client::connect(&url)?,
        None => blocking::Client::connect_with(
            leasehold::Client::builder().memory(&MemoryServer::new()),
        )?,
    };
    let sold = sell_all(&client, 3)?;
    println!("this process sold {sold} of {IN_STOCK}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_umbrella_is_sold_twice() {
        let server = MemoryServer::new();
        let connect = || {
            let settings = leasehold::Client::builder().memory(&server);
            blocking::Client::connect_with(settings).unwrap()
        };
        // As two processes would.
        let (one, other) = (connect(), connect());
        let beside = thread::spawn(move || sell_all(&other, 3).unwrap());
        let sold = sell_all(&one, 3).unwrap() + beside.join().unwrap();
        assert_eq!(sold, IN_STOCK);
        assert!(!Stock::new(&one).sell().unwrap());
    }
}
