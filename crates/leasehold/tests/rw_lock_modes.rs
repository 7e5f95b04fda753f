//! From writing to reading and back: downgrades, reading under one's own write lock, reads that may upgrade, and the order in which
//! those that wait are let in.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use common::{
    ByHand, SOON, World, release,
    rw::{until_listening, until_waiting_here},
    soon, wait_until_idle,
    wire::Network,
};
use leasehold::{
    Access, Client, ErrorKind, LostReason, MemoryServer, Owner, Released, RwLock, RwPolicy,
    UpgradeableGuard, WriteGuard,
};
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
/// Far less than a lease or a poll interval.
const WOKEN: Duration = Duration::from_secs(2);

/// The access and the hold count of each holder.
async fn holders(lock: &RwLock) -> Vec<(Access, u64)> {
    let status = lock.status().await.unwrap();
    status.holders.iter().map(|h| (h.access, h.holds)).collect()
}

fn rw(client: &Client) -> RwLock {
    client.rw_lock("name")
}

/// Waits elsewhere, where no wake-up of another comes: in a client of its own.
async fn writer(world: &World) -> (Client, JoinHandle<WriteGuard>) {
    let client = world.client().await;
    let waiting = rw(&client).write();
    let waiting = tokio::spawn(async move { waiting.await.unwrap() });
    until_waiting_here(&client, 1).await;
    (client, waiting)
}

