use leasehold::{Error, locked};

#[locked("pay", blocking)]
extern "C" fn pay() -> i32 {
    1
}

fn main() {}
