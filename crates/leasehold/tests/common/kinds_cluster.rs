//! All rows of `kinds.rs`, and worlds that are a part of the names of a cluster.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Cluster, Flavor, Server};

pub use crate::conformance::common::kinds::{AnyGuard, AnyLock, MAY_BE_DROPPED, ROWS, Row};
use crate::conformance::common::{few_or, flavors};

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
    cluster: Arc<Cluster>,
    flavor: Flavor,
    is_sharded: bool,
    prefix: String,
}

/// A cluster takes seconds to come up: who needs one shares that of the others, as long as any does.
fn cluster(flavor: Flavor) -> Arc<Cluster> {
    static UP: [Mutex<Weak<Cluster>>; 2] = [Mutex::new(Weak::new()), Mutex::new(Weak::new())];
    let mut up = UP[usize::from(flavor == Flavor::Valkey)]
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    up.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Cluster::start(flavor));
        *up = Arc::downgrade(&cluster);
        cluster
    })
}

impl World {
    /// With `LEASEHOLD_FULL=1` on every flavor there is, on sharded and on classic channels; else on one flavor, on each sort in turn.
    pub fn all() -> Vec<World> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let sorts = few_or(vec![number.is_multiple_of(2)], vec![true, false]);
        let of_sort = |is_sharded| {
            let world = move |flavor| Names {
                cluster: cluster(flavor),
                flavor,
                is_sharded,
                prefix: format!("world{number}:{is_sharded}:"),
            };
            flavors(0).into_iter().map(world).map(World::Memory)
        };
        sorts.into_iter().flat_map(of_sort).collect()
    }

    fn names(&self) -> &Names {
        match self {
            World::Memory(names) => names,
            World::Server(_) => unreachable!(),
        }
    }

    pub fn name(&self) -> String {
        let names = self.names();
        let sort = if names.is_sharded {
            "sharded"
        } else {
            "classic"
        };
        format!("a cluster of {} with {sort} channels", names.flavor)
    }

    pub fn builder(&self) -> ClientBuilder {
        let names = self.names();
        let builder = Client::builder().url(names.cluster.url());
        let builder = builder.sharded_channels(names.is_sharded);
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
