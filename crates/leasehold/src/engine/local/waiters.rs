//! The waiters of one name in this process, in their order.

use crate::{clock::Tick, engine::hold::spec::Spec, engine::local::answer::Answerer};

#[derive(Debug)]
pub(crate) struct Waiter {
    /// The waiters stand in the order of their numbers.
    pub(crate) number: i64,
    pub(crate) spec: Spec,
    /// When its caller began to wait, for those who watch.
    pub(crate) began: Tick,
    /// Does not wait for holders, only for attempts and releases under way.
    pub(crate) once: bool,
    pub(crate) answer: Answerer,
}
