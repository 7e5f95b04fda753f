//! Renewals: one script for the names of each slot, all at once. So are those that replicas are to have, too.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;

use super::{
    node::NodeSteps,
    router::{AskRule, NodeAnswer, Route, Router},
};
use crate::{
    backend::{Confirmation, Failure, Renew, Renewal, Reply},
    durability::Durability,
    user_callback,
};

pub(super) fn renew<R: Router>(router: &R, batch: Arc<[Renew]>) -> Reply<Vec<Renewal>> {
    let way = RenewStep {
        step: |at: &NodeSteps, batch: &[Renew]| at.renew(batch),
        none: Renewal::Unknown,
        renewal: |answer| answer,
        waits_for_copies: false,
    };
    by_slot(router, batch, &way)
}

/// A renewal that one server has not acknowledged, since it has not got the slot any more, is asked for at the one that has.
pub(super) fn confirm<R: Router>(
    router: &R,
    batch: Arc<[Renew]>,
    policy: Durability,
) -> Reply<Vec<Confirmation>> {
    let way = RenewStep {
        step: move |at: &NodeSteps, batch: &[Renew]| at.confirm(batch, policy),
        none: Confirmation::NONE,
        renewal: |answer| &mut answer.renewal,
        waits_for_copies: true,
    };
    by_slot(router, batch, &way)
}

/// How a server is asked for renewals.
#[derive(Clone)]
struct RenewStep<T, S> {
    step: S,
    /// For a renewal without an answer.
    none: T,
    /// The renewal in an answer.
    renewal: fn(&mut T) -> &mut Renewal,
    waits_for_copies: bool,
}

/// Renewals that are asked for together, and their places in the batch.
struct RenewGroup {
    places: Vec<usize>,
    renewals: Arc<[Renew]>,
}

/// The answers for these places.
type GroupAnswer<T> = (Vec<usize>, Result<Vec<T>, Failure>);

/// The same by their names, or by what else tells them apart.
fn groups<K: Ord>(batch: Arc<[Renew]>, key: impl Fn(&Renew) -> K) -> Vec<(K, RenewGroup)> {
    let Some(first) = batch.first().map(&key) else {
        return Vec::new();
    };
    // As always where there is one server, and all are of one kind.
    if batch.iter().all(|renew| key(renew) == first) {
        let group = RenewGroup {
            places: (0..batch.len()).collect(),
            renewals: batch,
        };
        return vec![(first, group)];
    }
    // In order, so that a simulation can replay it.
    let mut places = BTreeMap::<K, Vec<usize>>::new();
    for (place, renew) in batch.iter().enumerate() {
        places.entry(key(renew)).or_default().push(place);
    }
    let group = |places: Vec<usize>| RenewGroup {
        renewals: places.iter().map(|at| batch[*at].clone()).collect(),
        places,
    };
    let groups = places.into_iter();
    groups.map(|(key, places)| (key, group(places))).collect()
}

fn by_slot<R: Router, T, S>(router: &R, batch: Arc<[Renew]>, way: &RenewStep<T, S>) -> Reply<Vec<T>>
where
    T: Clone + Send + Sync + 'static,
    S: Fn(&NodeSteps, &[Renew]) -> Reply<Vec<T>> + Clone + Send + Sync + 'static,
{
    let mut renewals = vec![way.none.clone(); batch.len()];
    // Each kind has a script of its own, and the refusal of one says nothing about another.
    let groups = groups(batch, |renew| {
        (router.slot(renew.id.name.wire()), renew.id.kind)
    });
    // All are on their way before the first answer is awaited, and so in one write for each server.
    let answers = groups.into_iter().map(|((slot, _), group)| {
        let answer = send(router, slot, Arc::clone(&group.renewals), way.clone());
        let again = R::HAS_SEVERAL.then(|| (router.clone(), way.clone()));
        async move {
            let answer = answer.await;
            match (again, &answer) {
                // The slot is being moved: some of these names are at one node, and some at the other.
                (Some((router, way)), Err(Failure::NotNow(_))) if group.has_several() => {
                    by_name(&router, slot, &group, &way).await
                }
                _ => vec![(group.places, answer)],
            }
        }
    });
    let answers = join_all(answers.collect::<Vec<_>>());
    Box::pin(async move {
        let (mut any, mut failed) = (false, None::<Failure>);
        for (places, answer) in answers.await.into_iter().flatten() {
            match answer {
                // A place that a short answer leaves out keeps what it began with: no answer, never a loss.
                Ok(answers) => {
                    for (at, renewal) in places.into_iter().zip(answers) {
                        renewals[at] = renewal;
                        any = true;
                    }
                }
                // A refusal says what to mend, and is told before all else.
                Err(failure) if failed.as_ref().is_none_or(|it| !it.is_final()) => {
                    failed = Some(failure);
                }
                Err(_) => {}
            }
        }
        match failed {
            // The watchdog tells of it.
            Some(failure) if !any => return Err(failure),
            // All else is the server's trouble, and told with it.
            Some(failure) if failure.is_final() => {
                let cause = failure.cause();
                user_callback::catch_panic(|| {
                    tracing::warn!(target: "leasehold", %cause, "some leases not renewed");
                });
            }
            _ => {}
        }
        Ok(renewals)
    })
}

