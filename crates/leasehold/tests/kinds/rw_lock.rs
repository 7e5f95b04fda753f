//! The read-write lock's own promises: readers that share, and turns.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{
    SOON, World, keys,
    late::unless_late_async,
    servers, soon, wait_until_idle,
    wire::{Network, script_calls},
};
use leasehold::{Access, Client, ErrorKind, Handoff, LostReason, Owner, Released};
use leasehold_testkit::{Proxy, wait_until_async};

const MS: Duration = Duration::from_millis(1);

/// Ten reads of each of 64 readers take 20 ms. Where the machine stops the writer for as long, they have nobody to wait for.
const LATE: Duration = Duration::from_millis(80);

/// 64 readers in two processes that come and go without end, so that there is always one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_without_end_do_not_keep_a_writer_out() {
    for world in World::all() {
        unless_late_async("a writer", LATE, async || {
            let stop = Arc::new(AtomicBool::new(false));
            let reads = Arc::new(AtomicU64::new(0));
            let mut readers = Vec::new();
            for _ in 0..2 {
                let client = world.client().await;
                for _ in 0..32 {
                    let lock = client.rw_lock("name");
                    let (stop, reads) = (Arc::clone(&stop), Arc::clone(&reads));
                    readers.push(tokio::spawn(async move {
                        while !stop.load(Ordering::Relaxed) {
                            let guard = lock.read().await.unwrap();
                            reads.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_micros(fastrand::u64(500..3_000)))
                                .await;
                            assert!(guard.is_valid());
                            guard.release().await.unwrap();
                        }
                    }));
                }
            }
            let writer = world.client().await;
            let mut overtaken = Vec::new();
            for _ in 0..20 {
                let last = reads.load(Ordering::Relaxed);
                let go_on = || reads.load(Ordering::Relaxed) > last + 128;
                wait_until_async(SOON, "the readers go on", go_on).await;
                let before = reads.load(Ordering::Relaxed);
                let guard = soon("a writer", writer.rw_lock("name").write()).await;
                overtaken.push(reads.load(Ordering::Relaxed) - before);
                guard.unwrap().release().await.unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                soon("a reader", reader).await.unwrap();
            }
            let reads = reads.load(Ordering::Relaxed);
            println!("{}: {overtaken:?} of {reads} reads", world.name());
            assert!(reads > 500, "the readers read meanwhile: {reads}");
            // Some two of each reader are seen: until its client hears of the writer, each reads on.
            let most = overtaken.into_iter().max();
            if most.is_some_and(|reads| reads > 10 * 64) {
                return Err(format!("{}: {most:?} reads came before it", world.name()));
            }
            Ok(())
        })
        .await;
    }
}

