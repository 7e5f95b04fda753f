//! Who is next in this process: no ticket, no wire, no driver.

pub(crate) mod answer;
pub(crate) mod locked;
pub(crate) mod redisson_fairness;
pub(crate) mod sharers;
pub(crate) mod turns;
pub(crate) mod waiters;
