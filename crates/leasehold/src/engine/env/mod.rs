//! What a hold and a queue need of their client beside each other.

pub(crate) mod finish;
pub(crate) mod linger;
