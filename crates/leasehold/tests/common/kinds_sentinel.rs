//! All rows of `kinds.rs`, and worlds that are a part of the names of a Sentinel group.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Flavor, SentinelGroup, Server};

use crate::conformance::common::few_or;
pub use crate::conformance::common::kinds::{AnyGuard, AnyLock, MAY_BE_DROPPED, ROWS, Row};

/// Where the leases live.
pub enum World {
    /// On no server of its own.
    Memory(Names),
    /// Never: what is asked of a server is asked of one.
    #[allow(dead_code, reason = "the suite knows both")]
    Server(Box<Server>),
}

/// Names that begin with `prefix`.
pub struct Names {
    group: Arc<SentinelGroup>,
    flavor: Flavor,
    prefix: String,
}

/// A group takes seconds to come up: who needs one shares that of the others, as long as any does.
fn group(flavor: Flavor) -> Arc<SentinelGroup> {
    static UP: [Mutex<Weak<SentinelGroup>>; 2] = [Mutex::new(Weak::new()), Mutex::new(Weak::new())];
    let mut up = UP[usize::from(flavor == Flavor::Valkey)]
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    up.upgrade().unwrap_or_else(|| {
        let group = Arc::new(SentinelGroup::start(flavor));
        *up = Arc::downgrade(&group);
        group
    })
}

impl World {
    /// With `LEASEHOLD_FULL=1` on every flavor there is, else on none: behind its discovery a primary is one server, on which the suite runs.
    pub fn all() -> Vec<World> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let flavors = few_or(Vec::new(), Flavor::available());
        let names = |flavor| Names {
            group: group(flavor),
            flavor,
            prefix: format!("world{}:", NEXT.fetch_add(1, Ordering::Relaxed)),
        };
        flavors.into_iter().map(names).map(World::Memory).collect()
    }

    fn names(&self) -> &Names {
        match self {
            World::Memory(names) => names,
            World::Server(_) => unreachable!(),
        }
    }

    pub fn name(&self) -> String {
        format!("a Sentinel group of {}", self.names().flavor)
    }

    pub fn builder(&self) -> ClientBuilder {
        let names = self.names();
        let builder = Client::builder().url(names.group.url());
        builder.name_prefix(&*names.prefix)
    }

    pub async fn client(&self) -> Client {
        self.builder().connect().await.expect("the servers are up")
    }
}

/// No replies are lost: those of a single server are.
pub struct Network(ClientBuilder);

impl Network {
    pub fn to(world: &World) -> Network {
        Network(world.builder())
    }

    pub fn builder(&self) -> ClientBuilder {
        self.0.clone()
    }

    #[expect(clippy::unused_self, reason = "as in the other worlds")]
    pub fn lose_replies(&self, _: usize) {}

    #[expect(clippy::unused_self, reason = "as in the other worlds")]
    pub fn heal(&self) {}
}
