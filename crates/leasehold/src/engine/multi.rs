//! Several locks, of any kinds and clients, held by one holder: all of them or none.
//!
//! The missing ones are asked for side by side, each as a first attempt of its own queue. If one of them is held, those behind it are
//! given back, and the caller waits for that one in its own queue, with those before it in its hands: in an order that is the
//! same in every process. Then it asks for what is missing again.
//!
//! - **No deadlock.** A holder that waits has only locks that come before the one it waits for. So of all locks that are waited
//!   for, the holders of the last one wait for none, and it becomes free. Asks side by side wait for no holder.
//!   A restart may turn the order of two servers: a caller that waits then, with locks in its hands, gives these back, and
//!   begins anew. It knows of the restart, since it asks the server that it waits for, and those whose leases it renews.
//! - **No livelock, no starvation.** Each round takes at least the first of the missing locks, and gives none back, unless a
//!   restart has turned the order. The wait for it ends as its own queue says (L1).
//! - **S1, S2** are those of the members: each has a hold, a lease id and a place in the watchdog's list of its own.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{
    Error, Released,
    backoff::Backoff,
    durations::humane,
    engine::claim::ask::no_answer,
    engine::core::ClientRef,
    engine::durable,
    engine::env::Env,
    engine::env::drain::CallerRef,
    engine::fair::fair_queues::try_in_turn,
    engine::hold::Hold,
    engine::hold::held::Held,
    engine::hold::spec::{Patience, Spec, Waits},
    engine::queue::enter,
    error::{Cause, Invalid},
    name::LockId,
};

/// A member of several locks that are asked for together.
#[derive(Clone, Debug)]
pub(crate) struct MemberRequest {
    pub(crate) core: ClientRef,
    pub(crate) id: LockId,
    pub(crate) spec: Spec,
}

/// Takes all of these locks, as patiently as told; `None` if one of them was held. They are in the order of their names, which all
/// processes share, and no two are the same.
pub(crate) async fn acquire(
    members: &mut [MemberRequest],
    patience: Patience,
) -> Result<Option<Vec<Held>>, Error> {
    let until = match patience {
        // `None`: a wait that the clock cannot count is one without an end.
        Patience::For(wait) => Instant::now().checked_add(wait),
        Patience::Once => members
            .iter()
            .map(|member| enter::latest_answer(&member.core))
            .max(),
        Patience::Forever => None,
    };
    loop {
        if members.windows(2).any(is_one_name) {
            // In each lap: a server that has restarted has another identity.
            Box::pin(order_by_server(members, patience, until)).await?;
        }
        let mut taking = Taking {
            members,
            patience,
            until,
            held: Vec::with_capacity(members.len()),
            waited: false,
            answered_held: None,
            turned: false,
        };
        let taken = taking.take().await;
        if let Ok(true) = taken {
            return Ok(Some(taking.held));
        }
        let turned = taking.turned;
        // Also before an error: a caller without a guard holds nothing.
        give_back(taking.held).await;
        if !turned {
            return taken.map(|_| None);
        }
    }
}

/// Brings the members of one name, which are on several servers, into the order of what these are to all processes: an address may be
/// written in two ways. A server that was never reached is waited for, with nothing held.
async fn order_by_server(
    members: &mut [MemberRequest],
    patience: Patience,
    until: Option<Instant>,
) -> Result<(), Error> {
    for MemberRequest { core, id, .. } in &*members {
        let mut backoff = Backoff::of_request();
        while core.backend.identity().is_none() {
            core.check_open()?;
            let asked = core.backend.identify();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let answer = match left {
                Some(left) => core.within(left, asked).await,
                None => Some(asked.await),
            };
            let failure = match answer {
                Some(Ok(())) => continue,
                Some(Err(failure)) if failure.is_final() || patience == Patience::Once => failure,
                Some(Err(_)) => {
                    core.sleep(backoff.next()).await;
                    continue;
                }
                None => core.time_is_up(),
            };
            // Another caller's connection may have learned it meanwhile.
            if core.backend.identity().is_none() {
                return Err(failure.into_read_error(format!("lock {:?}", id.name)));
            }
        }
    }
    members.sort_by_cached_key(|member| (member.id.name.clone(), member.core.backend.identity()));
    let is_twice = |pair: &&[MemberRequest]| {
        let [one, next] = [&pair[0], &pair[1]].map(|member| member.core.backend.identity());
        is_one_name(pair) && one.is_some() && one == next
    };
    match members.windows(2).find(is_twice) {
        Some(pair) => Err(twice(pair[0].id.name.shown())),
        None => Ok(()),
    }
}

/// Whether two members have one name.
fn is_one_name(pair: &[MemberRequest]) -> bool {
    pair[0].id.name == pair[1].id.name
}

