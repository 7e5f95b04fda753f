use leasehold::{Error, locked};

#[locked("pay", wait = seconds)]
async fn pay(seconds: u64) -> Result<(), Error> {
    let _ = seconds;
    Ok(())
}

fn main() {}
