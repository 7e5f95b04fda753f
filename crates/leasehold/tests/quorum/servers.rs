//! Real servers.
