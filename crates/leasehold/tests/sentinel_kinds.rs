//! The promises of the kinds, where sentinels name the primary.

#[path = "conformance.rs"]
mod conformance;
#[allow(unreachable_pub, reason = "as in common")]
#[path = "common/kinds_sentinel.rs"]
mod kinds;
