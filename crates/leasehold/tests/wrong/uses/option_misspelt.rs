use leasehold::{Error, locked};

#[locked("pay", wiat = "5s")]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
