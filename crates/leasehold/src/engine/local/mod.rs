//! Who is next in this process: no ticket, no wire, no driver.

pub(crate) mod answer;
pub(crate) mod locked;
pub(crate) mod turns;
