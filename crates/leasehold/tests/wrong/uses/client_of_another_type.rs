use leasehold::{Error, locked};

#[locked("pay", client = url)]
async fn pay(url: &str) -> Result<(), Error> {
    let _ = url;
    Ok(())
}

fn main() {}
