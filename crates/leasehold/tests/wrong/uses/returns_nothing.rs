use leasehold::{Error, locked};

#[locked("count")]
async fn count() {}

fn main() {}
