//! A majority of several servers (docs/rules.md, the quorum).

#[path = "../common/mod.rs"]
mod common;

mod clocks;
mod far;
mod memory;
mod servers;
