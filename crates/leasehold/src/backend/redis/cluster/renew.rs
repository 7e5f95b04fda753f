//! Renewals: one script for the names of each slot, all at once. So are those that replicas are to have, too.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{
    ClusterCore,
    route::{AskRule, LATE, NodeAnswer, Route},
    slots::slot,
};
use crate::{
    backend::{Confirmation, Failure, LockSteps, Renew, Renewal, Reply, redis::Redis},
    durability::Durability,
    kind::LockKind,
    name::LockId,
};

/// Renewals of one kind in one slot, by their places in the batch.
type SlotGroup = Vec<(usize, Renew)>;

pub(super) fn renew(shared: &Arc<ClusterCore>, batch: &[Renew]) -> Reply<Vec<Renewal>> {
    let way = RenewStep {
        step: Arc::new(|redis: &Redis, batch: &[Renew]| redis.renew(batch)),
        none: Renewal::Unknown,
        renewal: |answer| answer,
        late: LATE,
    };
    by_slot(shared, batch, &way)
}

/// A renewal that one node has not acknowledged, since it has not got the slot any more, is asked for at the one that has.
pub(super) fn confirm(
    shared: &Arc<ClusterCore>,
    batch: &[Renew],
    policy: Durability,
) -> Reply<Vec<Confirmation>> {
    let way = RenewStep {
        step: Arc::new(move |redis: &Redis, batch: &[Renew]| redis.confirm(batch, policy)),
        none: Confirmation::NONE,
        renewal: |answer| &mut answer.renewal,
        // Replicas, and disks, may take their time.
        late: Duration::MAX,
    };
    by_slot(shared, batch, &way)
}

type AskNode<T> = dyn Fn(&Redis, &[Renew]) -> Reply<Vec<T>> + Send + Sync;

/// How a node is asked for renewals.
#[derive(Clone)]
struct RenewStep<T> {
    step: Arc<AskNode<T>>,
    /// For a renewal without an answer.
    none: T,
    /// The renewal in an answer.
    renewal: fn(&mut T) -> &mut Renewal,
    late: Duration,
}

fn by_slot<T: Clone + Send + Sync + 'static>(
    shared: &Arc<ClusterCore>,
    batch: &[Renew],
    way: &RenewStep<T>,
) -> Reply<Vec<T>> {
    // In order, so that a simulation can replay it. By kind as well, since each kind has a script of its own.
    let mut groups: BTreeMap<(u16, LockKind), SlotGroup> = BTreeMap::new();
    for (at, renew) in batch.iter().enumerate() {
        let group = groups.entry((slot(renew.id.name.wire()), renew.id.kind));
        group.or_default().push((at, renew.clone()));
    }
    let mut renewals = vec![way.none.clone(); batch.len()];
    // All are on their way before the first answer is awaited, and so in one write for each node.
    let answers = groups
        .into_iter()
        .map(|((slot, _), group)| group_of(Arc::clone(shared), slot, group, way.clone()));
    let answers = join_all(answers.collect::<Vec<_>>());
    Box::pin(async move {
        let (mut any, mut failed) = (false, None);
        for (at, answer) in answers.await.into_iter().flatten() {
            match answer {
                Ok(renewal) => {
                    renewals[at] = renewal;
                    any = true;
                }
                Err(failure) => failed = Some(failure),
            }
        }
        match failed {
            // As of one server: the watchdog tells of it.
            Some(failure) if !any => Err(failure),
            _ => Ok(renewals),
        }
    })
}

async fn group_of<T: Clone + Send + Sync + 'static>(
    shared: Arc<ClusterCore>,
    slot: u16,
    group: SlotGroup,
    way: RenewStep<T>,
) -> Vec<(usize, Result<T, Failure>)> {
    let places: Vec<usize> = group.iter().map(|(at, _)| *at).collect();
    let has_several = group.iter().any(|(_, renew)| renew.id != group[0].1.id);
    match send(&shared, slot, renewals_of(&group), &way).await {
        // The slot is being moved: some of these names are at one node, and some at the other.
        Err(Failure::NotNow(_)) if has_several => {
            let mut by_name: BTreeMap<LockId, SlotGroup> = BTreeMap::new();
            for (at, renew) in group {
                by_name
                    .entry(renew.id.clone())
                    .or_default()
                    .push((at, renew));
            }
            let each = by_name.into_values().map(async |of_name| {
                let answer = send(&shared, slot, renewals_of(&of_name), &way).await;
                let places = of_name.into_iter().map(|(at, _)| at);
                answers_of(places.collect(), answer)
            });
            join_all(each).await.into_iter().flatten().collect()
        }
        answer => answers_of(places, answer),
    }
}

fn renewals_of(group: &[(usize, Renew)]) -> Vec<Renew> {
    group.iter().map(|(_, renew)| renew.clone()).collect()
}

fn answers_of<T>(
    places: Vec<usize>,
    answer: Result<Vec<T>, Failure>,
) -> Vec<(usize, Result<T, Failure>)> {
    match answer {
        // A place that a short answer leaves out keeps what it began with: no answer, never a loss.
        Ok(renewals) => places
            .into_iter()
            .zip(renewals.into_iter().map(Ok))
            .collect(),
        Err(failure) => places
            .into_iter()
            .map(|at| (at, Err(failure.clone())))
            .collect(),
    }
}

async fn send<T: Clone + Send + Sync + 'static>(
    shared: &Arc<ClusterCore>,
    slot: u16,
    renewals: Vec<Renew>,
    way: &RenewStep<T>,
) -> Result<Vec<T>, Failure> {
    let RenewStep {
        step,
        renewal,
        late,
        ..
    } = way.clone();
    let way = Route {
        slot,
        ask: AskRule::MayFollow,
        // The watchdog tries again by itself, as often as the lease has time for.
        patience: Duration::ZERO,
        late,
    };
    let step = move |redis: &Redis| step(redis, &renewals);
    let NodeAnswer {
        mut value, asked, ..
    } = shared.send_openly(way, step).await?;
    if asked {
        // The rest of the lock may be at the other node still. It is not lost by that.
        for renewal in value.iter_mut().map(renewal) {
            if *renewal == Renewal::Lost {
                *renewal = Renewal::Unknown;
            }
        }
    }
    Ok(value)
}
