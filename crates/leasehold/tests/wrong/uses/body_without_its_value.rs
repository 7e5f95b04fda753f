use leasehold::{Error, locked};

#[locked("pay")]
async fn pay(paid: u64) -> Result<u64, Error> {
    Ok::<u64, Error>(paid);
}

fn main() {}
