//! The wire of a simulation, which carries each request and each wake-up itself.

pub(crate) mod cluster;
pub(crate) mod hint;
pub(crate) mod keys;
pub(crate) mod request;
pub(crate) mod scripts;
pub(crate) mod server;
pub(crate) mod snapshot;