/// In memory it waited for its poll: a place that readers pass was taken for one that they wait behind.
#[tokio::test]
async fn a_reader_behind_its_writer_enters_beside_one_that_may_upgrade_although_another_waits_for_that()
 {
    for world in World::all() {
        let builder = || world.builder().poll_every(Duration::from_secs(60));
        let one = builder().connect().await.unwrap();
        let other = builder().connect().await.unwrap();
        let third = builder().connect().await.unwrap();
        let held = rw(&one).read().await.unwrap();
        let writes = tokio::spawn(rw(&third).write());
        until_waiting_here(&third, 1).await;
        until_queued(&world, &third, 1).await;
        let reads = tokio::spawn(rw(&third).read());
        until_waiting_here(&third, 2).await;
        held.release().await.unwrap();
        let writes = soon("it writes", writes).await.unwrap().unwrap();
        let first = tokio::spawn(rw(&one).upgradeable_read());
        until_waiting_here(&one, 1).await;
        until_places(&world, 1).await;
        let second = tokio::spawn(rw(&other).upgradeable_read());
        until_waiting_here(&other, 1).await;
        until_places(&world, 2).await;
        writes.release().await.unwrap();
        let first = soon("the first", first).await.unwrap().unwrap();
        let reads = soon("beside it", reads).await.unwrap().unwrap();
        assert!(first.is_valid() && reads.is_valid(), "{}", world.name());
        first.release().await.unwrap();
        let second = soon("the second", second).await.unwrap().unwrap();
        second.release().await.unwrap();
        reads.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_downgrade_lets_waiting_readers_in_and_no_writer() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let writes = rw(&here).write().await.unwrap();
        let mut waiting = Vec::new();
        for client in [&here, &there] {
            waiting.push(tokio::spawn(rw(client).read()));
            until_waiting_here(client, 1).await;
        }
        // In this order: a reader behind the writer would wait for it.
        until_queued(&world, &here, 1).await;
        let (elsewhere, next) = writer(&world).await;
        until_queued(&world, &here, 2).await;
        let begun = Instant::now();
        let reads = writes.downgrade().await.unwrap();
        for waiting in waiting {
            let beside = soon("a reader", waiting).await.unwrap().unwrap();
            assert!(beside.is_valid() && reads.is_valid());
            beside.release().await.unwrap();
        }
        assert!(begun.elapsed() < WOKEN, "{}", world.name());
        assert!(!next.is_finished());
        assert_eq!(holders(&rw(&here)).await.len(), 1);
        reads.verify().await.unwrap();
        release(reads).await;
        release(soon("the writer", next).await.unwrap()).await;
        for client in [&here, &there, &elsewhere] {
            wait_until_idle(client).await;
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

#[tokio::test]
async fn a_downgraded_hold_is_shared_by_the_next_reader_of_its_process_and_renewed() {
    for world in World::all() {
        let client = world.client().await;
        let lock = rw(&client).lease(300 * MS);
        let reads = lock.write().await.unwrap().downgrade().await.unwrap();
        let beside = lock.read().await.unwrap();
        assert_eq!(beside.owner(), reads.owner());
        tokio::time::sleep(700 * MS).await; // two leases: the time itself is what is tested
        reads.verify().await.unwrap();
        assert_eq!(
            reads.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        assert!(lock.try_write().await.unwrap().is_none());
        release(beside).await;
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0]);
    }
}

#[tokio::test]
async fn a_writer_reads_under_its_own_lock_and_reads_on_when_it_has_written() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let writes = rw(&here).write().await.unwrap();
        let reads = writes.read().unwrap();
        let again = reads.reenter().unwrap();
        for client in [&here, &there] {
            assert!(rw(client).try_read().await.unwrap().is_none());
        }
        drop(reads);
        assert!(rw(&there).try_read().await.unwrap().is_none());
        assert_eq!(
            writes.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        for client in [&here, &there] {
            release_beside(&rw(client)).await;
            assert!(rw(client).try_write().await.unwrap().is_none());
        }
        release(again).await;
        // The reader first: then nothing is downgraded.
        let writes = rw(&here).write().await.unwrap();
        drop(writes.read().unwrap());
        assert!(rw(&there).try_read().await.unwrap().is_none());
        release(writes).await;
        wait_until_idle(&here).await;
        let strict = rw(&here).reentrant(false);
        let writes = strict.write().await.unwrap();
        assert_eq!(writes.read().unwrap_err().kind(), ErrorKind::Reentered);
        release(writes.downgrade().await.unwrap()).await;
    }
}

async fn release_beside(lock: &RwLock) {
    let beside = soon("beside it", lock.try_read()).await.unwrap();
    beside.expect("it reads").release().await.unwrap();
}

/// A second guard of the writer keeps its right: the server is told when the last is gone.
#[tokio::test]
async fn a_downgrade_waits_for_the_other_guards_of_the_writer() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let one = rw(&here).write().await.unwrap();
        let two = one.reenter().unwrap();
        let reads = one.downgrade().await.unwrap();
        assert!(two.is_valid());
        assert!(rw(&there).try_read().await.unwrap().is_none());
        drop(two);
        release(soon("beside", rw(&there).read()).await.unwrap()).await;
        release(reads).await;
        // An owner that enters by name: the same.
        let owner = Owner::new();
        let lock = rw(&here).owned_by(&owner);
        let writes = lock.write().await.unwrap();
        let reads = lock.read().await.unwrap();
        writes.release().await.unwrap();
        release_beside(&rw(&there)).await;
        assert_eq!(holders(&lock).await, [(Access::Shared, 1)]);
        release(reads).await;
        wait_until_idle(&here).await;
        assert_eq!(world.held(), [""; 0]);
    }
}

