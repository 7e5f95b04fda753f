//! The promises of the kinds, on a cluster.

#[path = "conformance.rs"]
mod conformance;
#[allow(unreachable_pub, reason = "as in common")]
#[path = "common/kinds_cluster.rs"]
mod kinds;
