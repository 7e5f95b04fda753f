//! The promises of every kind of lock, written once: each test runs for every row of `common/kinds.rs`, on memory and on
//! every real server. The promises of a single kind stand in a file of its own.

pub(crate) mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use common::{
    ByHand, SOON, channels, keys, late::unless_late_async, soon, wait_until_idle,
    wire::script_calls,
};
// `tests/blocking.rs`, `tests/quorum_kinds.rs` and `tests/sentinel_kinds.rs` have this file as a module, and kinds of their own.
use crate::kinds::{AnyGuard, AnyLock, MAY_BE_DROPPED, Network, ROWS, Row, World};
#[allow(unused_imports, reason = "it is for the root")]
use common::kinds;
use futures_util::future::try_join_all;
use leasehold::{Client, Error, ErrorKind, LostReason, Owner, Released, Shutdown};
use leasehold_testkit::wait_until_async;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// More polls than any acquisition takes.
const MANY: usize = 100;

/// Runs a test for every kind, each on every backend; those that wait, wait side by side.
async fn for_each<F: Future<Output = ()>>(test: impl Fn(Row, Arc<World>) -> F) {
    let tests = ROWS.iter().flat_map(|row| {
        let worlds = World::all().into_iter().map(Arc::new);
        worlds.map(|world| test(*row, world)).collect::<Vec<_>>()
    });
    futures_util::future::join_all(tests).await;
}

/// A client whose waiters look by themselves long after any test is over.
async fn patient(world: &World) -> Client {
    let builder = world.builder().poll_every(60 * SECOND);
    builder.connect().await.unwrap()
}

async fn until_waiting(lock: &AnyLock, tasks: usize) {
    let deadline = Instant::now() + SOON;
    while lock.status().await.waiting_here != tasks {
        assert!(Instant::now() < deadline, "{tasks} never waited: {lock:?}");
        tokio::task::yield_now().await;
    }
}

async fn until_listening(lock: &AnyLock, clients: u64) {
    let deadline = Instant::now() + SOON;
    while lock.status().await.waiting_clients != clients {
        assert!(
            Instant::now() < deadline,
            "{clients} never listened: {lock:?}"
        );
        tokio::task::yield_now().await;
    }
}

/// Until a task waits for it, so that the other processes know, if they ever do.
async fn until_it_waits(row: Row, lock: &AnyLock) {
    until_waiting(lock, 1).await;
    if row.listens() {
        until_listening(lock, 1).await;
    }
}

/// Readers share a hold: the last one frees it.
async fn release(guard: AnyGuard) {
    let shared = guard.is_shared();
    match guard.release().await.unwrap() {
        Released::Freed => {}
        Released::StillHeld { .. } if shared => {}
        other => panic!("{other:?}"),
    }
}

/// Neither the clients nor the server keep anything but tombstones, and what the kind keeps on purpose.
async fn assert_clean(row: Row, world: &World, clients: &[&Client], after: &str) {
    let after = format!("{row:?} on {}, {after}", world.name());
    for client in clients {
        wait_until_idle(client).await;
    }
    let status = row.lock(clients[0], "name").status().await;
    assert_eq!(status.holders, [], "{after}");
    match world {
        World::Server(server) => {
            for key in keys(server) {
                assert!(
                    key.contains(":gone:") || row.stays(&key, "name"),
                    "{after}: {key} is left"
                );
            }
            let what = format!("nobody listens: {after}");
            wait_until_async(SOON, &what, || channels(server).is_empty()).await;
        }
        World::Memory(_) => until_listening(&row.lock(clients[0], "name"), 0).await,
    }
}

