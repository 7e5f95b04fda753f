use leasehold::{Error, locked};

#[locked("pay")]
async fn pay() -> Result<u64, Error> {
    Ok("text")
}

fn main() {}
