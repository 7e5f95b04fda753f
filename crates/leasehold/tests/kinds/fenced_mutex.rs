//! The fenced mutex's own promise: the tokens of its holders grow strictly, in the order of their grants.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common::{
    World, int, keys, release, servers, soon, wait_until_idle,
    wire::{Network, script_calls},
};
use futures_util::future::join_all;
use leasehold::{Client, ErrorKind, FencedMutex, Handoff, LostReason, Owner, Released};
use leasehold_testkit::{Server, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(10);
const TOKEN: &str = "redisson_lock_token:{name}";

/// The tokens in the order in which their holders had the name.
#[derive(Clone, Debug, Default)]
struct Tokens(Arc<Mutex<Vec<u64>>>);

impl Tokens {
    fn add(&self, token: u64) {
        self.0.lock().unwrap().push(token);
    }

    #[track_caller]
    fn assert_growing(&self, many: usize) {
        let tokens = self.0.lock().unwrap();
        assert_eq!(tokens.len(), many);
        for pair in tokens.windows(2) {
            assert!(pair[0] < pair[1], "{} after {}", pair[1], pair[0]);
        }
        assert!(tokens.iter().all(|token| (1..1 << 53).contains(token)));
    }
}

/// So many tasks that each take the name so often.
async fn contend(mutex: &FencedMutex, tokens: &Tokens, tasks: usize, times: usize) {
    let tasks = (0..tasks).map(|_| {
        let (mutex, tokens) = (mutex.clone(), tokens.clone());
        tokio::spawn(async move {
            for _ in 0..times {
                let guard = mutex.lock().await.unwrap();
                tokens.add(guard.token());
                tokio::task::yield_now().await;
                release(guard).await;
            }
        })
    });
    for task in join_all(tasks.collect::<Vec<_>>()).await {
        task.unwrap();
    }
}

async fn until_waiting(mutex: &FencedMutex, tasks: usize) {
    // A status whose reply is lost says nothing.
    while !matches!(mutex.status().await, Ok(status) if status.waiting_here == tasks) {
        tokio::task::yield_now().await;
    }
}

async fn until_listening(mutex: &FencedMutex, clients: u64) {
    while !matches!(mutex.status().await, Ok(status) if status.waiting_clients == clients) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn every_way_to_take_it_has_a_larger_token() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let tokens = Tokens::default();
        for client in [&one, &other, &one] {
            let mutex = client.fenced_mutex("name");
            let guard = mutex.lock().await.unwrap();
            tokens.add(guard.token());
            release(guard).await;
            let guard = mutex.try_lock().await.unwrap().unwrap();
            tokens.add(guard.token());
            drop(guard);
            let guard = mutex.try_lock_for(SOON).await.unwrap().unwrap();
            tokens.add(guard.token());
            release(guard).await;
        }
        tokens.assert_growing(9);
    }
}

#[tokio::test]
async fn a_lease_that_is_passed_on_in_memory_has_a_new_token_for_each_holder() {
    const TASKS: usize = 200;
    for world in World::all() {
        let client = world.client().await;
        let mutex = client.fenced_mutex("name");
        // More in a row than a grant has tokens.
        let mutex = mutex.handoff(Handoff::new(10_000, 3600 * SECOND));
        let tokens = Tokens::default();
        let first = mutex.lock().await.unwrap();
        tokens.add(first.token());
        let tasks = (0..TASKS).map(|_| {
            let (mutex, tokens) = (mutex.clone(), tokens.clone());
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                tokens.add(guard.token());
                release(guard).await;
            })
        });
        let tasks: Vec<_> = tasks.collect();
        until_waiting(&mutex, TASKS).await;
        let before = match &world {
            World::Server(server) => script_calls(server),
            World::Memory(_) => 0,
        };
        release(first).await;
        for task in tasks {
            soon("its turn", task).await.unwrap();
        }
        tokens.assert_growing(TASKS + 1);
        if let World::Server(server) = &world {
            // A grant serves 65 holders: 201 of them take three more, and the last one's release.
            let calls = script_calls(server) - before;
            assert_eq!(calls, 4, "{}", world.name());
        }
    }
}

