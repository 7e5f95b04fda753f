//! In a simulation: what takes the place of a client's connections.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};

use super::{
    cluster::slots::slot,
    failure::{classify, in_words},
    script::{Call, unexpected},
};
use crate::{
    backend::{
        Failure, Renew, Reply, ServerFacts,
        simulated::{
            hint::Hears,
            request::{About, Kind, Network, Request, step},
            scripts::Scripts,
        },
    },
    clock::Tick,
    error::Cause,
    name::LockId,
    world,
};

/// Takes the place of a client's connections.
#[derive(Clone)]
pub(super) enum Transport {
    /// To a server, or to a node of a cluster.
    Node(Arc<NodeWay>),
    /// They are carried out at once, for an inspection from outside.
    AtOnce(Arc<Scripts>),
}

/// The way of one client to one server, or to one node of a cluster.
pub(super) struct NodeWay {
    pub(super) node: u8,
    client: Arc<str>,
    network: Arc<dyn Network>,
    scripts: Arc<Scripts>,
    timeout: Duration,
    /// The next request is about these names.
    about: Mutex<Option<About>>,
    /// The last request had no answer in its time.
    is_silent: AtomicBool,
}

impl NodeWay {
    pub(super) fn new(
        node: u8,
        client: &Arc<str>,
        scripts: &Arc<Scripts>,
        timeout: Duration,
    ) -> Arc<NodeWay> {
        Arc::new(NodeWay {
            node,
            client: Arc::clone(client),
            network: scripts.way_to(node),
            scripts: Arc::clone(scripts),
            timeout,
            about: Mutex::default(),
            is_silent: AtomicBool::new(false),
        })
    }

    /// Who listens there: the client, and at which node if there are several.
    pub(super) fn listener(&self) -> Arc<str> {
        match self.scripts.cluster() {
            // A client has a connection of its own at each node, which counts and ends as a listener there.
            Some(_) => format!("{}@{}", self.client, self.node).into(),
            None => Arc::clone(&self.client),
        }
    }

    /// Its connection for wake-ups is gone.
    pub(super) fn leaves(&self, hears: &Arc<dyn Hears>) {
        self.scripts.leaves(&self.listener(), hears);
    }

    fn send<T: Clone + fmt::Debug + Send + 'static>(
        self: &Arc<Self>,
        about: About,
        carry_out: impl Fn(&Scripts) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let (step, answer) = step(carry_out);
        self.network.send(Request::of(&self.client, about, step));
        let way = Arc::clone(self);
        Box::pin(async move {
            let answer = in_time(way.timeout, answer).await;
            // A connection that breaks is ambiguous, too, but of that the network tells by itself (`is_cut`).
            let is_silent = matches!(&answer, Err(Failure::Ambiguous(cause)) if cause.is::<tokio::time::error::Elapsed>());
            way.is_silent.store(is_silent, Ordering::Relaxed);
            answer
        })
    }

    /// Why it cannot be used now, as a client knows it whose connections end or say nothing.
    fn trouble(&self) -> Option<Cause> {
        #[derive(Debug, thiserror::Error)]
        #[error("the node says nothing")]
        struct Silent;
        // A client of a cluster asks a silent node for its table, and the answer ends the silence. A client of one server waits until the
        // trouble is over: it would send nothing whose answer could end it.
        let is_silent = self.scripts.cluster().is_some() && self.is_silent.load(Ordering::Relaxed);
        let is_down = self.network.is_cut(&self.client) || is_silent;
        is_down.then(|| Arc::new(Silent) as Cause)
    }
}

async fn in_time<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    // tokio does not tell the simulation when its next timer is due.
    world::set_timer(tokio::time::Instant::now() + timeout);
    let answer = tokio::time::timeout(timeout, answer).await;
    answer.unwrap_or_else(|elapsed| Err(Failure::Ambiguous(Arc::new(elapsed))))
}

impl Transport {
    /// See [`NodeWay::trouble`].
    pub(super) fn trouble(&self) -> Option<Cause> {
        match self {
            Transport::Node(way) => way.trouble(),
            Transport::AtOnce(_) => None,
        }
    }

    /// The facts that the server has told of itself.
    pub(super) fn said(&self) -> ServerFacts {
        let restarted = match self {
            Transport::Node(way) => way.network.restarted(&way.client),
            Transport::AtOnce(_) => 0,
        };
        ServerFacts {
            started: Tick::from_nanos(restarted),
            is_replica: false,
        }
    }

    /// The simulation inspects this lock from now on.
    pub(super) fn knows(&self, id: &LockId) {
        if let Transport::Node(way) = self {
            way.scripts.knows(id);
        }
    }

    /// Notes which names the next request is about: the calls of scripts do not tell.
    pub(super) fn is_about(&self, id: &LockId, about: impl FnOnce() -> About) {
        if let Transport::Node(way) = self {
            self.knows(id);
            *way.about.lock() = Some(about());
        }
    }

