use leasehold::{Error, locked};

#[locked]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
