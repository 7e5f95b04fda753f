//! Asks for a name: how, with which terms, for how long, and whether it is dropped on the way.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Error, Guard, Handoff};

use super::{
    LONGEST_LEASE, World,
    hold::{self, Terms},
    inside::Inside,
    latch,
};
use crate::{
    api,
    clock::{nanos, now},
    kind::Kind,
    record::Record,
};

/// How an ask ended.
pub(super) enum Answer<G> {
    Guard(G),
    Busy,
    Dropped,
    Failed(Error),
}

/// How an ask is given up before it is answered.
pub(super) enum Patience {
    Endless,
    /// Dropped after this time.
    For(Duration),
    /// Dropped at this poll, wherever that finds it.
    Polls(u32),
}

/// An ask, as it was drawn.
pub(super) struct Plan {
    pub(super) name: usize,
    pub(super) handoff: Option<Handoff>,
    pub(super) lease: Lease,
    /// How long it waits; `None`: without end.
    pub(super) wait: Option<Duration>,
    pub(super) patience: Patience,
}

/// The terms of its lease.
#[derive(Clone, Copy)]
pub(super) enum Lease {
    Fixed(Duration),
    Renewed(Duration),
    MaxHold(Duration),
    OfTheClient,
}

impl Plan {
    pub(super) fn draw(world: &World, name: usize, rng: &mut Rng) -> Plan {
        let wait = match rng.u32(0..10) {
            0..=4 => None,
            5..=6 => Some(Duration::ZERO),
            _ => Some(world.lease.mul_f64(rng.f64() * 2.0)),
        };
        let patience = match rng.u32(0..10) {
            0 => Patience::For(world.lease.mul_f64(rng.f64())),
            1 => Patience::Polls(rng.u32(0..12)),
            _ => Patience::Endless,
        };
        let handoff = match rng.u32(0..4) {
            0 => Some(Handoff::off()),
            1 => Some(Handoff::new(4, Duration::from_millis(5))),
            _ => None,
        };
        let leases = [
            world.lease / 2,
            world.lease,
            world.lease,
            world.lease * LONGEST_LEASE,
        ];
        let lease = leases[rng.usize(..leases.len())];
        let lease = match rng.u32(0..10) {
            0..=3 => Lease::Fixed(lease),
            4..=5 => Lease::Renewed(lease),
            6 => Lease::MaxHold(lease),
            _ => Lease::OfTheClient,
        };
        Plan {
            name,
            handoff,
            lease,
            wait,
            patience,
        }
    }

    fn is_fixed(&self) -> bool {
        matches!(self.lease, Lease::Fixed(_))
    }

    fn how(&self) -> &'static str {
        match (self.wait, self.is_fixed()) {
            (None, true) => "lock fixed",
            (None, false) => "lock",
            (Some(Duration::ZERO), _) => "try_lock",
            _ => "try_lock_for",
        }
    }
}

/// Asks through a handle of any kind with a lease, by its three verbs, as planned.
macro_rules! ask {
    ($world:expr, $plan:expr, $rng:expr, $lock:expr, $verb:ident) => {{
        let plan = $plan;
        let lock = leased!(plan, $lock);
        ask_as_it_is!($world, plan, $rng, lock, $verb);
    }};
}

macro_rules! leased {
    ($plan:expr, $lock:expr) => {{
        let lock = $lock;
        match $plan.lease {
            Lease::Fixed(lease) => lock.fixed_lease(lease),
            Lease::Renewed(lease) => lock.lease(lease),
            Lease::MaxHold(most) => lock.max_hold(most),
            Lease::OfTheClient => lock,
        }
    }};
}

macro_rules! handed_on {
    ($plan:expr, $lock:expr) => {{
        let lock = $lock;
        match $plan.handoff {
            Some(handoff) => lock.handoff(handoff),
            None => lock,
        }
    }};
}