/// Completes when the members are not in the order of their servers any more, since one of these has restarted.
async fn turned(members: &[MemberRequest]) {
    let is_in_order = |pair: &[MemberRequest]| {
        let [one, next] = [&pair[0], &pair[1]].map(|member| member.core.backend.identity());
        one.is_some() && one < next
    };
    let mut on_several = members.windows(2).filter(|pair| is_one_name(pair));
    let Some(first) = on_several.next() else {
        return pending().await;
    };
    while is_in_order(first) && on_several.clone().all(is_in_order) {
        first[0].core.sleep_here(CHECK_AGAIN).await;
    }
}

pub(crate) fn twice(name: &str) -> Error {
    let twice = format!("{name:?} twice on one server");
    let invalid = Invalid::new("a name to lock with others", twice, "there once");
    let invalid = invalid.remedy("name each lock once: its holder would wait for itself");
    invalid.into()
}

/// For so long a caller that has no patience waits until what it had is given back.
const GIVEN_BACK: Duration = Duration::from_millis(200);

/// So often a caller that waits checks whether a restart has turned the order.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

/// So often a member may be lost before the last one is taken.
const ROUNDS_MOST: u32 = 8;

#[derive(Debug, thiserror::Error)]
#[error(
    "a {what} of {} was over each time before the last of the names was taken; take a longer one",
    humane(*length)
)]
struct OverTooSoon {
    what: &'static str,
    length: Duration,
}

/// A caller that has the first of its members, and asks for the others.
struct Taking<'a> {
    members: &'a [MemberRequest],
    patience: Patience,
    until: Option<Instant>,
    /// Of the first members, in order.
    held: Vec<Held>,
    /// A member was waited for, or asked for by itself, with others held.
    waited: bool,
    /// The server has said that another owner holds this member, which was not taken since.
    answered_held: Option<usize>,
    /// A restart of a server has turned the order of the members.
    turned: bool,
}

impl Taking<'_> {
    /// Takes all. `false`: a member is held by another owner, and the caller's patience is over; or the order was turned.
    async fn take(&mut self) -> Result<bool, Error> {
        for _ in 0..ROUNDS_MOST {
            if !self.take_all().await? {
                return Ok(false);
            }
            if self.is_complete().await {
                return Ok(true);
            }
        }
        // Each time one of the leases was over before the last name was taken.
        let limits = self
            .members
            .iter()
            .map(|member| match member.spec.max_hold() {
                // A shorter lease is renewed meanwhile.
                Some(most) => ("max_hold", most),
                None => member.spec.limit(),
            });
        let (what, length) = limits.min_by_key(|(_, length)| *length).unwrap_or_default();
        Err(Error::Rejected {
            doing: format!("lock {} names at once", self.members.len()).into(),
            source: Arc::new(OverTooSoon { what, length }) as Cause,
        })
    }

    /// Takes what is missing. `false`: as [`take`](Taking::take) says.
    async fn take_all(&mut self) -> Result<bool, Error> {
        while self.held.len() < self.members.len() {
            let all = self.members.len() - self.held.len();
            let is_taken = self.ask(all, Patience::Once).await;
            match is_taken {
                Ok(true) => break,
                answer if self.patience == Patience::Once => return answer,
                // A silent server is waited for, as a holder is.
                Err(error) if !error.is_unreachable() => return Err(error),
                Ok(false) | Err(_) => {}
            }
            let patience = match self.until {
                Some(until) => Patience::For(left(until)),
                None => self.patience,
            };
            if !self.ask(1, patience).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks for so many of the missing members side by side, as first attempts, or for the first of them with patience. All are sent
    /// before any answer is waited for. `false`: another owner holds one of them. Then those behind it are given back, since no
    /// caller waits for a lock that comes before one it holds.
    async fn ask(&mut self, members: usize, patience: Patience) -> Result<bool, Error> {
        let all = self.members;
        let missing = &all[self.held.len()..];
        let others_held = !self.held.is_empty();
        self.waited |= others_held;
        let until = self.until;
        let asks = missing[..members].iter().map(|member| {
            let asked = Box::pin(ask(member, patience));
            async move {
                match until {
                    // A request that waits keeps to its own time.
                    Some(until) if patience == Patience::Once => {
                        let MemberRequest { core, id, spec } = member;
                        let answer = core.by(Instant::now() + left(until), asked).await;
                        answer.unwrap_or_else(|| Err(no_answer(core, id, *spec)))
                    }
                    _ => asked.await,
                }
            }
        });
        let answers = tokio::select! {
            biased;
            // A caller that does not wait is in no circle.
            () = turned(self.members), if others_held && patience != Patience::Once => {
                self.turned = true;
                return Ok(false);
            }
            answers = join_all(asks) => answers,
            // `keep` never ends: it stands here only to be polled beside the answers.
            () = keep(&self.held) => Vec::new(),
        };
        let mut answers = answers.into_iter();
        let mut refused = None;
        while refused.is_none() {
            match answers.next() {
                Some(Ok(Some(held))) => self.held.push(held),
                Some(Ok(None)) => {
                    self.answered_held = Some(self.held.len());
                    refused = Some(Ok(false));
                }
                Some(Err(error)) if error.is_unreachable() && self.was_held() => {
                    refused = Some(Ok(false));
                }
                Some(Err(error)) => refused = Some(Err(error)),
                None => return Ok(true),
            }
        }
        give_back(answers.filter_map(|answer| answer.ok().flatten()).collect()).await;
        refused.unwrap_or(Ok(true))
    }

    /// Whether the caller's time is up, and may be told that a member was held: a request that was sent in what was left of it
    /// may have no answer. Where the server cannot be asked any more, what it said last is no news.
    fn was_held(&self) -> bool {
        let is_over = |until| Instant::now() >= until;
        let member = self.answered_held.filter(|at| *at >= self.held.len());
        let is_well = |at: usize| {
            let member = &self.members[at];
            member.core.backend.trouble_of(&member.id).is_none()
        };
        member.is_some_and(is_well) && self.until.is_some_and(is_over)
    }

    /// Whether all that was taken is still held. If one was lost meanwhile, those behind it are given back, since no caller waits for
    /// a lock that comes before one it holds.
    async fn is_complete(&mut self) -> bool {
        if self.waited {
            // A fixed lease counts from when the last name was taken.
            self.waited = false;
            extend(&self.held).await;
        }
        let Some(at) = self.held.iter().position(is_lost) else {
            return true;
        };
        give_back(self.held.split_off(at)).await;
        false
    }
}

/// The rest of a caller's time: a request that was begun has a moment.
fn left(until: Instant) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    left.max(Duration::from_millis(1))
}

