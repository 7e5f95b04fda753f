//! A request that the simulation carries: it may be carried out at any time, any number of times, or never.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::backend::{Failure, Reply, simulated::scripts::Scripts};

/// Carries what clients send. Called while the client runs; must not wait.
pub trait Network: Send + Sync {
    /// A request leaves its client.
    fn send(&self, request: Request);

    /// The name of its server, if that matters.
    fn called(&self) -> Option<String> {
        None
    }

    /// When its server restarted last, on the clock of this client; zero: it has forgotten nothing.
    fn restarted(&self, _client: &str) -> u64 {
        0
    }

    /// Whether this client has no connection, and knows it.
    fn is_cut(&self, _client: &str) -> bool {
        false
    }
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the steps of backend/mod.rs")]
pub enum Kind {
    Acquire,
    Release,
    Renew,
    Keep,
    Extend,
    Count,
    Downgrade,
    Inspect,
    ForceUnlock,
    Permits,
    Write,
    Read,
    Listen,
    Unlisten,
    /// Who has which slot of a cluster.
    Table,
    /// Renewals, and a word of the replicas behind them.
    Confirm,
}

impl Kind {
    /// Travels on the connection for wake-ups.
    pub fn is_subscription(self) -> bool {
        matches!(self, Kind::Listen | Kind::Unlisten)
    }
}

/// A request on its way: may be carried out at any time, any number of times, or never.
pub struct Request {
    /// The client that asks.
    pub client: Arc<str>,
    /// The kind of the request.
    pub kind: Kind,
    /// Which names, and under which lease ids: a single pair for most kinds, any number for a renewal.
    pub about: Vec<(Arc<str>, u64)>,
    what: Box<dyn fmt::Debug + Send + Sync>,
    pub(crate) step: Box<dyn Step>,
}

/// The subject of a request.
pub(crate) struct About {
    pub(crate) kind: Kind,
    /// [`Request::about`].
    pub(crate) names: Vec<(Arc<str>, u64)>,
    pub(crate) what: Box<dyn fmt::Debug + Send + Sync>,
}

impl About {
    /// About no name.
    pub(crate) fn nothing(kind: Kind) -> About {
        About {
            kind,
            names: Vec::new(),
            what: Box::new(""),
        }
    }
}

/// How a request ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It never left.
    NotSent,
    /// It may have been carried out.
    Ambiguous,
}

/// An answer on its way back. Dropped, it is lost.
pub struct Answer {
    /// In words.
    pub text: Box<dyn fmt::Debug + Send>,
    deliver: Box<dyn FnOnce() + Send>,
}

impl Answer {
    /// Reaches the client.
    pub fn deliver(self) {
        (self.deliver)();
    }
}

pub(crate) trait Step: Send {
    fn execute(&self, scripts: &Scripts) -> Answer;
    fn fail(&self, how: NoAnswer);
    fn is_awaited(&self) -> bool;
}

type Awaited<T> = Arc<Mutex<Option<oneshot::Sender<Result<T, Failure>>>>>;

struct Sent<T, F> {
    step: F,
    awaited: Awaited<T>,
}

impl<T, F> Step for Sent<T, F>
where
    T: Clone + fmt::Debug + Send + 'static,
    // Not `FnOnce`: the network may have a request carried out several times.
    F: Fn(&Scripts) -> Result<T, Failure> + Send,
{
    fn execute(&self, scripts: &Scripts) -> Answer {
        let answer = (self.step)(scripts);
        let awaited = Arc::clone(&self.awaited);
        Answer {
            text: Box::new(answer.clone()),
            deliver: Box::new(move || {
                // A request may be carried out several times: the answer that arrives first is heard.
                if let Some(awaited) = awaited.lock().take() {
                    // The caller may have gone meanwhile. No task is left then that could be told.
                    let _ = awaited.send(answer);
                }
            }),
        }
    }

    fn fail(&self, how: NoAnswer) {
        let failure = match how {
            NoAnswer::NotSent => Failure::NotSent(Arc::new(Unconnected)),
            NoAnswer::Ambiguous => Failure::Ambiguous(Arc::new(Unconnected)),
        };
        // A copy of it may have been answered before: the client has that answer, and keeps it.
        if let Some(awaited) = self.awaited.lock().take() {
            let _ = awaited.send(Err(failure));
        }
    }

    fn is_awaited(&self) -> bool {
        let awaited = self.awaited.lock();
        // A client that gives a call up drops the receiver, and tells the network nothing of it.
        awaited.as_ref().is_some_and(|sender| !sender.is_closed())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the connection is gone")]
pub(crate) struct Unconnected;

/// A step, and the answer that its client waits for.
pub(crate) fn step<T: Clone + fmt::Debug + Send + 'static>(
    step: impl Fn(&Scripts) -> Result<T, Failure> + Send + 'static,
) -> (Box<dyn Step>, Reply<T>) {
    let (sender, answered) = oneshot::channel();
    let awaited = Arc::new(Mutex::new(Some(sender)));
    let answer = async move {
        match answered.await {
            Ok(answer) => answer,
            // Lost on the way: the caller gives up by its own clock.
            Err(_) => std::future::pending().await,
        }
    };
    (Box::new(Sent { step, awaited }), Box::pin(answer))
}

impl Request {
    pub(crate) fn of(client: &Arc<str>, about: About, step: Box<dyn Step>) -> Request {
        Request {
            client: Arc::clone(client),
            kind: about.kind,
            about: about.names,
            what: about.what,
            step,
        }
    }

    /// Tells its client that there will be no answer.
    pub fn fail(&self, how: NoAnswer) {
        self.step.fail(how);
    }

    /// Whether its client still waits for an answer, and has none.
    pub fn is_awaited(&self) -> bool {
        self.step.is_awaited()
    }

    /// In words.
    pub fn what(&self) -> &dyn fmt::Debug {
        &*self.what
    }
}
