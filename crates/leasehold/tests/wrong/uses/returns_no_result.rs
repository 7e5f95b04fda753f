use leasehold::{Error, locked};

#[locked("count")]
async fn count() -> u64 {
    1
}

fn main() {}