/// Ten tasks on one thread that do nothing but read in memory: none waits for anything, and all have their share. Where the budget ends
/// after some reads, and where it never does.
#[tokio::test]
async fn tasks_that_only_read_let_each_other_run() {
    for world in World::all() {
        for budget in [Handoff::default(), Handoff::new(u32::MAX, 60 * SOON)] {
            let client = world.client().await;
            let lock = client.rw_lock("name").handoff(budget);
            let first = lock.read().await.unwrap();
            let all = Arc::new(AtomicU64::new(0));
            let mut tasks = Vec::new();
            for _ in 0..10 {
                let (lock, all) = (lock.clone(), Arc::clone(&all));
                tasks.push(tokio::spawn(async move {
                    let mut own = 0_u64;
                    while all.fetch_add(1, Ordering::Relaxed) < 20_000 {
                        drop(lock.read().await.unwrap());
                        own += 1;
                    }
                    own
                }));
            }
            let (mut counts, mut sum, mut squares) = (Vec::new(), 0, 0);
            for task in tasks {
                let own = soon("a task", task).await.unwrap();
                counts.push(own);
                sum += own;
                squares += own * own;
            }
            // Jain's index is 1 if all had the same, and a tenth if one had everything.
            let is_fair = 10 * sum * sum >= 9 * 10 * squares;
            assert!(is_fair, "{}, {budget:?}: {counts:?}", world.name());
            first.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn the_next_reader_of_a_process_costs_no_command() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        // A budget that no busy machine uses up.
        let lock = client.rw_lock("name").handoff(Handoff::new(64, SOON));
        let first = lock.read().await.unwrap();
        let before = script_calls(&server);
        let mut guards = Vec::new();
        for _ in 0..20 {
            guards.push(lock.read().await.unwrap());
        }
        assert_eq!(script_calls(&server), before);
        assert!(guards.iter().all(|guard| guard.owner() == first.owner()));
        for guard in guards {
            let released = guard.release().await.unwrap();
            assert!(
                matches!(released, Released::StillHeld { .. }),
                "{released:?}"
            );
        }
        assert_eq!(first.release().await.unwrap(), Released::Freed);
        wait_until_idle(&client).await;
        assert_eq!(keys(&server), [""; 0]);
    }
}

/// A reader that is cut off keeps writers out for its own lease, however long the others read on.
#[tokio::test]
async fn a_reader_that_dies_does_not_keep_a_writer_out_when_the_others_have_left() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let dies = Client::connect(&proxy.url()).await.unwrap();
        let (lives, writer) = (
            Client::connect(&server.url()).await.unwrap(),
            Client::connect(&server.url()).await.unwrap(),
        );
        let lost = dies.rw_lock("name").lease(600 * MS).read().await.unwrap();
        let kept = lives.rw_lock("name").read().await.unwrap();
        proxy.refuse(true);
        proxy.cut();
        assert_eq!(soon("it is told", lost.lost()).await, LostReason::Expired);
        let waiting = tokio::spawn(writer.rw_lock("name").write());
        assert!(!waiting.is_finished());
        let released = Instant::now();
        kept.release().await.unwrap();
        let guard = soon("a writer", waiting).await.unwrap().unwrap();
        assert!(released.elapsed() < 1000 * MS, "{:?}", released.elapsed());
        guard.release().await.unwrap();
        proxy.heal();
    }
}

#[tokio::test]
async fn an_owner_may_read_what_it_writes_and_not_write_what_it_reads() {
    for world in World::all() {
        let client = world.client().await;
        let owner = Owner::new();
        let lock = client.rw_lock("name").owned_by(&owner);
        let writes = lock.write().await.unwrap();
        let reads = soon("it reads", lock.read()).await.unwrap();
        assert_eq!(
            writes.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        assert_eq!(lock.status().await.unwrap().holders.len(), 1);
        reads.release().await.unwrap();

        let reads = lock.read().await.unwrap();
        let error = soon("it is refused", lock.write()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reentered, "{}", world.name());
        reads.release().await.unwrap();
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn status_lists_every_process_that_reads() {
    for world in World::all() {
        let clients = [world.client().await, world.client().await];
        let mut guards = Vec::new();
        for client in &clients {
            guards.push(client.rw_lock("name").read().await.unwrap());
        }
        let status = clients[0].rw_lock("name").status().await.unwrap();
        let mut owners: Vec<_> = status.holders.iter().map(|h| h.owner.clone()).collect();
        let mut expected: Vec<_> = guards.iter().map(leasehold::Guard::owner).collect();
        owners.sort();
        expected.sort();
        assert_eq!(owners, expected, "{}", world.name());
        assert!(status.holders.iter().all(|h| h.access == Access::Shared));
        for guard in guards {
            guard.release().await.unwrap();
        }
    }
}

/// The answer that says whether a writer waits is lost: the reader asks for a hold of its own.
#[tokio::test]
async fn a_lost_answer_about_waiting_writers_costs_a_reader_nothing() {
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(200 * MS);
        let client = builder.connect().await.unwrap();
        let lock = client.rw_lock("name").handoff(leasehold::Handoff::off());
        let one = lock.read().await.unwrap();
        network.lose_replies(1);
        let two = tokio::time::timeout(SOON, lock.read()).await.unwrap();
        let two = two.unwrap();
        assert!(one.is_valid() && two.is_valid());
        network.heal();
        for guard in [one, two] {
            guard.release().await.unwrap();
        }
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0]);
    }
}