#[tokio::test]
async fn what_is_held_keeps_its_rival_out_until_it_is_released() {
    for_each(|row, world| async move {
        let (one, other) = (patient(&world).await, patient(&world).await);
        row.prepare(&one, "name").await;
        for rival in [&one, &other] {
            let guard = row.lock(&one, "name").lock().await.unwrap();
            assert!(guard.is_valid());
            let rival = row.rival(rival, "name");
            assert!(rival.try_lock().await.unwrap().is_none(), "{rival:?}");
            let begun = Instant::now();
            let waited = rival.try_lock_for(500 * MS).await.unwrap();
            assert!(waited.is_none(), "{rival:?}");
            assert!(begun.elapsed() >= 500 * MS, "{rival:?} waits as told");
            release(guard).await;
            let what = format!("{row:?} on {}: it was released", world.name());
            // The waiter whose time was up may have been given it on its way out.
            let next = rival.try_lock_for(SOON).await.unwrap();
            release(next.expect(&what)).await;
        }
        assert_clean(row, &world, &[&one, &other], "a release").await;
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_is_dropped_is_released() {
    for_each(|row, world| async move {
        let client = patient(&world).await;
        row.prepare(&client, "name").await;
        for _ in 0..20 {
            drop(row.lock(&client, "name").lock().await.unwrap());
            let rival = row.rival(&client, "name").try_lock().await.unwrap();
            let what = format!("{row:?} on {}: it was dropped", world.name());
            drop(rival.expect(&what));
        }
        assert_clean(row, &world, &[&client], "drops").await;
    })
    .await;
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_release_here_and_elsewhere() {
    for_each(|row, world| async move {
        let (holder, waiter) = (patient(&world).await, patient(&world).await);
        row.prepare(&holder, "name").await;
        for waits in [&holder, &waiter] {
            let guard = row.lock(&holder, "name").lock().await.unwrap();
            let rival = row.rival(waits, "name");
            let waiting = tokio::spawn(rival.lock());
            until_waiting(&rival, 1).await;
            release(guard).await;
            let what = format!("{row:?} on {}: woken", world.name());
            release(soon(&what, waiting).await.unwrap().unwrap()).await;
        }
        assert_clean(row, &world, &[&holder, &waiter], "a wait").await;
    })
    .await;
}

/// Many tasks of several processes: two that exclude each other are never inside together.
#[tokio::test]
async fn contenders_exclude_each_other() {
    for_each(|row, world| async move {
        // Inside: holders of the row count 1000, rivals 1. (Rivals of readers are writers, and the other way round.)
        let inside = Arc::new(AtomicI64::new(0));
        let mut tasks = Vec::new();
        let setup = world.client().await;
        row.prepare(&setup, "name").await;
        let clients = [
            world.client().await,
            world.client().await,
            world.client().await,
        ];
        for client in &clients {
            for task in 0..4 {
                let rival = task % 2 == 0;
                let lock = if rival {
                    row.rival(client, "name")
                } else {
                    row.lock(client, "name")
                };
                let inside = Arc::clone(&inside);
                let weight = if rival { 1 } else { 1000 };
                tasks.push(tokio::spawn(async move {
                    for _ in 0..40 {
                        let guard = lock.lock().await.unwrap();
                        let there = inside.fetch_add(weight, Ordering::SeqCst);
                        let alone = match (row, rival) {
                            // A reader beside readers.
                            (Row::Read, false) => there % 1000 == 0,
                            (Row::Write, true) => there / 1000 == 0,
                            _ => there == 0,
                        };
                        assert!(alone, "{row:?}: {there} inside");
                        tokio::task::yield_now().await;
                        assert!(guard.is_valid());
                        inside.fetch_sub(weight, Ordering::SeqCst);
                        release(guard).await;
                    }
                }));
            }
        }
        for task in tasks {
            let what = format!("{row:?} on {}: its turns", world.name());
            tokio::time::timeout(3 * SOON, task)
                .await
                .expect(&what)
                .unwrap();
        }
        // A grant that came for a waiter that had been served is on its way back: its client knows.
        let [one, other, third] = &clients;
        assert_clean(row, &world, &[one, other, third], "contention").await;
    })
    .await;
}

async fn poll_up_to(
    asking: &mut ByHand<impl Future<Output = Result<AnyGuard, Error>>>,
    most: usize,
) -> (usize, Option<AnyGuard>) {
    for polls in 0..most {
        if polls > 0 {
            asking.woken().await;
        }
        if let Poll::Ready(guard) = asking.poll() {
            return (polls + 1, Some(guard.unwrap()));
        }
    }
    (most, None)
}

#[tokio::test]
async fn an_acquisition_may_be_dropped_after_any_poll() {
    if !MAY_BE_DROPPED {
        return; // a thread waits to the end
    }
    for_each(|row, world| async move {
        let client = patient(&world).await;
        row.prepare(&client, "name").await;
        let lock = row.lock(&client, "name");
        let (polls, guard) = poll_up_to(&mut ByHand::new(lock.lock()), MANY).await;
        release(guard.unwrap()).await;
        for drop_after in 0..=polls {
            let mut asking = ByHand::new(lock.lock());
            let guard = poll_up_to(&mut asking, drop_after).await;
            drop((asking, guard));
            let after = format!("dropped after {drop_after} polls");
            assert_clean(row, &world, &[&client], &after).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_wait_may_be_dropped_at_any_moment() {
    if !MAY_BE_DROPPED {
        return; // a thread waits to the end
    }
    for_each(|row, world| async move {
        let (holder, waiter) = (patient(&world).await, patient(&world).await);
        row.prepare(&holder, "name").await;
        for drop_after in 0..8 {
            let guard = row.lock(&holder, "name").lock().await.unwrap();
            let waiting = tokio::spawn(row.rival(&waiter, "name").lock());
            for _ in 0..drop_after {
                tokio::task::yield_now().await;
            }
            if drop_after == 7 && row.listens() {
                until_listening(&row.rival(&holder, "name"), 1).await;
            }
            let released = tokio::spawn(guard.release());
            waiting.abort();
            released.await.unwrap().unwrap();
            if let Ok(guard) = waiting.await {
                drop(guard);
            }
            let after = format!("a wait dropped after {drop_after} turns");
            assert_clean(row, &world, &[&holder, &waiter], &after).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_lost_reply_does_nothing_twice() {
    for_each(|row, world| async move {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(200 * MS);
        let client = builder.connect().await.unwrap();
        let other = patient(&world).await;
        row.prepare(&client, "name").await;
        drop(row.lock(&client, "warm-up").try_lock().await);
        wait_until_idle(&client).await;
        for lost in [1, 2] {
            network.lose_replies(lost);
            let guard = row.lock(&client, "name").lock().await.unwrap();
            let holders = row.lock(&other, "name").status().await.holders.len();
            assert_eq!(holders, usize::from(row.has_lease()));
            network.lose_replies(1);
            let released = guard.release().await.unwrap();
            assert!(
                matches!(released, Released::Freed | Released::Unconfirmed { .. }),
                "{released:?}"
            );
            let rival = row.rival(&other, "name");
            release(soon("its turn", rival.lock()).await.unwrap()).await;
        }
        network.heal();
        assert_clean(row, &world, &[&client, &other], "lost replies").await;
    })
    .await;
}

#[tokio::test]
async fn a_renewed_lease_outlives_itself_and_a_fixed_one_says_when_it_is_over() {
    for_each(|row, world| async move {
        if !row.has_lease() {
            return;
        }
        let (client, other) = (patient(&world).await, patient(&world).await);
        row.prepare(&client, "name").await;
        let lease = 400 * MS;
        let lock = row.lock(&client, "name").lease(lease);
        // Holds of the same name that end leave the renewal of the next one alone.
        for _ in 0..8 {
            let guard = lock.lock().await.unwrap();
            let again = guard.reenter().unwrap();
            guard.release().await.unwrap();
            again.release().await.unwrap();
        }
        let guard = lock.lock().await.unwrap();
        let until = Instant::now() + 4 * lease;
        while Instant::now() < until {
            assert!(guard.is_valid(), "{row:?} on {}", world.name());
            let rival = row.rival(&other, "name").try_lock().await.unwrap();
            assert!(rival.is_none());
            tokio::time::sleep(lease / 8).await;
        }
        release(guard).await;

        let lock = row.lock(&client, "name").fixed_lease(lease);
        let guard = lock.lock().await.unwrap();
        let waiting = tokio::spawn(row.rival(&other, "name").lock());
        assert_eq!(guard.lost().await, LostReason::Expired);
        assert!(!guard.is_valid());
        let error = guard.release().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        let next = soon("its turn", waiting).await.unwrap().unwrap();
        release(next).await;
        assert_clean(row, &world, &[&client, &other], "a fixed lease").await;
    })
    .await;
}

#[tokio::test]
async fn a_wait_with_a_limit_is_served_in_the_middle_of_it() {
    for_each(|row, world| async move {
        let (one, other) = (patient(&world).await, patient(&world).await);
        row.prepare(&one, "name").await;
        for elsewhere in [false, true] {
            let guard = row.lock(&one, "name").lock().await.unwrap();
            let waiter = row.rival(if elsewhere { &other } else { &one }, "name");
            let waiting = tokio::spawn(waiter.try_lock_for(10 * SOON));
            if elsewhere {
                until_it_waits(row, &waiter).await;
            } else {
                until_waiting(&waiter, 1).await;
            }
            release(guard).await;
            let next = soon("its turn", waiting).await.unwrap().unwrap();
            release(next.expect("it was released")).await;
        }
        assert_clean(row, &world, &[&one, &other], "a wait with a limit").await;
    })
    .await;
}

#[tokio::test]
async fn what_is_taken_by_force_is_lost_and_served_to_who_waits() {
    for_each(|row, world| async move {
        if !row.has_lease() {
            return; // the server knows no holders
        }
        let (one, other) = (patient(&world).await, patient(&world).await);
        row.prepare(&one, "name").await;
        let free = row.lock(&other, "name").force_unlock().await.unwrap();
        assert!(!free, "{row:?} on {}: nothing was held", world.name());
        let guard = row.lock(&one, "name").lock().await.unwrap();
        let waiter = row.rival(&other, "name");
        let waiting = tokio::spawn(waiter.lock());
        until_it_waits(row, &waiter).await;
        assert!(row.lock(&one, "name").force_unlock().await.unwrap());
        let next = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(guard.verify().await.is_err(), "{row:?}");
        assert_eq!(guard.lost().await, LostReason::Replaced, "{row:?}");
        assert!(next.verify().await.is_ok() && next.is_valid(), "{row:?}");
        drop(guard);
        release(next).await;
        assert_clean(row, &world, &[&one, &other], "force").await;
    })
    .await;
}

/// More than a look at the server lists.
#[tokio::test]
async fn each_of_a_thousand_guards_and_more_is_verified_and_kept() {
    const MANY: u32 = 1_100;
    for_each(|row, world| async move {
        if !matches!(row, Row::Permit | Row::Count) {
            return;
        }
        let client = patient(&world).await;
        row.prepare(&client, "name").await;
        if row == Row::Permit {
            let semaphore = client.leased_semaphore("name");
            semaphore.set_permits(MANY).await.unwrap();
        } else {
            let there = client.semaphore("name").available_permits().await.unwrap();
            let more = i32::try_from(i64::from(MANY) - there).unwrap();
            client.semaphore("name").add_permits(more).await.unwrap();
        }
        let lock = row.lock(&client, "name");
        let mut guards = Vec::new();
        while guards.len() < MANY as usize {
            let some = (0..50).map(|_| lock.lock());
            guards.extend(try_join_all(some).await.unwrap());
        }
        for guards in guards.chunks(50) {
            let verified = try_join_all(guards.iter().map(AnyGuard::verify)).await;
            verified.unwrap_or_else(|error| panic!("{row:?} on {}: {error}", world.name()));
        }
        drop(guards);
        wait_until_idle(&client).await;
    })
    .await;
}

async fn free(lock: &AnyLock) -> i64 {
    lock.status().await.available.expect("a semaphore")
}

#[tokio::test]
async fn permits_are_set_by_a_request_for_one_where_no_client_has() {
    for_each(|row, world| async move {
        let (one, other) = (patient(&world).await, patient(&world).await);
        let (Some(two), Some(five)) = (
            row.providing(&one, "name", 2),
            row.providing(&other, "name", 5),
        ) else {
            return;
        };
        // A waiter that names no number of permits has its turn by the first request that does.
        let waiting = tokio::spawn(row.lock(&one, "name").lock());
        until_it_waits(row, &two).await;
        let first = five.try_lock().await.unwrap().unwrap();
        let second = soon("its turn", waiting).await.unwrap().unwrap();
        assert_eq!(free(&two).await, 3, "{row:?} on {}", world.name());
        // They are there, and stay as they are.
        let third = two.lock().await.unwrap();
        assert_eq!(free(&two).await, 2, "{row:?} on {}", world.name());
        for guard in [first, second, third] {
            release(guard).await;
        }
        assert_eq!(free(&two).await, 5, "{row:?} on {}", world.name());
        assert_clean(row, &world, &[&one, &other], "permits are set").await;
    })
    .await;
}

#[tokio::test]
async fn permits_are_there_again_on_a_server_that_restarts_empty() {
    for row in [Row::Permit, Row::Count] {
        for mut server in common::servers() {
            let client = Client::connect(&server.url()).await.unwrap();
            let two = row.providing(&client, "name", 2).unwrap();
            let before = two.lock().await.unwrap();
            server.restart();
            let deadline = Instant::now() + SOON;
            // Of a number no guard learns that.
            while row.has_lease()
                && before.verify().await.map_err(|error| error.kind()) != Err(ErrorKind::Lost)
            {
                assert!(Instant::now() < deadline, "{row:?}: it is never lost");
            }
            let guards = [two.lock().await.unwrap(), two.lock().await.unwrap()];
            assert!(two.try_lock().await.unwrap().is_none(), "{row:?}");
            // Also for one that waits while the server goes.
            let waiting = tokio::spawn(two.lock());
            until_it_waits(row, &two).await;
            server.restart();
            release(soon("its turn", waiting).await.unwrap().unwrap()).await;
            drop(guards);
        }
    }
}

#[tokio::test]
async fn exactly_so_many_permits_are_there_from_the_next_request_on() {
    if !ROWS.contains(&Row::Permit) {
        return;
    }
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let exactly = |permits| one.leased_semaphore("name").permits_exactly(permits);
        let held = exactly(2).acquire_many(2).await.unwrap();
        // More: also for those that wait.
        let waiting = tokio::spawn(other.leased_semaphore("name").acquire());
        let semaphore = other.leased_semaphore("name");
        until_it_waits(Row::Permit, &Row::Permit.lock(&other, "name")).await;
        let third = exactly(4).acquire().await.unwrap();
        let fourth = soon("its turn", waiting).await.unwrap().unwrap();
        assert_eq!(semaphore.available_permits().await.unwrap(), 0);
        // Fewer: none is free until enough have come back.
        assert!(exactly(1).try_acquire().await.unwrap().is_none());
        assert_eq!(semaphore.available_permits().await.unwrap(), -3);
        assert!(held.is_valid() && held.verify().await.is_ok());
        for guard in [held, third, fourth] {
            guard.release().await.unwrap();
        }
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        // The last one wins; the one that says so only where there are none changes nothing.
        drop(semaphore.permits(7).acquire().await.unwrap());
        drop(semaphore.permits_exactly(3).acquire().await.unwrap());
        drop(semaphore.permits(7).acquire().await.unwrap());
        wait_until_idle(&other).await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 3);
    }
}

/// It would be busy for ever.
#[tokio::test]
async fn a_semaphore_without_permits_says_so_when_the_time_is_up() {
    for_each(|row, world| async move {
        if !matches!(row, Row::Permit | Row::Count) {
            return;
        }
        let (one, other) = (patient(&world).await, patient(&world).await);
        let lock = row.lock(&one, "name");
        for error in [
            lock.try_lock().await.map(drop).unwrap_err(),
            lock.try_lock_for(50 * MS).await.map(drop).unwrap_err(),
        ] {
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{row:?}: {said}");
            assert!(said.contains("no permits; set them"), "{row:?}: {said}");
        }
        wait_until_idle(&one).await;
        // A caller that waits on, and a caller that asks once beside it.
        let waiting = tokio::spawn(lock.lock());
        until_it_waits(row, &lock).await;
        let beside = lock.try_lock().await;
        assert!(!matches!(beside, Ok(Some(_))), "{row:?}: {beside:?}");
        row.prepare(&other, "name").await;
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(lock.try_lock().await.unwrap().is_none(), "{row:?}: busy");
        assert!(lock.try_lock_for(500 * MS).await.unwrap().is_none());
        release(guard).await;
        // No permit is free: that is busy.
        let none = row.providing(&other, "name", 1).unwrap();
        let last = none.lock().await.unwrap();
        assert!(lock.try_lock().await.unwrap().is_none(), "{row:?}: out");
        release(last).await;
        assert_clean(row, &world, &[&one, &other], "without permits").await;
    })
    .await;
}

#[tokio::test]
async fn a_number_of_permits_out_of_bounds_is_refused_before_anything_is_sent() {
    let client = Client::connect("memory:").await.unwrap();
    for permits in [0, i32::MAX.unsigned_abs() + 1, u32::MAX] {
        let (leased, counted) = (client.leased_semaphore("a"), client.semaphore("b"));
        for error in [
            leased.permits(permits).acquire().await.unwrap_err(),
            leased.permits_exactly(permits).acquire().await.unwrap_err(),
            counted.permits(permits).acquire().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("2147483647"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_restarts_empty_has_forgotten_every_hold_and_renews_the_next() {
    for mut server in common::servers() {
        let lease = 2 * SECOND;
        let client = Client::connect(&server.url()).await.unwrap();
        let leased = || ROWS.iter().filter(|row| row.has_lease());
        let mut holds = Vec::new();
        for row in leased() {
            let name = format!("{row:?}");
            row.prepare(&client, &name).await;
            let lock = row.lock(&client, &name).lease(lease);
            holds.push(lock.lock().await.unwrap());
        }
        server.restart();
        for guard in holds {
            soon("the loss", guard.lost()).await;
            assert!(guard.release().await.is_err());
        }
        wait_until_idle(&client).await;
        let mut holds = Vec::new();
        for row in leased() {
            let name = format!("{row:?}");
            row.prepare(&client, &name).await;
            let lock = row.lock(&client, &name).lease(lease);
            holds.push((row, soon("the next", lock.lock()).await.unwrap()));
        }
        tokio::time::sleep(3 * lease / 2).await;
        for (row, guard) in holds {
            guard.verify().await.unwrap();
            assert!(guard.is_valid(), "{row:?}");
            release(guard).await;
        }
    }
}

/// A look, and then the break: in between the lock may have been renewed, or have another holder.
#[tokio::test]
async fn a_lock_is_taken_by_force_only_as_it_was_seen() {
    for_each(|row, world| async move {
        let (holds, breaks) = (patient(&world).await, patient(&world).await);
        row.prepare(&holds, "name").await;
        let what = format!("{row:?} on {}", world.name());
        let (lock, looks) = (row.lock(&holds, "name"), row.lock(&breaks, "name"));
        if [Row::Permit, Row::Count].contains(&row) {
            let refused = breaks.force_unlock_if(&looks.status().await).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid, "{what}");
            return;
        }
        let lock = lock.fixed_lease(10 * SECOND);
        let guard = lock.lock().await.unwrap();
        let seen = looks.status().await;
        guard.extend(20 * SECOND).await.unwrap();
        let taken = breaks.force_unlock_if(&seen).await.unwrap();
        assert!(!taken, "{what}: it was renewed");
        guard.verify().await.expect(&what);
        let seen = looks.status().await;
        release(guard).await;
        let taken = breaks.force_unlock_if(&seen).await.unwrap();
        assert!(!taken, "{what}: it was free");
        let guard = lock.lock().await.unwrap();
        let taken = breaks.force_unlock_if(&seen).await.unwrap();
        assert!(!taken, "{what}: another had it");
        guard.verify().await.expect(&what);

        let seen = looks.status().await;
        assert!(breaks.force_unlock_if(&seen).await.unwrap(), "{what}");
        assert!(guard.verify().await.is_err(), "{what}");
        drop(guard);
        assert_clean(row, &world, &[&holds, &breaks], "a lock was taken").await;
    })
    .await;
}

#[tokio::test]
async fn max_hold_ends_a_hold_and_extend_moves_the_end_of_a_fixed_lease() {
    for_each(|row, world| async move {
        if !row.has_lease() {
            return;
        }
        let client = patient(&world).await;
        row.prepare(&client, "name").await;
        let lock = row.lock(&client, "name").max_hold(1500 * MS);
        let guard = lock.lock().await.unwrap();
        assert_eq!(
            soon("max_hold", guard.lost()).await,
            LostReason::MaxHold,
            "{row:?}"
        );
        drop(guard);
        let lock = row.lock(&client, "name").fixed_lease(3 * SECOND);
        let guard = soon("its turn", lock.lock()).await.unwrap();
        guard.extend(20 * SECOND).await.unwrap();
        assert!(guard.remaining() > 15 * SECOND, "{row:?}");
        let left = guard.verify().await.unwrap();
        assert!(left > 15 * SECOND && left <= 20 * SECOND, "{left:?}");
        guard.extend(SECOND).await.unwrap();
        assert!(guard.remaining() > 15 * SECOND, "it only moves forward");
        release(guard).await;
        assert_clean(row, &world, &[&client], "an extended lease").await;
    })
    .await;
}

/// A hold that a crashed holder leaves ends with its lease.
#[tokio::test]
async fn what_a_holder_leaves_to_expire_is_there_for_the_next_when_its_lease_ends() {
    for_each(|row, world| async move {
        if !row.has_lease() {
            return;
        }
        let (client, other) = (patient(&world).await, patient(&world).await);
        row.prepare(&client, "name").await;
        let lease = 500 * MS;
        let lock = row.lock(&client, "name").fixed_lease(lease);
        let guard = lock.lock().await.unwrap();
        guard.detach();
        let begun = Instant::now();
        let next = soon("its turn", row.rival(&other, "name").lock()).await;
        let waited = begun.elapsed();
        assert!(waited < lease + 400 * MS, "{row:?}: {waited:?}");
        release(next.unwrap()).await;
        assert_clean(row, &world, &[&client, &other], "an end").await;
    })
    .await;
}

/// Waits for the next call of a script: a time just before it, and how many there were with it. A time of three polls that begins anywhere
/// may have four in it.
async fn just_before_a_call(server: &leasehold_testkit::Server) -> (Instant, u64) {
    let (mut looked, before) = (Instant::now(), script_calls(server));
    for _ in 0..SOON.as_millis() {
        tokio::time::sleep(MS).await;
        let (began, now) = (looked, Instant::now());
        let calls = script_calls(server);
        if calls != before {
            return (began, calls);
        }
        looked = now;
    }
    panic!("no call in {SOON:?}");
}

#[tokio::test]
async fn an_idle_waiting_process_asks_once_per_poll_however_many_wait_in_it() {
    for_each(|row, world| async move {
        let World::Server(server) = &*world else {
            return;
        };
        if !row.listens() {
            return;
        }
        let poll = 800 * MS;
        let holder = patient(&world).await;
        let waiter = world.builder().poll_every(poll).connect().await.unwrap();
        row.prepare(&holder, "name").await;
        let guard = row.lock(&holder, "name").lock().await.unwrap();
        let rival = row.rival(&waiter, "name");
        let waiting: Vec<_> = (0..100).map(|_| tokio::spawn(rival.lock())).collect();
        until_waiting(&rival, 100).await;
        until_listening(&row.lock(&holder, "name"), 1).await;
        if row.has_place_per_task() {
            let places = || server.cli(&["LLEN", "redisson_lock_queue:{name}"]);
            wait_until_async(SOON, "each has its place", || {
                places() == redis::Value::Int(100)
            })
            .await;
            waiter.heard().await;
        }
        unless_late_async("polls", poll, async || {
            let (began, before) = just_before_a_call(server).await;
            tokio::time::sleep(3 * poll).await; // the time itself is what is tested
            let asked = script_calls(server) - before;
            // On a busy machine it is longer than that.
            let polls = began.elapsed().as_millis() / poll.as_millis();
            if u128::from(asked) <= polls {
                return Ok(());
            }
            Err(format!("{row:?}: {asked} commands in {polls} polls"))
        })
        .await;
        for task in waiting {
            task.abort();
        }
        release(guard).await;
        assert_clean(row, &world, &[&holder, &waiter], "a long wait").await;
    })
    .await;
}

#[tokio::test]
async fn many_waiters_are_all_served() {
    for_each(|row, world| async move {
        let (holder, waiter) = (patient(&world).await, patient(&world).await);
        row.prepare(&holder, "name").await;
        let guard = row.lock(&holder, "name").lock().await.unwrap();
        let served = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let client = if number % 2 == 0 { &holder } else { &waiter };
                let lock = if number % 3 == 0 {
                    row.lock(client, "name")
                } else {
                    row.rival(client, "name")
                };
                let served = Arc::clone(&served);
                tokio::spawn(async move {
                    let guard = lock.lock().await.unwrap();
                    served.fetch_add(1, Ordering::SeqCst);
                    release(guard).await;
                })
            })
            .collect();
        let somebody = async || {
            while row.lock(&holder, "name").status().await.waiting_clients == 0 {
                tokio::task::yield_now().await;
            }
        };
        if row.listens() {
            soon("a process waits", somebody()).await;
        }
        release(guard).await;
        for task in tasks {
            let what = format!("{row:?} on {}: all are served", world.name());
            soon(&what, task).await.unwrap();
        }
        assert_eq!(served.load(Ordering::SeqCst), 40);
        assert_clean(row, &world, &[&holder, &waiter], "40 waiters").await;
    })
    .await;
}

#[tokio::test]
async fn a_second_guard_keeps_the_hold_and_an_owner_enters_again() {
    for_each(|row, world| async move {
        let (client, other) = (patient(&world).await, patient(&world).await);
        row.prepare(&client, "name").await;
        let rival = row.rival(&other, "name");
        let guard = row.lock(&client, "name").lock().await.unwrap();
        let again = guard.reenter().unwrap();
        assert_eq!(guard.owner(), again.owner());
        let left = async || {
            let status = row.lock(&other, "name").status().await;
            status.holders.first().and_then(|holder| holder.remaining)
        };
        let before = left().await;
        assert_eq!(
            guard.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        // Neither shorter nor longer.
        let after = left().await;
        assert!(
            after <= before && after > before.map(|left| left.saturating_sub(5 * SECOND))
                || !row.has_lease()
        );
        assert!(rival.try_lock().await.unwrap().is_none());
        release(again).await;

        let owner = Owner::new();
        if let Some(lock) = row.lock(&client, "name").owned_by(&owner) {
            let outer = lock.lock().await.unwrap();
            // A rival that waits does not come between an owner and itself.
            let waiting = tokio::spawn(rival.lock());
            until_it_waits(row, &rival).await;
            let inner = soon("enters again", lock.lock()).await.unwrap();
            assert_eq!(outer.owner(), inner.owner());
            let holds = if row.counts() { 2 } else { 1 };
            assert_eq!(lock.status().await.holders[0].holds, holds);
            assert_eq!(
                inner.release().await.unwrap(),
                Released::StillHeld { holds: 1 }
            );
            assert!(!waiting.is_finished());
            release(outer).await;
            release(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
        assert_clean(row, &world, &[&client, &other], "re-entry").await;
    })
    .await;
}

#[tokio::test]
async fn status_lists_the_holder_and_those_who_wait() {
    for_each(|row, world| async move {
        let builder = world.builder().label("the-holder");
        let holder = builder.connect().await.unwrap();
        let waiter = patient(&world).await;
        row.prepare(&holder, "name").await;
        let lock = row.lock(&holder, "name").lease(20 * SECOND);
        let guard = lock.lock().await.unwrap();
        let rival = row.rival(&waiter, "name");
        let waiting = [(); 3].map(|()| tokio::spawn(rival.lock()));
        until_waiting(&rival, 3).await;
        let listening = u64::from(row.listens());
        until_listening(&lock, listening).await;
        // A waiter that asks at this moment is not counted among those that wait.
        let status = soon("three wait", async {
            loop {
                let status = rival.status().await;
                if (status.waiting_here, status.waiting_clients) == (3, listening) {
                    break status;
                }
            }
        });
        let status = status.await;
        assert_eq!(
            status.holders.len(),
            usize::from(row.has_lease()),
            "{row:?}"
        );
        for there in &status.holders {
            assert_eq!(there.owner, guard.owner(), "{row:?} on {}", world.name());
            assert_eq!(there.holds, 1);
            let left = there.remaining.expect("a lease has an end");
            assert!(left > 15 * SECOND && left <= 20 * SECOND, "{left:?}");
        }
        for task in waiting {
            task.abort();
        }
        release(guard).await;
        assert_clean(row, &world, &[&holder, &waiter], "looks").await;
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_answers_waiters_and_gives_back_what_is_held() {
    for_each(|row, world| async move {
        let (client, other) = (patient(&world).await, patient(&world).await);
        row.prepare(&client, "name").await;
        let guard = row.lock(&client, "name").lock().await.unwrap();
        let rival = row.rival(&client, "name");
        let waiting = tokio::spawn(rival.lock());
        until_waiting(&rival, 1).await;
        let grace = Duration::ZERO;
        soon("shut down", client.shutdown(Shutdown::ReleaseAll { grace })).await;
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_eq!(guard.lost().await, LostReason::ClientShutdown);
        drop(guard);
        let next = row.rival(&other, "name").lock();
        release(soon("its turn", next).await.unwrap()).await;
        assert_clean(row, &world, &[&client, &other], "a shutdown").await;
    })
    .await;
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    for_each(|row, world| async move {
        let client = patient(&world).await;
        for bad in ["", "a{b", "{}x"] {
            let error = row.lock(&client, bad).lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{row:?}, {bad:?}");
        }
        for lease in [Duration::ZERO, Duration::MAX] {
            if !row.has_lease() {
                continue;
            }
            let lock = row.lock(&client, "name").lease(lease);
            let error = lock.lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{row:?}, {lease:?}");
        }
        wait_until_idle(&client).await;
    })
    .await;
}
