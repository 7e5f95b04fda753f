//! The operations of a user of the library, drawn at random, with a witness at every guard.

mod ask;
mod hold;
mod inside;
mod latch;
mod several;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Client, ClientBuilder, Error, Handoff, Shutdown};
use tokio::sync::watch;

use crate::{counter::Counter, journal::Journal, record::Record};

pub(crate) use ask::calm_lock;

/// The longest lease that any operation asks for, in leases.
pub(crate) const LONGEST_LEASE: u32 = 2;

/// The phase of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    /// Operations, as many as there can be.
    Run,
    /// Nothing new begins; holders let go, waiters get what they wait for.
    Calm,
    /// As in the calm, but each process asks for all mutexes at once.
    Wait,
    /// Shut down.
    End,
}

/// The state that the tasks of one process share.
pub(crate) struct World {
    pub(crate) journal: Journal,
    pub(crate) counter: Counter,
    pub(crate) names: Vec<String>,
    pub(crate) lease: Duration,
    /// In a cluster: on classic channels.
    pub(crate) classic: bool,
    /// How long holders hold: mostly for milliseconds, sometimes beyond the lease; or hardly at all.
    pub(crate) brisk: bool,
    /// Distinguishes the numbers this process writes to the counter.
    pub(crate) process: u64,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) operations: AtomicU64,
    /// The clients, and where each connects.
    pub(crate) clients: Vec<(Mutex<Client>, String)>,
}

impl World {
    pub(crate) fn running(&self) -> bool {
        *self.phase.borrow() == Phase::Run
    }

    pub(crate) fn client(&self, index: usize) -> Client {
        let slot = &self.clients[index].0;
        slot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn counted(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn count_operation(&self, rng: &mut Rng) -> u64 {
        // 24 bits of process, 40 of chance and number: never 0, never twice.
        (self.process + 1) << 40 | (self.journal.number() & 0xff_ffff) << 16 | rng.u64(0..1 << 16)
    }
}

/// Does operations through client number `client` while the world runs.
pub(crate) async fn work(world: Arc<World>, client: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    while world.running() {
        world.counted();
        if rng.u32(0..if world.brisk { 400 } else { 80 }) == 0 {
            replace_client(&world, client, &mut rng).await;
        } else if world.names.len() > 1 && rng.u32(0..10) == 0 {
            several::some(&world, client, &mut rng).await;
        } else {
            ask::one(&world, client, &mut rng).await;
        }
        if !world.brisk && rng.u32(0..4) == 0 {
            tokio::time::sleep(Duration::from_micros(rng.u64(0..2_000))).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

/// Another client takes the place of this one, which is shut down in one of three ways.
async fn replace_client(world: &World, index: usize, rng: &mut Rng) {
    let Ok(fresh) = connect(&world.clients[index].1, world.classic, world.lease, rng).await else {
        return; // the way to the server is broken just now
    };
    world.journal.write(begins(&fresh));
    let slot = &world.clients[index].0;
    let old = std::mem::replace(
        &mut *slot.lock().unwrap_or_else(PoisonError::into_inner),
        fresh,
    );
    let id = old.id().to_owned();
    match rng.u32(0..4) {
        0 => old.shutdown(Shutdown::LetExpire).await,
        1 => {
            drop(old);
            return; // its guards live on
        }
        _ => {
            let grace = rng.u64(0..100);
            let grace = Duration::from_millis(grace);
            old.shutdown(Shutdown::ReleaseAll { grace }).await;
        }
    }
    world.journal.write(Record::Gone { id });
}

/// Written before the client is asked for anything.
pub(crate) fn begins(client: &Client) -> Record {
    let id = client.id().to_owned();
    Record::Client { id }
}

pub(crate) fn builder(classic: bool) -> ClientBuilder {
    let builder = Client::builder();
    if classic {
        builder.sharded_channels(false)
    } else {
        builder
    }
}

/// A client with settings drawn at random.
pub(crate) async fn connect(
    url: &str,
    classic: bool,
    lease: Duration,
    rng: &mut Rng,
) -> Result<Client, Error> {
    let handoff = [
        Handoff::off(),
        Handoff::default(),
        Handoff::new(8, Duration::from_millis(200)),
    ];
    let polls = [lease / 10, lease / 3, lease, Duration::from_secs(10)];
    let timeouts = [lease / 4, lease, Duration::from_secs(2)];
    builder(classic)
        .url(url)
        .lease(lease)
        // Means nothing for one server.
        .longest_lease(lease * LONGEST_LEASE)
        .handoff(handoff[rng.usize(..handoff.len())])
        .poll_every(polls[rng.usize(..polls.len())])
        .operation_timeout(timeouts[rng.usize(..timeouts.len())])
        .connect_timeout(Duration::from_secs(1))
        .connect()
        .await
}
