use leasehold::{Error, locked};

#[locked("pay")]
fn pay() -> impl Future<Output = Result<(), Error>> {
    async { Ok(()) }
}

fn main() {}
