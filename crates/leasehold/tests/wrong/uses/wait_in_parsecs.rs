use leasehold::{Error, locked};

#[locked("pay", wait = "5 parsecs")]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
