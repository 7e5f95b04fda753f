//! One lease id before it is held: the requests sent for it, and what the server may have of it.

pub(crate) mod ask;
pub(crate) mod debt;
pub(crate) mod remote;
pub(crate) mod ticket;
