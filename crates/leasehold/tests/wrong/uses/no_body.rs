use leasehold::{Error, locked};

trait Pays {
    #[locked("pay")]
    fn pay(&self) -> impl Future<Output = Result<(), Error>>;
}

fn main() {}
