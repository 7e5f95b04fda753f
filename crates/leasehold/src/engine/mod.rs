//! The engine: how a hold of this process begins, lasts and ends, for every kind.
//!
//! It knows neither guards nor kinds nor the redis crate. It gives out a [`Held`](held::Held), whose drop gives the
//! hold back.

pub(crate) mod claim;
pub(crate) mod core;
pub(crate) mod env;
pub(crate) mod fair;
pub(crate) mod gates;
pub(crate) mod hold;
pub(crate) mod local;
pub(crate) mod multi;
pub(crate) mod queue;
pub(crate) mod wakeup;
