//! Why a step has no answer.

use std::time::Duration;

use crate::{
    background::ThreadGone,
    error::{Cause, Error},
};

/// Why a step has no answer; each variant says what the server may hold.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request did not leave; the server is as it was. Worth another try.
    NotSent(Cause),
    /// The server said: not now (it loads, is busy, full, or a replica). It is as it was. Worth another try.
    NotNow(Cause),
    /// The server said no. Another try gets the same.
    Rejected(Cause),
    /// The request may or may not have been carried out. The same request may be sent again.
    Ambiguous(Cause),
}

impl Failure {
    pub(crate) fn cause(&self) -> &Cause {
        match self {
            Failure::NotSent(cause)
            | Failure::NotNow(cause)
            | Failure::Rejected(cause)
            | Failure::Ambiguous(cause) => cause,
        }
    }

    /// The same, with more to its text.
    pub(crate) fn reported_by(self, says: impl FnOnce(Cause) -> Cause) -> Failure {
        match self {
            Failure::NotSent(cause) => Failure::NotSent(says(cause)),
            Failure::NotNow(cause) => Failure::NotNow(says(cause)),
            Failure::Rejected(cause) => Failure::Rejected(says(cause)),
            Failure::Ambiguous(cause) => Failure::Ambiguous(says(cause)),
        }
    }

    /// Whether the request may have been carried out.
    pub(crate) fn is_ambiguous(&self) -> bool {
        matches!(self, Failure::Ambiguous(_))
    }

    /// The same, after an earlier copy of the request had no answer, if that was so: a copy that was not sent leaves open what became of it.
    pub(crate) fn after_silence(self, silent: bool) -> Failure {
        match self {
            Failure::NotSent(cause) | Failure::NotNow(cause) if silent => Failure::Ambiguous(cause),
            other => other,
        }
    }

    /// The same, where the request changed nothing for its caller: it only read, or was sent for another caller.
    pub(crate) fn into_unsent(self) -> Failure {
        match self {
            Failure::Ambiguous(cause) => Failure::NotSent(cause),
            other => other,
        }
    }

    /// Whether another try gets the same.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Failure::Rejected(_))
    }

    /// The public error of a step that only reads: without an answer, too, the server is as it was.
    pub(crate) fn into_read_error(self, doing: impl Into<Box<str>>) -> Error {
        self.into_unsent().into_error(doing, Duration::ZERO)
    }

    /// The public error, which names the step that failed.
    pub(crate) fn into_error(self, doing: impl Into<Box<str>>, free_within: Duration) -> Error {
        let doing = doing.into();
        match self {
            Failure::Rejected(source) if source.is::<ThreadGone>() => Error::ThreadGone,
            Failure::NotSent(source) => Error::NotSent { doing, source },
            Failure::NotNow(source) | Failure::Rejected(source) => {
                Error::Rejected { doing, source }
            }
            Failure::Ambiguous(source) => Error::Ambiguous {
                doing,
                free_within,
                source,
            },
        }
    }
}
