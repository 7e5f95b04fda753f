use leasehold::{Error, locked};

#[locked("pay", guard = &g)]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
