use leasehold::{Error, locked};

struct Order;

#[locked("pay:{order}")]
async fn pay(order: &Order) -> Result<(), Error> {
    let _ = order;
    Ok(())
}

fn main() {}
