use leasehold::{Error, locked};

#[locked("pay", wait =)]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
