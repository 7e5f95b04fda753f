//! A deterministic simulation of leasehold: see `README.md` next to this crate.

#![allow(missing_docs, reason = "no code outside this repository uses it")]

pub mod carry;
pub mod changes;
pub mod cluster;
pub mod config;
pub mod connection;
pub mod dice;
pub mod faults;
pub mod held;
pub mod invariants;
pub mod keys;
pub mod latch;
pub mod lock;
pub mod panics;
pub mod process;
pub mod report;
pub mod runner;
pub mod servers;
pub mod several;
pub mod shared;
pub mod shrink;
pub mod states;
pub mod styles;
pub mod tasks;
pub mod wire;
pub mod work;
pub mod world;