/// Asks by one of the verbs, or by the call that locks, runs work and releases.
macro_rules! ask_or_run {
    ($world:expr, $plan:expr, $rng:expr, $lock:expr) => {{
        let (world, plan) = ($world, $plan);
        if $rng.u32(0..5) > 0 {
            ask!(world, plan, $rng, $lock, lock);
        } else {
            let lock = leased!(plan, $lock);
            let lock = handed_on!(plan, lock);
            let (ask, names) = (world.journal.number(), [plan.name]);
            let inside = Inside::asked(world, &names, ask);
            let mut its = $rng.fork();
            let work = inside.work(hold::duration(world, $rng), &mut its);
            let ran = async {
                match plan.wait {
                    None => lock.run(work).await.map(Some),
                    Some(wait) => lock.run_for(wait, work).await,
                }
            };
            let ran = inside.watch(|| true, ran);
            begins(world, ask, &plan, "run".to_owned());
            let ended = impatiently(ran, plan.patience).await;
            if !inside.has_begun() {
                ends(world, ask, &ended, now());
            }
            if let Answer::Failed(_) = ended {
                pause_after_a_failure($rng).await;
            }
        }
    }};
}

/// Asks through a handle of any kind, by its three verbs, as planned but for the lease.
macro_rules! ask_as_it_is {
    ($world:expr, $plan:expr, $rng:expr, $lock:expr, lock) => {
        ask_as_it_is!($world, $plan, $rng, $lock, lock, try_lock, try_lock_for)
    };
    ($world:expr, $plan:expr, $rng:expr, $lock:expr, acquire) => {
        ask_as_it_is!(
            $world,
            $plan,
            $rng,
            $lock,
            acquire,
            try_acquire,
            try_acquire_for
        )
    };
    ($world:expr, $plan:expr, $rng:expr, $lock:expr, read) => {
        ask_as_it_is!($world, $plan, $rng, $lock, read, try_read, try_read_for)
    };
    ($world:expr, $plan:expr, $rng:expr, $lock:expr, write) => {
        ask_as_it_is!($world, $plan, $rng, $lock, write, try_write, try_write_for)
    };
    ($world:expr, $plan:expr, $rng:expr, $lock:expr, $wait:ident, $try:ident, $try_for:ident) => {{
        let plan = $plan;
        let lock = handed_on!(plan, $lock);
        let wait = plan.wait;
        let asked = async {
            match wait {
                None => lock.$wait().await.map(Some),
                Some(Duration::ZERO) => lock.$try().await,
                Some(wait) => lock.$try_for(wait).await,
            }
        };
        let terms = Terms {
            shared: stringify!($wait) == "read",
            fixed: plan.is_fixed(),
            detaches: Kind::of(&$world.names[plan.name]).is_leased(),
        };
        carry_out($world, plan, asked, terms, $rng).await;
    }};
}

/// An ask, and the hold if it brings one.
pub(super) async fn one(world: &World, client: usize, rng: &mut Rng) {
    let number = rng.usize(..world.names.len());
    let plan = Plan::draw(world, number, rng);
    let (client, name) = (world.client(client), &world.names[number]);
    match Kind::of(name) {
        Kind::Mutex => {
            ask_or_run!(world, plan, rng, client.mutex(name));
        }
        Kind::Fenced => {
            ask_or_run!(world, plan, rng, client.fenced_mutex(name));
        }
        Kind::Plain => {
            ask_or_run!(world, plan, rng, client.plain_mutex(name));
        }
        Kind::Spin => {
            ask_or_run!(world, plan, rng, client.spin_mutex(name));
        }
        Kind::Permit => {
            ask!(world, plan, rng, client.leased_semaphore(name), acquire);
        }
        Kind::Fair => {
            ask_or_run!(world, plan, rng, client.fair_mutex(name));
        }
        Kind::Latch => latch::one(world, &client, plan, rng).await,
        Kind::Rw if rng.u32(0..3) == 0 => {
            ask!(world, plan, rng, client.rw_lock(name), write);
        }
        Kind::Rw => {
            ask!(world, plan, rng, client.rw_lock(name), read);
        }
    }
}

async fn carry_out<K: 'static>(
    world: &World,
    plan: Plan,
    asked: impl Future<Output = Result<Option<Guard<K>>, Error>>,
    terms: Terms,
    rng: &mut Rng,
) {
    let (name, how) = (plan.name, plan.how().to_owned());
    if let Some(guard) = answer(world, plan, how, asked, rng).await {
        hold::hold(world, name, guard, terms, rng).await;
    }
}

