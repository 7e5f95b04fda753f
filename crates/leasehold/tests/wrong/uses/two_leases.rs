use leasehold::{Error, locked};

#[locked("pay", lease = "5s", fixed_lease = "6s")]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
