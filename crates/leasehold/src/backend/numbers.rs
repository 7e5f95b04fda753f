//! Requests about the numbers of semaphores and latches.

use crate::owner::LeaseId;

/// A request about a semaphore's permits, or a latch's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permits {
    /// How many are free; the count.
    Available,
    /// Makes this many, if it has never had any.
    TrySet(u32),
    /// This many from now on, taken and free together.
    Set(u32),
    /// This many more; fewer, if it is negative.
    Add(i32),
    /// Takes all that are free.
    Drain,
    /// Of a latch: counts down by this many.
    CountDown(u32),
    /// Of a latch: ends it.
    Delete,
}

/// The identity of a request about a number. Of a kind without leases its copies find the answer, and change nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Once {
    pub(crate) number: LeaseId,
    /// How long the answer is kept.
    pub(crate) keep_ms: u64,
}