    /// A call of a script.
    pub(super) fn call<T: Clone + fmt::Debug + Send + 'static>(
        &self,
        call: &Call,
        asks: bool,
        read: impl Fn(&Value) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        let (script, mut keys) = call.parts();
        let args = keys.split_off(call.keys().count());
        let (about, at) = match self {
            Transport::Node(way) => {
                let at = (Arc::clone(&way.client), way.node);
                (way.about.lock().take(), Some(at))
            }
            Transport::AtOnce(_) => (None, None),
        };
        let about = about.unwrap_or_else(|| About::nothing(Kind::Inspect));
        let is_answered_late = matches!(about.kind, Kind::Renew | Kind::Extend);
        let carry_out = move |scripts: &Scripts| {
            let reply = match &at {
                None => scripts.call(script, &keys, &args),
                Some((client, node)) => {
                    // All keys of a lock are in the slot of its name, so the first of them decides.
                    let slot = slot(&String::from_utf8_lossy(&keys[0]));
                    let call = (script, &keys[..], &args[..]);
                    scripts.call_at((client, *node), (slot, asks), is_answered_late, call)
                }
            };
            let reply = reply.map_err(|error| classify(as_read(&error)))?;
            read(&reply).ok_or_else(|| Failure::Rejected(in_words(unexpected(&reply))))
        };
        let transport = self.clone();
        // The first poll sends it, as on a connection.
        Box::pin(async move { transport.carry(about, carry_out).await })
    }

    /// Calls that renew leases, and a command behind them that waits for replicas, or asks how many there are.
    pub(super) async fn all<'a>(
        &self,
        leases: impl Iterator<Item = &'a Renew>,
        calls: &[Call],
        last: &Cmd,
    ) -> Result<Vec<RedisResult<Value>>, Failure> {
        let Transport::Node(way) = self else {
            return std::future::pending().await;
        };
        let parts = |call: &Call| {
            let (script, mut keys) = call.parts();
            let args = keys.split_off(call.keys().count());
            (script, keys, args)
        };
        let calls: Vec<_> = calls.iter().map(parts).collect();
        let waits = waits(last);
        let about = About {
            kind: Kind::Confirm,
            names: leases
                .map(|it| (it.id.name.shared(), it.lease.get()))
                .collect(),
            what: Box::new(if waits { "renew, and wait" } else { "renew" }),
        };
        let at = (Arc::clone(&way.client), way.node);
        let carry_out = move |scripts: &Scripts| {
            let call = |(script, keys, args): &(&'static str, Vec<Vec<u8>>, Vec<Vec<u8>>)| {
                let slot = slot(&String::from_utf8_lossy(&keys[0]));
                scripts.call_at((&at.0, at.1), (slot, false), true, (script, keys, args))
            };
            let answers = calls.iter().map(call).collect::<Vec<_>>();
            let last = Ok(scripts.replication(waits));
            Ok(answers.into_iter().chain([last]).collect::<Vec<_>>())
        };
        let answers = way.send(about, carry_out).await?;
        let read = |answer: Result<Value, String>| answer.map_err(|error| as_read(&error));
        Ok(answers.into_iter().map(read).collect())
    }

    /// A command that asks about replicas.
    pub(super) async fn command(&self, command: &Cmd) -> Result<Value, Failure> {
        let answers = self.all([].into_iter(), &[], command).await?;
        let last = answers.into_iter().next();
        last.unwrap_or(Ok(Value::Nil)).map_err(classify)
    }

    /// `CLUSTER SLOTS`: who has which slot, as this node knows it.
    pub(super) fn slots(&self) -> Reply<Value> {
        let Transport::Node(way) = self else {
            return Box::pin(std::future::pending());
        };
        let node = way.node;
        way.send(About::nothing(Kind::Table), move |scripts| {
            Ok(scripts.slots(node))
        })
    }

    /// Leaves at once.
    pub(super) fn carry<T: Clone + fmt::Debug + Send + 'static>(
        &self,
        about: About,
        carry_out: impl Fn(&Scripts) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        match self {
            Transport::AtOnce(scripts) => Box::pin(std::future::ready(carry_out(scripts))),
            Transport::Node(way) => way.send(about, carry_out),
        }
    }
}

/// Whether a command waits for replicas; else it asks how many there are.
fn waits(command: &Cmd) -> bool {
    matches!(
        command.args_iter().next(),
        Some(redis::Arg::Simple(b"WAIT"))
    )
}

/// An error as it comes from a connection.
pub(super) fn as_read(error: &str) -> RedisError {
    // The parser of redis-rs reads it: `classify` goes by the kinds and codes that this gives to the words of a real server.
    let line = format!("-{}\r\n", error.replace(['\r', '\n'], " "));
    let read = redis::parse_redis_value(line.as_bytes()).and_then(Value::extract_error);
    read.err()
        .unwrap_or_else(|| (ErrorKind::Parse, "no error").into())
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}