#[tokio::test]
async fn tokens_grow_over_hand_offs_in_memory_and_hand_overs_between_clients() {
    for world in World::all() {
        for handoff in [Handoff::default(), Handoff::new(2, SECOND), Handoff::off()] {
            let tokens = Tokens::default();
            let mut clients = Vec::new();
            for _ in 0..3 {
                clients.push(world.client().await);
            }
            let contenders = clients.iter().map(|client| {
                let mutex = client.fenced_mutex("name").handoff(handoff);
                let tokens = tokens.clone();
                async move { contend(&mutex, &tokens, 4, 25).await }
            });
            join_all(contenders).await;
            tokens.assert_growing(3 * 4 * 25);
            for client in &clients {
                wait_until_idle(client).await;
            }
        }
    }
}

#[tokio::test]
async fn an_owner_that_enters_again_keeps_the_token() {
    for world in World::all() {
        let client = world.client().await;
        let owner = Owner::new();
        let mutex = client.fenced_mutex("name").owned_by(&owner);
        let outer = mutex.lock().await.unwrap();
        let (inner, again) = (mutex.lock().await.unwrap(), outer.reenter().unwrap());
        assert_eq!(inner.token(), outer.token());
        assert_eq!(again.token(), outer.token());
        assert_eq!(
            inner.release().await.unwrap(),
            Released::StillHeld { holds: 2 }
        );
        let token = outer.token();
        drop((outer, again));
        let next = client.fenced_mutex("name").lock().await.unwrap();
        assert!(next.token() > token);
    }
}

#[tokio::test]
async fn a_renewal_changes_no_token() {
    for world in World::all() {
        let client = world.client().await;
        let mutex = client.fenced_mutex("name").lease(900 * MS);
        let guard = mutex.lock().await.unwrap();
        let (token, mut events) = (guard.token(), client.events());
        for _ in 0..3 {
            let event = soon("a renewal", events.recv()).await.unwrap();
            assert!(matches!(event.kind, leasehold::EventKind::Renewed { .. }));
            assert_eq!(guard.token(), token);
        }
        let last = mutex.status().await.unwrap().token;
        assert_eq!(last, Some(token + 64), "none was given since");
    }
}

#[tokio::test]
async fn the_holder_after_one_that_expired_has_a_larger_token() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let mutex = one.fenced_mutex("name").fixed_lease(30 * MS);
        let guard = mutex.lock().await.unwrap();
        let next = soon("expired", other.fenced_mutex("name").lock()).await;
        assert!(next.unwrap().token() > guard.token());
        assert_eq!(guard.lost().await, LostReason::Expired);
    }
}

#[tokio::test]
async fn a_name_that_is_unlocked_by_force_goes_on_with_larger_tokens() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let (mutex, others) = (one.fenced_mutex("name"), other.fenced_mutex("name"));
        let first = mutex.lock().await.unwrap();
        assert!(others.force_unlock().await.unwrap());
        first.verify().await.unwrap_err();
        let second = mutex.lock().await.unwrap();
        assert!(second.token() > first.token());
        // To one that waits: the server's queue hands it over.
        let waiter = tokio::spawn(others.lock());
        until_listening(&mutex, 1).await;
        assert!(mutex.force_unlock().await.unwrap());
        let third = soon("handed over", waiter).await.unwrap().unwrap();
        assert!(third.token() > second.token());
    }
}

#[tokio::test]
async fn a_server_that_has_lost_the_token_goes_on_with_larger_ones() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.fenced_mutex("name");
        let tokens = Tokens::default();
        let losses: [&[&str]; 3] = [
            &["FLUSHALL"],
            &["DEL", TOKEN],
            // As an old replica would have it, or Redisson, if it is the first after a flush.
            &["SET", TOKEN, "7"],
        ];
        for loss in losses {
            contend(&mutex, &tokens, 3, 100).await;
            server.cli(loss);
        }
        contend(&mutex, &tokens, 3, 100).await;
        tokens.assert_growing(1200);
    }
}

