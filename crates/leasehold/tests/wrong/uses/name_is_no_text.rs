use leasehold::{Error, locked};

#[locked(wait = "5s")]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
