use leasehold::{Error, locked};

struct Request {
    user: u64,
}

#[locked("pay:{}", req.usr)]
async fn pay(req: &Request) -> Result<u64, Error> {
    Ok(req.user)
}

fn main() {}
