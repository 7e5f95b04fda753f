//! Servers in memory, in virtual time: what a majority decides, and what becomes of the rest.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use leasehold::{Client, ClientBuilder, ErrorKind, LostReason, MemoryServer, Released};
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn servers(of: usize) -> Vec<MemoryServer> {
    (0..of).map(|_| MemoryServer::new()).collect()
}

fn builder(servers: &[MemoryServer]) -> ClientBuilder {
    Client::builder().quorum_memory(servers)
}

async fn client(servers: &[MemoryServer]) -> Client {
    builder(servers).connect().await.unwrap()
}

/// At how many servers the name is held.
fn held(servers: &[MemoryServer]) -> usize {
    let is_held = |it: &&MemoryServer| !it.names().is_empty();
    servers.iter().filter(is_held).count()
}

/// Until the servers, that are reached, have nothing left.
async fn until_nothing_is_held(servers: &[MemoryServer]) {
    let free = async {
        while held(servers) > 0 {
            sleep(MS).await;
        }
    };
    timeout(SECOND, free).await.expect("all servers are told");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_held_at_all_servers_and_given_back_at_all() {
    for of in [3, 5] {
        let servers = servers(of);
        let (one, other) = (client(&servers).await, client(&servers).await);
        let guard = one.mutex("name").lock().await.unwrap();
        sleep(MS).await; // a majority was enough
        assert_eq!(held(&servers), of);
        assert!(other.mutex("name").try_lock().await.unwrap().is_none());
        sleep(MS).await;
        let status = other.status("name").await.unwrap();
        assert_eq!(status.holders.len(), 1);
        assert_eq!(status.holders[0].owner, guard.owner());
        assert_eq!(status.votes.len(), of);
        for vote in &status.votes {
            let holder = vote.holder.as_ref().expect("it is held there");
            assert_eq!(holder.owner, guard.owner());
        }
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        until_nothing_is_held(&servers).await;
        drop(
            other
                .mutex("name")
                .try_lock()
                .await
                .unwrap()
                .expect("it is free"),
        );
        until_nothing_is_held(&servers).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_through_the_gate() {
    let servers = servers(5);
    let holder = client(&servers).await;
    let waiter = builder(&servers)
        .poll_every(3600 * SECOND)
        .connect()
        .await
        .unwrap();
    for round in 0..20 {
        let guard = holder.mutex("name").lock().await.unwrap();
        let mutex = waiter.mutex("name");
        let waits = tokio::spawn(async move { mutex.lock().await.unwrap() });
        while holder.status("name").await.unwrap().queue.is_empty() {
            sleep(MS).await;
        }
        let began = Instant::now();
        guard.release().await.unwrap();
        let guard = timeout(SECOND, waits).await.expect("it is told").unwrap();
        let took = began.elapsed();
        assert!(took < 100 * MS, "round {round}: {took:?}");
        guard.release().await.unwrap();
    }
    until_nothing_is_held(&servers).await;
}

#[tokio::test(start_paused = true)]
async fn many_tasks_of_several_clients_take_turns() {
    let servers = servers(5);
    for server in &servers {
        server.delay(MS);
    }
    let busy = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let client = client(&servers).await;
        for _ in 0..5 {
            let (mutex, busy) = (client.mutex("name"), busy.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = mutex.lock().await.unwrap();
                    assert!(!busy.swap(true, SeqCst), "two at once");
                    sleep(MS).await;
                    assert!(guard.is_valid());
                    busy.store(false, SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    let began = Instant::now();
    for task in tasks {
        timeout(60 * SECOND, task)
            .await
            .expect("all make progress")
            .unwrap();
    }
    let each = began.elapsed() / 150;
    assert!(each < 40 * MS, "{each:?} for each");
    until_nothing_is_held(&servers).await;
}

/// Ten pairs, each.
async fn pairs(client: &Client) -> Duration {
    let began = Instant::now();
    for _ in 0..10 {
        let guard = client.mutex("name").lock().await.unwrap();
        guard.release().await.unwrap();
    }
    began.elapsed() / 10
}

#[tokio::test(start_paused = true)]
async fn two_of_five_servers_may_be_silent_and_cost_a_pair_no_time() {
    let servers = servers(5);
    for server in &servers {
        server.delay(MS);
    }
    let client = client(&servers).await;
    let all = pairs(&client).await;
    for server in &servers[..2] {
        server.cut(true);
    }
    // The first finds the silence.
    drop(client.mutex("name").lock().await.unwrap());
    sleep(SECOND).await;
    let three = pairs(&client).await;
    assert!(three <= all.mul_f64(1.1), "{three:?}, of all {all:?}");
    for server in &servers[..2] {
        server.cut(false);
    }
    sleep(5 * SECOND).await;
    until_nothing_is_held(&servers).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_a_try_is_refused_in_time_and_leaves_nothing_behind() {
    let servers = servers(5);
    let client = client(&servers).await;
    for server in &servers[..3] {
        server.cut(true);
    }
    let began = Instant::now();
    let error = client.mutex("name").try_lock().await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
    assert!(error.to_string().contains("3 of 5"), "{error}");
    sleep(100 * MS).await;
    assert_eq!(held(&servers[3..]), 0);
    for server in &servers {
        server.cut(false);
    }
    sleep(5 * SECOND).await;
    until_nothing_is_held(&servers).await;
    drop(
        client
            .mutex("name")
            .try_lock()
            .await
            .unwrap()
            .expect("it is free"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_majority_is_gone_is_told_before_its_votes_end() {
    for round in 0..100_u32 {
        let servers = servers(5);
        let client = client(&servers).await;
        let lease = SECOND;
        let guard = client.mutex("name").lease(lease).lock().await.unwrap();
        // Somewhere between two renewals.
        sleep(lease * round / 100).await;
        let cut = Instant::now();
        for server in &servers[..3] {
            server.cut(true);
        }
        assert_eq!(guard.lost().await, LostReason::Expired);
        assert!(cut.elapsed() <= lease, "{:?}", cut.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_while_a_minority_is_gone() {
    let servers = servers(3);
    let client = client(&servers).await;
    let guard = client.mutex("name").lease(SECOND).lock().await.unwrap();
    servers[1].cut(true);
    sleep(10 * SECOND).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

/// A server restarts empty while a lock is held by a bare majority, and a rival asks at once. Whether two were valid.
async fn two_hold_after_a_restart(has_quarantine: bool) -> bool {
    let servers = servers(3);
    let make = || {
        builder(&servers)
            .persistent_servers(!has_quarantine)
            .connect()
    };
    let (holder, rival) = (make().await.unwrap(), make().await.unwrap());
    servers[2].cut(true);
    let guard = holder.mutex("name").lock().await.unwrap();
    servers[2].cut(false);
    sleep(3 * SECOND).await; // what was under way there is given back
    servers[2].expire("name");
    servers[1].restart_empty();
    let second = rival.mutex("name").try_lock_for(100 * MS).await;
    let both = second.is_ok_and(|it| it.is_some_and(|it| it.is_valid()));
    both && guard.is_valid()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_empty_gives_no_second_holder() {
    for _ in 0..100 {
        assert!(!two_hold_after_a_restart(true).await);
    }
}

/// So that the test above can see it.
#[tokio::test(start_paused = true)]
async fn without_the_quarantine_a_restart_gives_a_second_holder() {
    let mut found = 0;
    for _ in 0..30 {
        found += u32::from(two_hold_after_a_restart(false).await);
    }
    // Not where the coordinator is the server that remembers.
    assert!(found > 0);
}

#[tokio::test(start_paused = true)]
async fn after_the_quarantine_a_server_votes_again_and_holders_have_their_vote_back() {
    let servers = servers(3);
    let client = client(&servers).await;
    let guard = client.mutex("name").lock().await.unwrap();
    servers[0].restart_empty();
    sleep(11 * SECOND).await; // a renewal
    assert_eq!(servers[0].names(), ["name"], "the vote is asked for again");
    let status = client.status("name").await.unwrap();
    assert!(status.votes[0].quarantine.is_some());
    assert!(status.votes[1].quarantine.is_none());
    sleep(20 * SECOND).await;
    let status = client.status("name").await.unwrap();
    assert!(status.votes[0].quarantine.is_none());
    sleep(11 * SECOND).await;
    // Its vote counts: another may go.
    servers[1].cut(true);
    sleep(60 * SECOND).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn servers_that_all_restarted_say_for_how_long_they_have_no_vote() {
    let servers = servers(3);
    let client = client(&servers).await;
    servers.iter().for_each(MemoryServer::restart_empty);
    let error = client.mutex("name").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
    let said = error.to_string();
    assert!(said.contains("has no vote for 2"), "{said}");
    assert_eq!(held(&servers), 0);
    let began = Instant::now();
    let guard = client.mutex("name").lock().await.unwrap();
    assert!(began.elapsed() > 25 * SECOND);
    assert!(began.elapsed() < 30 * SECOND);
    drop(guard);
}

/// Trap 10: the first round is lost, and its release is late.
#[tokio::test(start_paused = true)]
async fn a_late_release_of_a_lost_round_takes_no_vote_of_the_next() {
    let servers = servers(3);
    let (one, other) = (client(&servers).await, client(&servers).await);
    // A server answers late: its ask and its release are under way together.
    servers[2].delay(150 * MS);
    let held = other.mutex("name").lock().await.unwrap();
    let first = one.mutex("name").try_lock().await.unwrap();
    assert!(first.is_none());
    held.release().await.unwrap();
    let guard = one.mutex("name").lock().await.unwrap();
    sleep(2 * SECOND).await; // all that is late has come
    servers[2].delay(Duration::ZERO);
    let status = one.status("name").await.unwrap();
    assert_eq!(status.holders[0].owner, guard.owner());
    for vote in &status.votes[..2] {
        let holder = vote.holder.as_ref().expect("no vote was taken");
        assert_eq!(holder.owner, guard.owner());
    }
    guard.release().await.unwrap();
    sleep(SECOND).await;
    until_nothing_is_held(&servers).await;
}

/// Trap 10: a server answers an ask after the release that followed it.
#[tokio::test(start_paused = true)]
async fn a_straggler_s_vote_after_the_release_is_given_back() {
    let servers = servers(3);
    let client = client(&servers).await;
    servers[0].cut(true); // its request waits there
    let guard = client.mutex("name").lock().await.unwrap();
    guard.release().await.unwrap();
    servers[0].cut(false);
    sleep(5 * SECOND).await;
    until_nothing_is_held(&servers).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_moves_to_another_gate_when_its_own_is_gone() {
    let servers = servers(3);
    let holder = client(&servers).await;
    let waiter = client(&servers).await;
    for gone in 0..3 {
        let guard = holder.mutex("name").lock().await.unwrap();
        let mutex = waiter.mutex("name");
        let waits = tokio::spawn(async move { mutex.lock().await.unwrap() });
        sleep(100 * MS).await;
        servers[gone].cut(true);
        sleep(15 * SECOND).await; // the watcher of the coordinator has looked, or found its silence
        guard.release().await.unwrap();
        let guard = timeout(15 * SECOND, waits)
            .await
            .expect("it goes on")
            .unwrap();
        servers[gone].cut(false);
        guard.release().await.unwrap();
        sleep(5 * SECOND).await;
        until_nothing_is_held(&servers).await;
    }
}

#[tokio::test(start_paused = true)]
async fn three_rivals_make_progress_while_two_servers_are_down() {
    let servers = servers(5);
    servers[0].cut(true);
    servers[3].cut(true);
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let client = client(&servers).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let guard = client.mutex("name").lock().await.unwrap();
                sleep(MS).await;
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        timeout(60 * SECOND, task)
            .await
            .expect("all make progress")
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_that_a_quorum_lacks_are_refused_with_the_reason() {
    let servers = servers(3);
    let client = client(&servers).await;
    let errors = [
        client.fenced_mutex("a").lock().await.err(),
        client.rw_lock("a").read().await.err(),
        client.fair_mutex("a").lock().await.err(),
        client.leased_semaphore("a").acquire().await.err(),
        client.semaphore("a").acquire().await.err(),
        client.latch("a").wait().await.err(),
        client.fenced_store("a").get("b").await.err(),
        client.fenced_mutex("a").status().await.err(),
    ];
    for error in errors {
        let error = error.expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("none on a quorum"), "{error}");
    }
    drop(client.spin_mutex("spin").lock().await.unwrap());
    drop(client.plain_mutex("plain").lock().await.unwrap());
    let both = client.multi_lock(["a", "b"]).lock().await.unwrap();
    drop(both);
    until_nothing_is_held(&servers).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_longer_than_a_server_has_no_vote_is_refused() {
    let servers = servers(3);
    let client = builder(&servers)
        .longest_lease(40 * SECOND)
        .connect()
        .await
        .unwrap();
    let mutex = client.mutex("name");
    drop(mutex.fixed_lease(40 * SECOND).lock().await.unwrap());
    let error = mutex.fixed_lease(41 * SECOND).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let guard = mutex.fixed_lease(SECOND).lock().await.unwrap();
    let error = guard.extend(41 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    guard.extend(40 * SECOND).await.unwrap();
    sleep(35 * SECOND).await;
    assert!(guard.is_valid());
    // Where clients say nothing, each takes 30 s for the longest of all.
    let quorum = || Client::builder().quorum_memory(&servers);
    let error = quorum().lease(45 * SECOND).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("longest_lease"), "{error}");
    let all_say_it = quorum().lease(45 * SECOND).longest_lease(60 * SECOND);
    all_say_it.connect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn too_few_servers_and_one_given_twice_are_refused() {
    let all = servers(3);
    for few in [&all[..0], &all[..1], &all[..2]] {
        let error = builder(few).connect().await.unwrap_err();
        assert!(error.to_string().contains("at least 3"), "{error}");
    }
    let twice = [all[0].clone(), all[1].clone(), all[0].clone()];
    let error = builder(&twice).connect().await.unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    let urls = ["redis://a/", "redis://b:7000/", "redis://A:6379/3"];
    let error = Client::builder().quorum(urls).connect().await.unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    let urls = ["redis://a/", "redis://b/", "redis-sentinel://c/?master=m"];
    let error = Client::builder().quorum(urls).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("promoted"), "{error}");
}

/// QB1: "not ours" ends a vote.
#[tokio::test(start_paused = true)]
async fn a_hold_of_a_bare_majority_is_lost_with_one_vote_and_leaves_nothing_behind() {
    let servers = servers(3);
    let client = client(&servers).await;
    servers[2].cut(true);
    let guard = client.mutex("name").lock().await.unwrap();
    assert!(servers[0].expire("name"));
    let began = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Replaced);
    assert!(began.elapsed() < 12 * SECOND, "{:?}", began.elapsed());
    sleep(SECOND).await;
    assert_eq!(held(&servers[..2]), 0);
}

/// QB1: it ends with the vote that is the second longest of three.
#[tokio::test(start_paused = true)]
async fn a_hold_ends_with_its_second_longest_vote_when_a_server_gave_one_away() {
    let servers = servers(3);
    let client = client(&servers).await;
    let began = Instant::now();
    let guard = client.mutex("name").lock().await.unwrap();
    sleep(5 * SECOND).await;
    servers[2].cut(true); // its vote lasts until 30 s, and is not renewed
    sleep(7 * SECOND).await; // renewed by two, until 40 s
    servers[0].expire("name");
    let other = Client::builder()
        .memory(&servers[0])
        .connect()
        .await
        .unwrap();
    let taken = other.mutex("name").lock().await.unwrap();
    guard.lost().await;
    let lasted = began.elapsed();
    assert!(lasted > 20 * SECOND && lasted < 30 * SECOND, "{lasted:?}");
    drop(taken);
}

/// QB7: a vote that a server forgot is asked for again, and the hold goes on.
#[tokio::test(start_paused = true)]
async fn a_vote_that_a_server_forgot_comes_back_and_is_needed() {
    let servers = servers(3);
    let client = client(&servers).await;
    let guard = client.mutex("name").lock().await.unwrap();
    servers[0].expire("name");
    sleep(11 * SECOND).await;
    assert_eq!(servers[0].names(), ["name"]);
    servers[1].cut(true);
    sleep(60 * SECOND).await;
    assert!(guard.is_valid());
}

/// QB6, QB7: a vote that came back during the quarantine does not count yet.
#[tokio::test(start_paused = true)]
async fn a_repaired_vote_does_not_count_during_the_quarantine() {
    let servers = servers(3);
    let builder = builder(&servers).longest_lease(120 * SECOND);
    let client = builder.connect().await.unwrap();
    let guard = client.mutex("name").lock().await.unwrap();
    sleep(SECOND).await;
    servers[0].restart_empty(); // no vote for two minutes
    sleep(11 * SECOND).await;
    assert_eq!(servers[0].names(), ["name"], "it is there");
    servers[1].cut(true); // one is left that may vote
    // The second longest vote is that of the server that was cut off.
    let lost = timeout(29 * SECOND, guard.lost()).await;
    assert_eq!(lost.expect("it ends with that vote"), LostReason::Expired);
}
