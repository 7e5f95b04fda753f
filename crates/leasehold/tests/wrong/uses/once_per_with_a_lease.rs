use leasehold::{Error, locked};

#[locked("pay", lease = "5s", once_per = "1h")]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
