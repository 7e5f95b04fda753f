//! The promises of the kinds, on a majority of three and of five servers.

#[path = "conformance.rs"]
mod conformance;
#[allow(unreachable_pub, reason = "as in common")]
#[path = "common/kinds_quorum.rs"]
mod kinds;
