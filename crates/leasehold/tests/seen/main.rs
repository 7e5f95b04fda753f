//! Locks as users see them: status, find, events, labels, names, memory servers.

#[path = "../common/mod.rs"]
mod common;

mod events;
mod find;
mod labels;
mod memory;
mod name_prefix;
