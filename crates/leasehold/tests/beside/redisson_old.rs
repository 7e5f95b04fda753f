//! Beside older Redissons, which most shops run: 3.16.4 and 3.38.0. Each kind that they have, in short; what differs from the newest, in
//! full (docs/from-redisson.md has the list).

use std::time::{Duration, Instant};

use crate::common::{
    few_or,
    redisson::{OLD, Redisson},
};
use futures_util::future::join_all;
use leasehold::{Client, ReadGuard, Released};
use leasehold_testkit::{Flavor, Proxy, Server, wait_until_async};
use tokio::time::sleep;

/// Java's `lockWatchdogTimeout`, and what ours says of it.
const WATCHDOG: Duration = Duration::from_secs(3);

/// Looks at the guard and at the server until a writer is in, for so long at most. A guard that is valid after that has seen both valid.
async fn writes_beside(
    writer: &Client,
    name: String,
    guard: &ReadGuard,
    most: Duration,
) -> Result<(), String> {
    let began = Instant::now();
    while began.elapsed() < most {
        if let Some(writes) = writer.rw_lock(&name).try_write().await.unwrap() {
            if guard.is_valid() && writes.is_valid() {
                let left = guard.remaining();
                return Err(format!(
                    "{name}: a writer is in, and the reader valid for {left:?} more"
                ));
            }
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Before 4.4.0 the watchdog of a Java reader sets the lease of every reader to its own length, and 4.x that of the hash.
async fn readers_beside(version: &str, rounds: usize) {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.addr());
    let client_of = |url: String| {
        let builder = Client::builder().url(url).redisson_watchdog(WATCHDOG);
        builder.connect()
    };
    let reader = client_of(server.url()).await.unwrap();
    let cut_off = client_of(proxy.url()).await.unwrap();
    let writer = client_of(server.url()).await.unwrap();
    let mut java = Redisson::start_old(version, &server, WATCHDOG).await;

    let long = 20 * WATCHDOG;
    let refused = reader.rw_lock("fixed").fixed_lease(long).read().await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("redisson_watchdog to read, 3s"),
        "{refused}"
    );
    let mut guards = Vec::new();
    for round in 0..rounds {
        for end in ["leaves", "dies"] {
            // Java is there before ours whose lease is fixed, so that much of it is left for the rest.
            for (form, client) in [("renewed", &reader), ("cut-off", &cut_off)] {
                let name = format!("{form}-{end}-{round}");
                let guard = client.rw_lock(&name).lease(long).read().await.unwrap();
                assert_eq!(java.obey(&format!("read lock {name}")).await, "locked");
                guards.push((name, end, guard));
            }
            let name = format!("fixed-{end}-{round}");
            assert_eq!(java.obey(&format!("read lock {name}")).await, "locked");
        }
    }
    for round in 0..rounds {
        for end in ["leaves", "dies"] {
            let name = format!("fixed-{end}-{round}");
            let lock = reader.rw_lock(&name).fixed_lease(WATCHDOG);
            guards.push((name, end, lock.read().await.unwrap()));
        }
    }
    proxy.stall(None);
    sleep(WATCHDOG / 2).await; // Java renews once at least: the time itself is what is tested
    for (name, end, _) in &guards {
        if *end == "leaves" {
            assert_eq!(java.obey(&format!("read unlock {name}")).await, "unlocked");
        }
    }
    java.kill();
    let most = 2 * WATCHDOG;
    let seen = guards
        .iter()
        .map(|(name, _, guard)| writes_beside(&writer, name.clone(), guard, most));
    let both: Vec<_> = join_all(seen)
        .await
        .into_iter()
        .filter_map(Result::err)
        .collect();
    let asked = guards.len();
    assert!(
        both.is_empty(),
        "{version}: {} of {asked}: {both:#?}",
        both.len()
    );
    for (name, _, guard) in guards {
        let lasts = name.starts_with("renewed");
        assert_eq!(guard.is_valid(), lasts, "{version}, {name}");
    }
    proxy.heal();
}

#[tokio::test]
async fn a_reader_of_java_cuts_no_reader_of_ours_short() {
    let rounds = few_or(3, 20);
    let all = OLD.map(|version| readers_beside(version, rounds));
    join_all(all).await;
}

/// The ids of permits are text before 3.17, and 16 bytes since. Each side counts those of the other in either form; a JVM finds one of ours
/// by its id in its own.
#[tokio::test]
async fn permits_are_counted_released_and_extended_in_either_form_of_their_ids() {
    let long = Duration::from_secs(30);
    let server = Server::start(Flavor::Redis);
    for (version, as_text) in [(OLD[0], true), (OLD[1], false)] {
        let mut java = Redisson::start_old(version, &server, long).await;
        let builder = Client::builder().url(server.url());
        let client = builder.text_permit_ids(as_text).connect().await.unwrap();
        let semaphore = client.leased_semaphore(version).permits(4);
        let two = semaphore.acquire_many(2).await.unwrap();
        let ours = semaphore.acquire().await.unwrap();
        let theirs = java
            .obey(&format!("permits {version} acquire 1 30000"))
            .await;
        let holders = semaphore.status().await.unwrap().holders;
        let mut owners: Vec<_> = holders.iter().map(|held| held.owner.clone()).collect();
        owners.sort_unstable();
        let mut ids = [theirs.clone(), ours.owner(), two.owner()];
        ids.sort_unstable();
        assert_eq!(owners, ids, "{version}");
        assert!(semaphore.try_acquire().await.unwrap().is_none());

        for permit in [&ours.owner(), &theirs] {
            let extended = java
                .obey(&format!("permits {version} extend {permit} 60000"))
                .await;
            assert_eq!(extended, "true", "{version}, {permit}");
        }
        assert!(ours.verify().await.unwrap() > long, "{version}");
        assert!(two.verify().await.unwrap() <= long, "{version}");
        for permit in [&ours.owner(), &theirs] {
            let released = java
                .obey(&format!("permits {version} release {permit}"))
                .await;
            assert_eq!(released, "released", "{version}");
        }
        assert!(ours.verify().await.is_err(), "{version}");
        assert_eq!(two.release().await.unwrap(), Released::Freed);
        assert_eq!(semaphore.available_permits().await.unwrap(), 4, "{version}");
    }
}

/// Before 3.32 a Java thread that waits for a fair lock sleeps until a message (redisson#4705). If the holder dies, none sends one; a
/// waiter of ours learns of the end, and does.
#[tokio::test]
async fn where_a_fair_holder_dies_a_waiter_of_ours_wakes_java_before_it() {
    const LEASE: Duration = Duration::from_secs(2);
    let server = Server::start(Flavor::Redis);
    let client = Client::connect(&server.url()).await.unwrap();
    let mut java = Redisson::start_old(OLD[0], &server, Duration::from_secs(30)).await;
    let fair = client.fair_mutex("name");
    let dies = fair.fixed_lease(LEASE).lock().await.unwrap();
    dies.detach();
    java.order("fair lock name");
    let heard = || {
        let channels = server.cli(&["PUBSUB", "CHANNELS", "redisson_lock__channel:{name}:*"]);
        redis::from_redis_value::<Vec<String>>(channels)
            .unwrap()
            .len()
            == 1
    };
    wait_until_async(LEASE, "Redisson waits", heard).await;
    let behind = tokio::spawn(fair.lock());
    assert_eq!(java.answer().await, "locked");
    assert!(!behind.is_finished(), "it came later");
    assert_eq!(java.obey("fair unlock name").await, "unlocked");
    behind.await.unwrap().unwrap().release().await.unwrap();
}
