#![deny(unused)]

use leasehold::{Error, locked};

#[locked("pay:{order}")]
async fn pay(order: u64, cents: u64, mut rest: Vec<u64>) -> Result<usize, Error> {
    Ok(rest.len())
}

fn main() {}
