use leasehold::{Error, locked};

#[locked("pay:{ordr}")]
async fn pay(order: u64) -> Result<u64, Error> {
    Ok(order)
}

fn main() {}
