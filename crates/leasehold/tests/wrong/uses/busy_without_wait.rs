use leasehold::{Error, locked};

#[locked("pay", busy = Ok(0))]
async fn pay() -> Result<u64, Error> {
    Ok(1)
}

fn main() {}
