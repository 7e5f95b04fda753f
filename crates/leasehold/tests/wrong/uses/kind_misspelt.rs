use leasehold::{Error, locked};

#[locked("pay", kind = mutx)]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
