//! A server's report about itself, beyond its locks.

use std::{collections::BTreeMap, time::Duration};

use super::Failure;

/// The answers of one server. An answer that its user may not have is left out.
#[derive(Clone, Debug)]
pub(crate) struct ServerReport {
    /// Its address, as it was given.
    pub(crate) server: String,
    /// Of a majority: whether it is said to forget nothing.
    pub(crate) votes: Option<bool>,
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
    /// `CLUSTER INFO` and `CLUSTER NODES`, of a node.
    pub(crate) cluster: Option<(String, String)>,
    /// Why it has not answered all of these questions.
    pub(crate) broke_off: Option<Failure>,
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
