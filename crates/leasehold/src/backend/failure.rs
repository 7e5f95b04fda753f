//! Why a step has no answer.

use std::{sync::Arc, time::Duration};

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

    /// The same, after an earlier copy of the request had no answer, if that was so: a copy that was not sent, or was refused, leaves open
    /// what became of it. Whether another try gets the same is asked before: [`is_final`](Failure::is_final).
    pub(crate) fn after_silence(self, silent: bool) -> Failure {
        match self {
            // Nothing of this client is asked any more: its callers learn that first.
            Failure::Rejected(cause) if cause.is::<ThreadGone>() => Failure::Rejected(cause),
            other if silent => Failure::Ambiguous(Arc::clone(other.cause())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_copy_without_an_answer_makes_each_later_failure_ambiguous() {
        let cause: Cause = Arc::new(std::fmt::Error);
        let all: [fn(Cause) -> Failure; 4] = [
            Failure::NotSent,
            Failure::NotNow,
            Failure::Rejected,
            Failure::Ambiguous,
        ];
        for failure in all {
            let later = failure(Arc::clone(&cause));
            assert!(
                later.clone().after_silence(true).is_ambiguous(),
                "{later:?}"
            );
            let alone = later.clone().after_silence(false);
            assert_eq!(alone.is_ambiguous(), later.is_ambiguous(), "{later:?}");
        }
        let gone = Failure::Rejected(Arc::new(ThreadGone)).after_silence(true);
        assert!(gone.is_final());
    }
}
