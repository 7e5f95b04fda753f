//! The meaning of the redis crate's errors: what the server may hold.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::backend::Failure;

/// Classifies an error by what the server may hold after it.
pub(super) fn classify(error: RedisError) -> Failure {
    let passing = matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
        )
    ) || matches!(
        error.code(),
        Some("BUSY" | "OOM" | "NOREPLICAS" | "MISCONF")
    );
    let answered = matches!(
        error.kind(),
        ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::AuthenticationFailed
            | ErrorKind::UnexpectedReturnType
    );
    let cause = Arc::new(error);
    if passing {
        Failure::NotNow(cause)
    } else if answered {
        Failure::Rejected(cause)
    } else {
        Failure::Ambiguous(cause)
    }
}