/// Waits as planned for what was asked, and writes down how it ended.
pub(super) async fn answer<G>(
    world: &World,
    plan: Plan,
    how: String,
    asked: impl Future<Output = Result<Option<G>, Error>>,
    rng: &mut Rng,
) -> Option<G> {
    let ask = world.journal.number();
    begins(world, ask, &plan, how);
    let answer = impatiently(asked, plan.patience).await;
    ends(world, ask, &answer, now());
    match answer {
        Answer::Guard(guard) => return Some(guard),
        Answer::Failed(_) => pause_after_a_failure(rng).await,
        Answer::Busy | Answer::Dropped => {}
    }
    None
}

fn begins(world: &World, ask: u64, plan: &Plan, how: String) {
    world.journal.write(Record::Ask {
        ask,
        name: plan.name,
        how,
        wait: plan.wait.map(nanos),
        at: now(),
    });
}

fn ends<G>(world: &World, ask: u64, answer: &Answer<G>, at: u64) {
    let what = match answer {
        Answer::Guard(_) => "guard".to_owned(),
        Answer::Busy => "busy".to_owned(),
        Answer::Dropped => "dropped".to_owned(),
        Answer::Failed(error) => api::kind(error),
    };
    world.journal.write(Record::Answer { ask, what, at });
}

/// A refusal comes at once; no need to ask for it at full speed.
async fn pause_after_a_failure(rng: &mut Rng) {
    tokio::time::sleep(Duration::from_millis(rng.u64(1..20))).await;
}

/// Waits as long as `patience` lasts.
pub(super) async fn impatiently<G>(
    asked: impl Future<Output = Result<Option<G>, Error>>,
    patience: Patience,
) -> Answer<G> {
    let asked = async {
        match asked.await {
            Ok(Some(guard)) => Answer::Guard(guard),
            Ok(None) => Answer::Busy,
            Err(error) => Answer::Failed(error),
        }
    };
    match patience {
        Patience::Endless => asked.await,
        Patience::For(wait) => tokio::time::timeout(wait, asked)
            .await
            .unwrap_or(Answer::Dropped),
        Patience::Polls(polls) => {
            let mut asked = pin!(asked);
            let mut left = polls;
            // Its next wake-up may be far away, so it is polled by the clock, too.
            let mut clock = tokio::time::interval(Duration::from_millis(3));
            poll_fn(move |context| {
                if left == 0 {
                    return Poll::Ready(Answer::Dropped);
                }
                left -= 1;
                while clock.poll_tick(context).is_ready() {}
                asked.as_mut().poll(context)
            })
            .await
        }
    }
}

/// In the calm: takes a name, alone, and lets it go. How long it took, in nanoseconds.
pub(crate) async fn calm_lock(world: &World, client: usize, number: usize) -> Result<u64, Error> {
    let (client, name) = (world.client(client), &world.names[number]);
    match Kind::of(name) {
        Kind::Mutex => calm(world, number, client.mutex(name).lock()).await,
        Kind::Fenced => calm(world, number, client.fenced_mutex(name).lock()).await,
        Kind::Plain => calm(world, number, client.plain_mutex(name).lock()).await,
        Kind::Spin => calm(world, number, client.spin_mutex(name).lock()).await,
        Kind::Permit => calm(world, number, client.leased_semaphore(name).acquire()).await,
        Kind::Fair => calm(world, number, client.fair_mutex(name).lock()).await,
        Kind::Rw => calm(world, number, client.rw_lock(name).write()).await,
        Kind::Latch => latch::calm(world, &client, number).await,
    }
}

async fn calm<K: 'static>(
    world: &World,
    name: usize,
    lock: impl Future<Output = Result<Guard<K>, Error>>,
) -> Result<u64, Error> {
    let ask = world.journal.number();
    let asked = now();
    world.journal.write(Record::Ask {
        ask,
        name,
        how: "lock in the calm".to_owned(),
        wait: None,
        at: asked,
    });
    let guard = lock.await;
    let at = now();
    let what = match &guard {
        Ok(_) => "guard".to_owned(),
        Err(error) => api::kind(error),
    };
    world.journal.write(Record::Answer { ask, what, at });
    hold::look_and_let_go(world, name, guard?).await;
    Ok(at - asked)
}