/// Asks for one member, by its own queue.
async fn ask(member: &MemberRequest, patience: Patience) -> Result<Option<Held>, Error> {
    let MemberRequest { core, id, spec } = member;
    let patience = if spec.durability.is_primary() {
        patience
    } else {
        durable::begin(core, id, *spec, patience).await?
    };
    let taken = if spec.waits == Waits::InTurn && patience == Patience::Once {
        try_in_turn(&core.queues, &core.fair, id, *spec).await
    } else {
        enter::acquire(&core.queues, id, *spec, patience).await
    };
    durable::confirmed(taken).await
}

/// The caller waits for the answers, so that the next one finds the names free, but not for long: the releases go on
/// without it.
async fn give_back(held: Vec<Held>) {
    // Without a thread there may be no timer to bound it.
    let env = held.first().map(|held| Arc::clone(held.hold().env()));
    if let Some(env) = env.filter(|env| env.check_background().is_ok()) {
        let _ = env.within(GIVEN_BACK, release_all(held)).await;
    }
}

/// Gives all of them back. The answers are in the same order. Once polled, this is carried out to its end whether or not its
/// caller goes on.
pub(crate) async fn release_all(held: Vec<Held>) -> Vec<Result<Released, Error>> {
    // All have begun before anything is waited for.
    let releases: Vec<_> = held.into_iter().map(Held::give_back).collect();
    join_all(releases).await
}

/// For guards that were dropped.
pub(crate) fn release_in_background(held: Vec<Held>) {
    // If these are the last of their clients, this waits once, when all that is to be sent is under way.
    let clients = held.iter().map(|held| CallerRef::new(held.hold().env()));
    let _clients: Vec<CallerRef<Env>> = clients.collect();
    drop(held);
}

fn is_lost(held: &Held) -> bool {
    held.hold().standing().is_err()
}

/// Keeps fixed leases alive while their holder waits for another name; the others are renewed anyway. Never ends.
async fn keep(held: &[Held]) {
    let fixed = held.iter().filter(|held| held.hold().spec().is_fixed());
    let shortest = fixed.min_by_key(|held| held.hold().spec().lease());
    let Some(shortest) = shortest.map(Held::hold) else {
        return pending().await;
    };
    let every = shortest.spec().ask_every();
    loop {
        shortest.env().sleep_here(every).await;
        extend(held).await;
    }
}

/// Lets all fixed leases count from now. A lost lease is found when all are checked.
async fn extend(held: &[Held]) {
    let holds = held.iter().map(Held::hold);
    let fixed = holds.filter(|hold| hold.spec().is_fixed());
    let extended = fixed.map(|hold: &Arc<Hold>| hold.extend(hold.spec().lease()));
    join_all(extended).await;
}
