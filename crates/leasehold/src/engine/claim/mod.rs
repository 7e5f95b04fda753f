//! A lease id before it is held: the requests sent for it, and what the server may have of it.

pub(crate) mod ask;
pub(crate) mod pending_release;
pub(crate) mod remote;
pub(crate) mod subscription;
pub(crate) mod ticket;