#[tokio::test]
async fn a_clock_that_is_behind_the_last_token_counts_on_from_there() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.fenced_mutex("name");
        // A server whose clock was an hour ahead gave the last ones.
        let hour = 3_600_000_000_u64;
        let guard = mutex.lock().await.unwrap();
        let last = guard.token() + hour;
        release(guard).await;
        server.cli(&["SET", TOKEN, &last.to_string()]);
        let tokens = Tokens::default();
        contend(&mutex, &tokens, 5, 20).await;
        tokens.assert_growing(100);
        let now: u64 = redis::from_redis_value(server.cli(&["GET", TOKEN])).unwrap();
        assert_eq!(
            now,
            last + 100,
            "none is reserved, or it would never be caught up"
        );
    }
}

#[tokio::test]
async fn the_token_is_kept_for_the_longest_retention_that_was_asked_for() {
    const DAY_MS: i64 = 24 * 3_600_000;
    let kept = async |server: &Server, retention: Option<Option<Duration>>| {
        let mut builder = Client::builder().url(server.url());
        if let Some(retention) = retention {
            builder = builder.token_retention(retention);
        }
        let client = builder.connect().await.unwrap();
        release(client.fenced_mutex("name").lock().await.unwrap()).await;
        int(server, &["PTTL", TOKEN])
    };
    for server in servers() {
        let week = kept(&server, None).await;
        assert!((7 * DAY_MS - 10_000..=7 * DAY_MS).contains(&week), "{week}");
        let shorter = kept(&server, Some(Some(SECOND))).await;
        assert!((7 * DAY_MS - 10_000..=week).contains(&shorter), "{shorter}");
        assert_eq!(kept(&server, Some(None)).await, -1);
        assert_eq!(kept(&server, None).await, -1, "who keeps it for ever wins");
        server.cli(&["DEL", TOKEN]);
        let short = kept(&server, Some(Some(300 * MS))).await;
        assert!((1..=300).contains(&short), "{short}");
        wait_until_async(SOON, "it is forgotten", || keys(&server).is_empty()).await;
    }
}

#[tokio::test]
async fn a_retention_that_cannot_be_is_refused() {
    for bad in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let builder = Client::builder().url("memory:").token_retention(Some(bad));
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("token_retention"), "{error}");
    }
}

#[tokio::test]
async fn a_token_that_cannot_be_is_refused_and_the_name_stays_free() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.fenced_mutex("name");
        let bad: [&[&str]; 4] = [
            &["SET", TOKEN, "many"],
            &["SET", TOKEN, "1.5"],
            &["SET", TOKEN, "9223372036854775807"],
            &["LPUSH", TOKEN, "1"],
        ];
        for command in bad {
            server.cli(&["DEL", TOKEN]);
            server.cli(command);
            let error = mutex.lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            assert_eq!(int(&server, &["EXISTS", "name"]), 0);
        }
        // With a holder, and one that waits in its process and elsewhere: its release frees the name.
        server.cli(&["DEL", TOKEN]);
        let other = Client::connect(&server.url()).await.unwrap();
        let mutex = mutex.handoff(Handoff::off());
        let guard = mutex.lock().await.unwrap();
        let waiters = [
            tokio::spawn(mutex.lock()),
            tokio::spawn(other.fenced_mutex("name").lock()),
        ];
        until_listening(&mutex, 1).await;
        until_waiting(&mutex, 1).await;
        server.cli(&["SET", TOKEN, "many"]);
        release(guard).await;
        for waiter in waiters {
            let error = soon("an answer", waiter).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            assert!(error.to_string().contains(TOKEN), "{error}");
        }
        for client in [&client, &other] {
            wait_until_idle(client).await;
        }
        assert_eq!(keys(&server), [TOKEN]);
    }
}

