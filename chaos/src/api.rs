//! The library, as the witness and the reports want it.

use std::any::Any;

use futures_util::FutureExt as _;
use leasehold::{Client, Error, FencedMutexGuard, Guard, MultiGuard};

/// Gives the name back. Whether the server has confirmed it.
pub(crate) async fn release<K>(guard: Guard<K>) -> bool {
    guard.release().await.is_ok()
}

/// A guard, as a witness looks at it.
pub(crate) trait Watched {
    fn is_valid(&self) -> bool;

    fn owner(&self) -> String;

    /// If its mutex is fenced.
    fn token(&self) -> Option<u64>;

    /// Why it is lost, if it knows.
    fn lost_reason(&self) -> Option<String>;
}

impl<K: 'static> Watched for Guard<K> {
    fn is_valid(&self) -> bool {
        Guard::is_valid(self)
    }

    fn owner(&self) -> String {
        Guard::owner(self)
    }

    fn token(&self) -> Option<u64> {
        let fenced = (self as &dyn Any).downcast_ref::<FencedMutexGuard>();
        fenced.map(FencedMutexGuard::token)
    }

    fn lost_reason(&self) -> Option<String> {
        let reason = self.lost().now_or_never()?;
        Some(format!("{reason:?}"))
    }
}

/// A name of a guard on several: it is valid as long as all are.
pub(crate) struct Part<'a>(pub(crate) &'a MultiGuard, pub(crate) usize);

impl Watched for Part<'_> {
    fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    fn owner(&self) -> String {
        self.0.owners().swap_remove(self.1)
    }

    fn token(&self) -> Option<u64> {
        self.0.token(self.0.names()[self.1])
    }

    fn lost_reason(&self) -> Option<String> {
        let reason = self.0.lost().now_or_never()?;
        Some(format!("{reason:?}"))
    }
}

/// The hold of work inside `run`, which is polled only while it is valid.
pub(crate) struct InsideRun;

impl Watched for InsideRun {
    fn is_valid(&self) -> bool {
        true
    }

    fn owner(&self) -> String {
        "inside run".to_owned()
    }

    fn token(&self) -> Option<u64> {
        None
    }

    fn lost_reason(&self) -> Option<String> {
        None
    }
}

/// The kind of an error, as a word; for a refusal with the server's reason, since none is expected.
pub(crate) fn kind(error: &Error) -> String {
    match error {
        Error::Rejected { source, .. } => format!("Rejected ({source})"),
        other => format!("{:?}", other.kind()),
    }
}

/// The entries that a client still has in memory: queues, watched holds, tasks.
pub(crate) fn footprint(client: &Client) -> [usize; 3] {
    let left = client.footprint();
    [left.queues, left.watched, left.tasks]
}
