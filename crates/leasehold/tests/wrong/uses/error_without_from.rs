use leasehold::{Error, locked};

struct Mine;

#[locked("count")]
async fn count() -> Result<u64, Mine> {
    Err(Mine)
}

fn main() {}
