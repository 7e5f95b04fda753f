//! Input that was refused.

use std::{error::Error, fmt};

/// Input that was refused before anything was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invalid {
    /// The setting that was refused, such as `lease`.
    pub what: &'static str,
    /// The value that came in. Never a secret.
    pub value: Box<str>,
    /// The limit it breaks.
    pub limit: Box<str>,
    /// The remedy.
    pub remedy: Box<str>,
}

impl Invalid {
    pub(crate) fn new(
        what: &'static str,
        value: impl Into<Box<str>>,
        limit: impl Into<Box<str>>,
    ) -> Self {
        Invalid {
            what,
            value: value.into(),
            limit: limit.into(),
            remedy: "".into(),
        }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<Box<str>>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Invalid {
            what,
            value,
            limit,
            remedy,
        } = self;
        write!(f, "{what} is {value}, but must be {limit}")?;
        if !remedy.is_empty() {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl Error for Invalid {}
