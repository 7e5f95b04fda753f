//! Whether a server can do what a policy asks for, and what to do about one that cannot.

use std::sync::Arc;

use crate::{backend::Failure, durability::Durability, error::Cause};

/// The failure of a command that waits.
pub(super) fn of_waiting(policy: Durability, failure: Failure) -> Failure {
    match failure {
        // The server is about to be replaced, or was: the next one may be asked.
        Failure::Rejected(cause) if cause.to_string().contains("replica instances") => {
            Failure::NotNow(cause)
        }
        Failure::Rejected(cause) => Failure::Rejected(cannot(policy, cause)),
        other => other,
    }
}

/// The refusal of a policy, with a remedy if one is known.
fn cannot(policy: Durability, cause: Cause) -> Cause {
    let said = cause.to_string();
    let remedy = if said.contains("unknown command") {
        "use Redis 7.2 or Valkey, or Durability::Replicas(n)"
    // Redis 7.2 says so where `WAITAOF` is to wait for the local disk, and `appendonly` is off.
    } else if said.contains("appendonly") {
        "set its appendonly yes, or use Durability::Replicas(n)"
    } else {
        return cause;
    };
    Arc::new(Cannot {
        policy,
        said,
        remedy,
    })
}

/// The client cannot know what a majority is.
pub(super) fn says_no_number(policy: Durability, cause: Option<&Cause>) -> Failure {
    let said = cause.map_or_else(|| "it does not say".to_owned(), ToString::to_string);
    Failure::Rejected(Arc::new(Cannot {
        policy,
        said: format!("how many replicas it has is not known: {said}"),
        remedy: "give its user the right to INFO (+info), or use Durability::Replicas(n)",
    }))
}

#[derive(Debug, thiserror::Error)]
#[error("the server cannot do {policy}: {said}; {remedy}")]
struct Cannot {
    policy: Durability,
    said: String,
    remedy: &'static str,
}
