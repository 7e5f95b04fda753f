use leasehold::{Error, locked};

#[locked("pay", blocking)]
async fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
