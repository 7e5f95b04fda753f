//! The promises, one file each.

pub(crate) mod leftovers;
pub(crate) mod lost_update;
pub(crate) mod overlap;
pub(crate) mod patience;
pub(crate) mod tokens;