impl RenewGroup {
    fn has_several(&self) -> bool {
        let first = &self.renewals[0].id;
        self.renewals.iter().any(|renew| renew.id != *first)
    }

    /// A part for each name, with its places in the batch.
    fn by_name(&self) -> impl Iterator<Item = RenewGroup> {
        let of_names = groups(Arc::clone(&self.renewals), |renew| renew.id.clone());
        of_names.into_iter().map(|(_, mut of_name)| {
            of_name
                .places
                .iter_mut()
                .for_each(|at| *at = self.places[*at]);
            of_name
        })
    }
}

async fn by_name<R: Router, T, S>(
    router: &R,
    slot: u16,
    group: &RenewGroup,
    way: &RenewStep<T, S>,
) -> Vec<GroupAnswer<T>>
where
    T: Clone + Send + Sync + 'static,
    S: Fn(&NodeSteps, &[Renew]) -> Reply<Vec<T>> + Clone + Send + Sync + 'static,
{
    let each = group.by_name().map(async |of_name| {
        let answer = send(router, slot, of_name.renewals, way.clone()).await;
        (of_name.places, answer)
    });
    join_all(each).await
}

fn send<R: Router, T, S>(
    router: &R,
    slot: u16,
    renewals: Arc<[Renew]>,
    way: RenewStep<T, S>,
) -> Reply<Vec<T>>
where
    T: Clone + Send + Sync + 'static,
    S: Fn(&NodeSteps, &[Renew]) -> Reply<Vec<T>> + Send + Sync + 'static,
{
    // Not patient: the watchdog tries again by itself, as often as the lease has time for.
    let route = Route {
        ask: AskRule::MayFollow,
        waits_for_copies: way.waits_for_copies,
        ..Route::once(slot)
    };
    let step = way.step;
    let answer = router.send(route, move |at: &NodeSteps| step(at, &renewals));
    Box::pin(async move {
        let NodeAnswer {
            mut value, partly, ..
        } = answer.await?;
        if partly.is_some() {
            for renewal in value.iter_mut().map(way.renewal) {
                if *renewal == Renewal::Lost {
                    *renewal = Renewal::Unknown;
                }
            }
        }
        Ok(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kind::{Access, LockKind},
        name::{LockId, Name},
        owner::LeaseId,
    };

    /// An answer in another's place would end a hold that is there, or prolong one that is lost.
    #[test]
    fn each_part_of_a_batch_knows_its_places_there() {
        let renew = |name: &&str| Renew {
            id: LockId::new(LockKind::Mutex, Name::new(name).unwrap()),
            access: Access::Exclusive,
            lease: LeaseId::from(7),
            lease_ms: 1_000,
        };
        let batch: Arc<[Renew]> = ["a1", "b1", "a2", "b1", "a1"].iter().map(renew).collect();
        let shown = |group: &RenewGroup| {
            let names = group
                .renewals
                .iter()
                .map(|it| it.id.name.shown().to_string());
            (group.places.clone(), names.collect::<Vec<_>>().join(" "))
        };
        let slot = |renew: &Renew| renew.id.name.shown().as_bytes()[0];
        let of_slots = groups(Arc::clone(&batch), slot);
        let slots: Vec<_> = of_slots.iter().map(|(_, it)| shown(it)).collect();
        assert_eq!(
            slots,
            [
                (vec![0, 2, 4], "a1 a2 a1".into()),
                (vec![1, 3], "b1 b1".into())
            ]
        );
        let parts = of_slots.iter().flat_map(|(_, it)| it.by_name());
        let parts: Vec<_> = parts.map(|it| shown(&it)).collect();
        let expected = [
            (vec![0, 4], "a1 a1"),
            (vec![2], "a2"),
            (vec![1, 3], "b1 b1"),
        ];
        assert_eq!(
            parts,
            expected.map(|(places, names)| (places, names.to_owned()))
        );
        assert_eq!(
            of_slots
                .iter()
                .map(|(_, it)| it.has_several())
                .collect::<Vec<_>>(),
            [true, false]
        );
        let all = groups(Arc::clone(&batch), |_| ());
        assert!(
            Arc::ptr_eq(&all[0].1.renewals, &batch),
            "copied where all are asked at one place"
        );
        assert_eq!(all[0].1.places, [0, 1, 2, 3, 4]);
        assert!(groups([].into(), slot).is_empty());
    }
}
