//! A server's report about itself, beyond its locks.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use super::Failure;

/// The answers of one server. An answer that its user may not have is left out.
#[derive(Clone, Debug)]
pub(crate) struct ServerReport {
    /// Its address, as it was given.
    pub(crate) server: String,
    /// Of a majority: whether it is said to forget nothing.
    pub(crate) votes: Option<bool>,
    /// The words of its sentinels, if they are asked where it is.
    pub(crate) sentinels: Vec<SentinelReport>,
    /// Why it has not answered at all, or its answers.
    pub(crate) answers: Result<Answers, Failure>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    /// The sections of `INFO`.
    pub(crate) info: Option<String>,
    /// Of `CONFIG GET`, by name; empty: it may not be asked for.
    pub(crate) settings: BTreeMap<String, String>,
    /// How long ago each of the latest slow commands began, and how long it took.
    pub(crate) slow: Option<Vec<(Duration, Duration)>>,
    /// How long each of some round trips took.
    pub(crate) trips: Vec<Duration>,
    /// The difference of its clock, if it has told its time.
    pub(crate) clock: Option<ClockOffset>,
    /// Where it is, if all of its addresses are outside of private networks, and nothing is encrypted on the way there.
    pub(crate) in_the_clear: Option<IpAddr>,
    /// `CLUSTER INFO` and `CLUSTER NODES`, of a node.
    pub(crate) cluster: Option<(String, String)>,
    /// Why it has not answered all of these questions.
    pub(crate) broke_off: Option<Failure>,
}

/// How far the clock of a server is ahead of this machine's, in microseconds, and by how much that may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    pub(crate) ahead_us: i64,
    pub(crate) error_us: i64,
}

/// The report of a sentinel about its group.
#[derive(Clone, Debug)]
pub(crate) struct SentinelReport {
    /// Where it is.
    pub(crate) address: String,
    /// Why it has not answered; `None`: it does not know the group.
    pub(crate) answer: Result<Option<SentinelView>, Failure>,
}

/// A group as a sentinel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentinelView {
    pub(crate) primary: String,
    /// The number of the configuration; zero: it knows of no failover.
    pub(crate) epoch: u64,
    /// How many sentinels it knows, itself among them.
    pub(crate) sentinels: u64,
}

impl Answers {
    /// A field of `INFO`.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(self.info.as_deref()?, name)
    }

    /// A field of `INFO` that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }
}

/// A field of an answer whose lines are `name:value`.
pub(crate) fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = answer.lines().filter_map(|line| line.split_once(':'));
    fields.find_map(|(field, value)| (field == name).then_some(value))
}
