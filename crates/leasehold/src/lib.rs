//! Distributed locks on Redis and Valkey.
