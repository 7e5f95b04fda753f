use leasehold::{Error, locked};

#[locked("pay", blocking)]
const fn pay() -> Result<(), Error> {
    Ok(())
}

fn main() {}
