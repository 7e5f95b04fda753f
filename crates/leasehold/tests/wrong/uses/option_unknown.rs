use leasehold::{Error, locked};

#[locked("pay", colour = "red")]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