#[tokio::test]
async fn a_downgrade_whose_answer_is_lost_is_repeated() {
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(200 * MS);
        let (client, there) = (builder.connect().await.unwrap(), world.client().await);
        let writes = rw(&client).write().await.unwrap();
        network.lose_replies(1);
        let reads = soon("the downgrade", writes.downgrade()).await.unwrap();
        network.heal();
        release(soon("beside it", rw(&there).read()).await.unwrap()).await;
        reads.verify().await.unwrap();
        reads.release().await.unwrap();
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

#[tokio::test]
async fn a_lost_writer_is_not_downgraded() {
    for world in World::all() {
        let client = world.client().await;
        let lock = rw(&client);
        let writes = lock.write().await.unwrap();
        let reads = writes.read().unwrap();
        assert!(rw(&world.client().await).force_unlock().await.unwrap());
        let error = writes.downgrade().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{}", world.name());
        assert_eq!(reads.lost().await, LostReason::Replaced);
        drop(reads);
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn one_reader_may_upgrade_at_a_time_beside_others() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let may = rw(&here).upgradeable_read().await.unwrap();
        assert_eq!(holders(&rw(&there)).await, [(Access::Upgradeable, 1)]);
        for client in [&here, &there] {
            let lock = rw(client);
            let beside = lock.try_read().await.unwrap().expect("beside it");
            assert!(lock.try_upgradeable_read().await.unwrap().is_none());
            assert!(lock.try_write().await.unwrap().is_none());
            beside.release().await.unwrap();
        }
        // The next one, elsewhere and here, when the first has left or reads only.
        let waiting = tokio::spawn(rw(&there).upgradeable_read());
        until_waiting_here(&there, 1).await;
        until_listening(&here, 1).await;
        release_beside(&rw(&there)).await;
        let reads = may.downgrade().await.unwrap();
        let may = soon("the next", waiting).await.unwrap().unwrap();
        let waiting = tokio::spawn(rw(&here).upgradeable_read());
        until_waiting_here(&here, 1).await;
        release(reads).await;
        release(may).await;
        let may = soon("the third", waiting).await.unwrap().unwrap();
        may.verify().await.unwrap();
        release(may).await;
        for client in [&here, &there] {
            wait_until_idle(client).await;
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

#[tokio::test]
async fn an_upgrade_waits_for_readers_here_and_elsewhere_and_keeps_new_ones_out() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let third = world.client().await;
        for reader in [&here, &there] {
            let beside = rw(reader).read().await.unwrap();
            let may = rw(&here).upgradeable_read().await.unwrap();
            let owner = may.owner();
            assert!(rw(&here).try_write().await.unwrap().is_none());
            let may = may.try_upgrade().await.unwrap().expect_err("others read");
            let upgrade = tokio::spawn(may.upgrade());
            until_waiting_here(&here, 1).await;
            until_queued(&world, &there, 1).await;
            let newcomer = tokio::spawn(rw(&third).read());
            until_waiting_here(&third, 1).await;
            assert!(!upgrade.is_finished());
            let begun = Instant::now();
            beside.release().await.unwrap();
            let writes = soon("the upgrade", upgrade).await.unwrap().unwrap();
            assert!(begun.elapsed() < WOKEN, "{}", world.name());
            assert_eq!(writes.owner().split(':').nth(1), owner.split(':').nth(1));
            assert!(!newcomer.is_finished());
            assert_eq!(holders(&rw(&there)).await, [(Access::Exclusive, 1)]);
            writes.verify().await.unwrap();
            release(writes).await;
            release(soon("the newcomer", newcomer).await.unwrap().unwrap()).await;
            for client in [&here, &there, &third] {
                wait_until_idle(client).await;
            }
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

/// No other can have the name before: a writer that came first must not stand in its way.
#[tokio::test]
async fn an_upgrade_goes_before_writers_that_wait() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let may = rw(&here).upgradeable_read().await.unwrap();
        let beside = rw(&there).read().await.unwrap();
        let (elsewhere, remote) = writer(&world).await;
        until_listening(&there, 1).await;
        let local = tokio::spawn(rw(&here).write());
        until_waiting_here(&here, 1).await;
        until_listening(&there, 2).await;
        let upgrade = tokio::spawn(may.upgrade());
        until_waiting_here(&here, 2).await;
        release(beside).await;
        let writes = soon("the upgrade", upgrade).await.unwrap().unwrap();
        assert!(!remote.is_finished() && !local.is_finished());
        release(writes).await;
        let after = async {
            release(soon("the remote writer", remote).await.unwrap()).await;
        };
        let other = async {
            release(soon("the local writer", local).await.unwrap().unwrap()).await;
        };
        tokio::join!(after, other);
        for client in [&here, &there, &elsewhere] {
            wait_until_idle(client).await;
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

/// Each adds one to what it has read, as a task does that decides by what it reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_at_once_end_all_and_lose_nothing() {
    for world in World::all() {
        let number = Arc::new(AtomicU64::new(0));
        let (mut tasks, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let client = world.client().await;
            for _ in 0..2 {
                let (lock, number) = (rw(&client), Arc::clone(&number));
                tasks.push(tokio::spawn(async move {
                    for _ in 0..10 {
                        let may = lock.upgradeable_read().await.unwrap();
                        let read = number.load(Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        let writes = may.upgrade().await.unwrap();
                        assert_eq!(number.swap(read + 1, Ordering::SeqCst), read);
                        writes.release().await.unwrap();
                    }
                }));
            }
            let lock = rw(&client);
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    let reads = lock.read().await.unwrap();
                    tokio::time::sleep(MS).await;
                    reads.release().await.unwrap();
                }
            }));
            clients.push(client);
        }
        for task in tasks {
            soon("a task", task).await.unwrap();
        }
        assert_eq!(number.load(Ordering::SeqCst), 40, "{}", world.name());
        for client in &clients {
            wait_until_idle(client).await;
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

async fn upgradeable(client: &Client) -> UpgradeableGuard {
    rw(client).upgradeable_read().await.unwrap()
}

#[tokio::test]
async fn an_upgrade_that_is_given_up_leaves_the_read_lock_or_nothing() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let may = upgradeable(&here).await;
        let beside = rw(&there).read().await.unwrap();
        // In time: it comes back.
        let kept = may.try_upgrade_for(30 * MS).await.unwrap();
        let may = kept.expect_err("another reads");
        assert!(may.is_valid());
        // New readers are let in again as soon as its place is gone.
        release_after_a_while(&rw(&here)).await;
        release(beside).await;
        let writes = soon("now", may.upgrade()).await.unwrap();
        release(writes).await;
        // At each of its first polls, and in the middle of its wait: nothing is left.
        for polls in 1..6 {
            let may = upgradeable(&here).await;
            let beside = rw(&there).read().await.unwrap();
            let mut upgrade = ByHand::new(may.upgrade());
            for _ in 0..polls {
                assert!(upgrade.poll().is_pending());
                tokio::task::yield_now().await;
            }
            drop(upgrade);
            release(beside).await;
            release(soon("a writer", rw(&there).write()).await.unwrap()).await;
            for client in [&here, &there] {
                wait_until_idle(client).await;
            }
            assert_eq!(world.held(), [""; 0], "{}", world.name());
        }
    }
}

async fn release_after_a_while(lock: &RwLock) {
    let reads = soon("a reader", lock.read()).await.unwrap();
    reads.release().await.unwrap();
}

#[tokio::test]
async fn an_upgrade_whose_answer_is_on_its_way_when_its_time_is_up_gives_the_guard_back() {
    for world in World::all() {
        let network = Network::to(&world);
        let (here, there) = (network.client().await, world.client().await);
        for then in ["upgrade", "downgrade", "release", "drop"] {
            let case = format!("{}, {then}", world.name());
            let may = upgradeable(&here).await;
            network.delay(30 * MS);
            let kept = soon("in time", may.try_upgrade_for(10 * MS)).await;
            network.delay(Duration::ZERO);
            let may = kept.expect(&case).expect_err(&case);
            assert!(may.is_valid(), "{case}");
            // It was under way, and is carried out.
            let writes = async {
                while holders(&rw(&there)).await != [(Access::Exclusive, 1)] {
                    tokio::task::yield_now().await;
                }
            };
            soon("it writes on the server", writes).await;
            may.verify().await.expect(&case);
            assert!(rw(&there).try_read().await.unwrap().is_none(), "{case}");
            match then {
                "upgrade" => {
                    let writes = soon("at once", may.upgrade()).await.expect(&case);
                    release(writes).await;
                }
                "downgrade" => {
                    let reads = may.downgrade().await.expect(&case);
                    release(soon("a reader", rw(&there).read()).await.unwrap()).await;
                    release(reads).await;
                }
                "release" => release(may).await,
                _ => drop(may),
            }
            release(soon("a writer", rw(&there).write()).await.unwrap()).await;
            for client in [&here, &there] {
                wait_until_idle(client).await;
            }
            assert_eq!(world.held(), [""; 0], "{case}");
        }
        // A server that is out of reach for so long.
        let may = upgradeable(&here).await;
        network.go_down();
        let kept = soon("in time", may.try_upgrade_for(50 * MS)).await;
        network.heal();
        let may = kept.unwrap().expect_err("out of reach");
        let writes = soon("back again", may.upgrade()).await.unwrap();
        release(writes).await;
        // Without a limit the error says what was asked for.
        let may = upgradeable(&here).await;
        network.go_down();
        let asked = soon("an answer", may.try_upgrade()).await;
        network.heal();
        let error = asked.unwrap_err().to_string();
        assert!(error.contains("upgrade the read lock of"), "{error}");
        for client in [&here, &there] {
            wait_until_idle(client).await;
        }
        soon("all is given back", async {
            while !holders(&rw(&there)).await.is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn an_upgrade_whose_answer_is_lost_is_repeated() {
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(200 * MS);
        let (client, there) = (builder.connect().await.unwrap(), world.client().await);
        for wait in [false, true] {
            let may = upgradeable(&client).await;
            network.lose_replies(1);
            let writes = if wait {
                soon("the upgrade", may.upgrade()).await.unwrap()
            } else {
                let upgraded = soon("the upgrade", may.try_upgrade()).await.unwrap();
                upgraded.expect("it is alone")
            };
            network.heal();
            assert!(rw(&there).try_read().await.unwrap().is_none());
            writes.verify().await.unwrap();
            writes.release().await.unwrap();
            wait_until_idle(&client).await;
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

#[tokio::test]
async fn an_upgrade_whose_hold_is_lost_says_so() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let may = upgradeable(&here).await;
        let beside = rw(&there).read().await.unwrap();
        let upgrade = tokio::spawn(may.upgrade());
        until_waiting_here(&here, 1).await;
        assert!(rw(&there).force_unlock().await.unwrap());
        let error = soon("the upgrade", upgrade).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{}", world.name());
        drop(beside);
        for client in [&here, &there] {
            wait_until_idle(client).await;
        }
    }
}

/// As the owner of an upgradeable read: it may read again, and not write but by its guard.
#[tokio::test]
async fn an_owner_that_may_upgrade_reads_again_and_upgrades_its_guard() {
    for world in World::all() {
        let client = world.client().await;
        let lock = rw(&client).owned_by(&Owner::new());
        let may = lock.upgradeable_read().await.unwrap();
        let reads = soon("it reads", lock.read()).await.unwrap();
        let error = soon("it is refused", lock.write()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reentered);
        let second = may.reenter().unwrap();
        // At once: the second waits for the attempt of the first, and shares in it.
        let at_once = async { tokio::join!(may.upgrade(), second.upgrade()) };
        let (writes, both) = soon("both upgrades", at_once).await;
        let (writes, both) = (writes.unwrap(), both.unwrap());
        let inside = soon("it writes", lock.write()).await.unwrap();
        for guard in [writes, both, inside] {
            guard.release().await.unwrap();
        }
        // (The count there is written in the background.)
        assert_eq!(holders(&lock).await[0].0, Access::Shared);
        release(reads).await;
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0]);
    }
}

#[tokio::test]
async fn readers_that_are_preferred_pass_writers_that_wait() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let first = rw(&there).read().await.unwrap();
        let (elsewhere, remote) = writer(&world).await;
        let local = tokio::spawn(rw(&here).write());
        until_waiting_here(&here, 1).await;
        until_listening(&there, 2).await;
        assert!(rw(&here).try_read().await.unwrap().is_none());
        for client in [&here, &there] {
            let lock = rw(client).policy(RwPolicy::PreferReaders);
            let beside = soon("a try", lock.try_read()).await.unwrap();
            let may = soon("an upgradeable", lock.upgradeable_read()).await;
            let also = soon("a reader", lock.read()).await.unwrap();
            assert!(!remote.is_finished() && !local.is_finished());
            may.unwrap().release().await.unwrap();
            also.release().await.unwrap();
            beside.expect("beside it").release().await.unwrap();
        }
        release(first).await;
        let remote = async {
            release(soon("the remote writer", remote).await.unwrap()).await;
        };
        let local = async {
            release(soon("the local writer", local).await.unwrap().unwrap()).await;
        };
        tokio::join!(remote, local);
        for client in [&here, &there, &elsewhere] {
            wait_until_idle(client).await;
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

/// The order in which a reader and a writer come in that have waited in this order, each in its own process or both in one.
async fn order(
    world: &World,
    policy: RwPolicy,
    apart: bool,
    writer_first: bool,
) -> Vec<&'static str> {
    let holder = world.client().await;
    let (one, two) = (world.client().await, world.client().await);
    let two = if apart { two } else { one.clone() };
    let held = rw(&holder).write().await.unwrap();
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (nth, client) in [&one, &two].into_iter().enumerate() {
        let (lock, order) = (rw(client).policy(policy), Arc::clone(&order));
        let writes = (nth == 0) == writer_first;
        tasks.push(tokio::spawn(async move {
            if writes {
                let guard = lock.write().await.unwrap();
                order.lock().push("writes");
                release(guard).await;
            } else {
                let guard = lock.read().await.unwrap();
                order.lock().push("reads");
                release(guard).await;
            }
        }));
        let here = if apart { 1 } else { nth + 1 };
        until_waiting_here(client, here).await;
        until_queued(world, &holder, if apart { nth + 1 } else { 1 }).await;
    }
    release(held).await;
    for task in tasks {
        soon("a waiter", task).await.unwrap();
    }
    for client in [&holder, &one, &two] {
        wait_until_idle(client).await;
    }
    order.lock().clone()
}

/// Until so many processes stand in the queue: they listen, and have asked once more after that.
async fn until_queued(world: &World, looker: &Client, places: usize) {
    until_listening(looker, places as u64).await;
    until_places(world, places).await;
}

async fn until_places(world: &World, places: usize) {
    match world {
        World::Server(server) => {
            let queue = "leasehold:{name}:rw:queue";
            let there = || common::int(server, &["LLEN", queue]) == i64::try_from(places).unwrap();
            leasehold_testkit::wait_until_async(SOON, "they queue", there).await;
        }
        // On this thread: each task has its turn.
        World::Memory(_) => {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn each_policy_lets_in_its_own_first() {
    for world in World::all() {
        for apart in [true, false] {
            for writer_first in [true, false] {
                let case = format!("{}, apart: {apart}, {writer_first}", world.name());
                let of = |policy| order(&world, policy, apart, writer_first);
                let arrived = if writer_first {
                    ["writes", "reads"]
                } else {
                    ["reads", "writes"]
                };
                assert_eq!(of(RwPolicy::Phase).await, arrived, "{case}");
                let readers = of(RwPolicy::PreferReaders).await;
                assert_eq!(readers, ["reads", "writes"], "{case}");
                let writers = of(RwPolicy::PreferWriters).await;
                assert_eq!(writers, ["writes", "reads"], "{case}");
            }
        }
    }
}

/// The memory server; for the others see `tests/rw_lock_modes_wire.rs`.
#[tokio::test]
async fn an_upgrade_whose_hold_is_over_on_the_server_keeps_no_reader_out() {
    let server = MemoryServer::new();
    let of = || Client::builder().memory(&server).connect();
    let (here, there, new) = (
        of().await.unwrap(),
        of().await.unwrap(),
        of().await.unwrap(),
    );
    let long = rw(&there).lease(Duration::from_secs(3600));
    let beside = long.read().await.unwrap();
    let short = rw(&here).lease(Duration::from_secs(5));
    let may = short.upgradeable_read().await.unwrap();
    let upgrade = tokio::spawn(may.upgrade());
    until_listening(&there, 1).await;
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert!(rw(&new).try_read().await.unwrap().is_none(), "it waits");
    server.step_clock(Duration::from_secs(6)); // its place stays for longer
    let reads = rw(&new).try_read().await.unwrap();
    release(reads.expect("its hold is over")).await;
    let error = soon("it asks", upgrade).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    release(beside).await;
}

/// The server looks at no more than 1,000 entries of a reader: a count beyond them would stand for one of Redisson's.
#[tokio::test]
async fn a_writer_that_reads_very_often_goes_on_as_a_reader_all_the_same() {
    for world in World::all() {
        let (one, two) = (world.client().await, world.client().await);
        let lock = rw(&one).owned_by(&Owner::new());
        let writes = lock.write().await.unwrap();
        let often: Vec<_> = (0..1_500).map(|_| writes.read().unwrap()).collect();
        let again = lock.read().await.unwrap();
        writes.release().await.unwrap();
        let beside = rw(&two).try_read().await.unwrap();
        release(beside.expect("none writes any more")).await;
        drop(often);
        release(again).await;
        release(rw(&two).try_write().await.unwrap().expect("it is free")).await;
    }
}
