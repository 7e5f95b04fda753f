use leasehold::{Error, locked};

#[locked("pay", wait = "5s", wait = "6s")]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
