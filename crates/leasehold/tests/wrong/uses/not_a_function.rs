use leasehold::{Error, locked};

#[locked("pay")]
struct Pay;

fn main() {}
