use leasehold::{Error, locked};

#[locked("pay", wait = "5s", busy = 7)]
async fn pay() -> Result<u64, Error> {
    Ok(1)
}

fn main() {}