/// Redisson's plain and fenced locks are at one key.
#[tokio::test]
async fn a_mutex_and_a_fenced_mutex_of_one_name_exclude_and_wake_each_other_on_a_server() {
    for server in servers() {
        let (one, other) = (
            Client::connect(&server.url()).await.unwrap(),
            Client::connect(&server.url()).await.unwrap(),
        );
        let (plain, fenced) = (one.mutex("name"), other.fenced_mutex("name"));
        for _ in 0..5 {
            let guard = plain.lock().await.unwrap();
            assert!(fenced.try_lock().await.unwrap().is_none());
            let waiter = tokio::spawn(fenced.lock());
            until_listening(&fenced, 1).await;
            release(guard).await;
            let guard = soon("woken", waiter).await.unwrap().unwrap();
            assert!(plain.try_lock().await.unwrap().is_none());
            let waiter = tokio::spawn(plain.lock());
            until_listening(&fenced, 1).await;
            release(guard).await;
            release(soon("woken", waiter).await.unwrap().unwrap()).await;
        }
        for client in [&one, &other] {
            wait_until_idle(client).await;
        }
        assert_eq!(keys(&server), [TOKEN]);
    }
}

#[tokio::test]
async fn a_name_of_another_kind_is_refused_with_both_kinds() {
    for world in World::all() {
        let client = world.client().await;
        let reader = client.rw_lock("name").read().await.unwrap();
        let mutex = client.fenced_mutex("name");
        for error in [
            mutex.lock().await.unwrap_err(),
            mutex.status().await.unwrap_err(),
            mutex.force_unlock().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("rw_lock") && text.contains("fenced_mutex"),
                "{text}"
            );
        }
        release(reader).await;
        let guard = mutex.lock().await.unwrap();
        let error = client.rw_lock("name").read().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        if matches!(world, World::Memory(_)) {
            let error = client.mutex("name").lock().await.unwrap_err().to_string();
            assert!(
                error.contains("held as a fenced_mutex, and not as a mutex"),
                "{error}"
            );
        }
        release(guard).await;
    }
}

#[tokio::test]
async fn a_request_whose_reply_is_lost_has_a_token_that_no_other_holder_had() {
    for world in World::all() {
        let network = Network::to(&world);
        let (far, near) = (network.client().await, world.client().await);
        let tokens = Tokens::default();
        let (mutex, others) = (far.fenced_mutex("name"), near.fenced_mutex("name"));
        // The server knows the scripts from here on, so a reply is the reply.
        tokens.add(mutex.lock().await.unwrap().token());
        wait_until_idle(&far).await;
        for lost in 1..4 {
            network.lose_replies(lost);
            let guard = mutex.lock().await.unwrap();
            tokens.add(guard.token());
            network.lose_replies(lost);
            release(guard).await;
            let guard = others.lock().await.unwrap();
            tokens.add(guard.token());
            // A place in the queue whose answer is lost, and a hand-over.
            network.lose_replies(lost);
            let waiter = tokio::spawn(mutex.lock());
            until_listening(&others, 1).await;
            release(guard).await;
            let guard = soon("handed over", waiter).await.unwrap().unwrap();
            tokens.add(guard.token());
            // Kept for the next task of the process, in a release whose answer is lost.
            let keeping = mutex
                .clone()
                .handoff(Handoff::new(1, Duration::from_micros(1)));
            release(guard).await;
            let guard = keeping.lock().await.unwrap();
            tokens.add(guard.token());
            let waiter = tokio::spawn(keeping.lock());
            until_waiting(&keeping, 1).await;
            network.lose_replies(lost);
            release(guard).await;
            let guard = soon("kept", waiter).await.unwrap().unwrap();
            tokens.add(guard.token());
            release(guard).await;
        }
        tokens.assert_growing(1 + 3 * 5);
    }
}
