//! Servers that are far away, and how long one of them may take.

use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error, Released};
use leasehold_testkit::Primaries;

use crate::common::{
    flavors,
    late::{in_time, unless_late_async},
    soon,
};

/// There, and as much back.
const WAY: Duration = Duration::from_millis(150);

fn builder(servers: &Primaries) -> ClientBuilder {
    Client::builder()
        .quorum(servers.urls())
        .persistent_servers(true)
}

#[tokio::test]
async fn five_servers_that_are_far_away_give_a_lock_in_two_rounds_and_a_waiter_has_it_next() {
    for flavor in flavors(0) {
        unless_late_async("a lock", 2 * 2 * WAY, async || {
            let servers = Primaries::start(5, flavor).behind_proxies();
            let far = |way| (0..5).for_each(|at| servers.proxy(at).delay(way));
            far(WAY);
            let client = soon("the client", builder(&servers).connect())
                .await
                .unwrap();
            let began = Instant::now();
            let guard = soon("a lock", client.mutex("name").lock()).await.unwrap();
            let took = began.elapsed();
            // A third round for a server that does not know the script yet.
            in_time(took, 3 * 2 * WAY)?;
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            let began = Instant::now();
            let guard = soon("a lock", client.mutex("name").lock()).await.unwrap();
            let took = began.elapsed();
            in_time(took, 2 * 2 * WAY)?;
            let other = builder(&servers).connect().await.unwrap();
            let mutex = other.mutex("name");
            let waiting = tokio::spawn(async move { mutex.lock().await });
            tokio::time::sleep(8 * WAY).await;
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            let waited = soon("the waiter", waiting).await.unwrap().unwrap();
            assert_eq!(waited.release().await.unwrap(), Released::Freed);
            far(Duration::ZERO);
            Ok(())
        })
        .await;
    }
}

/// The time is the user's, and the error says what would be enough.
#[tokio::test]
async fn servers_that_are_farther_away_than_they_may_be_are_said_to_be() {
    let allowed = WAY;
    for flavor in flavors(1) {
        let servers = Primaries::start(3, flavor).behind_proxies();
        (0..3).for_each(|at| servers.proxy(at).delay(WAY));
        let client = builder(&servers).server_timeout(allowed).connect();
        let client = soon("the client", client).await.unwrap();
        let said = async |name: &str| match client.mutex(name).try_lock().await {
            Err(error @ Error::Ambiguous { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        };
        // It asks more than once: by then they have answered, too late.
        let far = said("name").await;
        assert!(
            far.contains("has not answered within 150ms (server_timeout)"),
            "{far}"
        );
        let took = far
            .split("and took ")
            .nth(1)
            .and_then(|it| it.split("ms").next());
        let took = took.and_then(|took| took.parse::<u64>().ok());
        assert!(took.is_some_and(|took| (300..600).contains(&took)), "{far}");
        assert!(far.contains("set a longer server_timeout"), "{far}");
        for (timeout, lease) in [(0, 30), (1, 3), (3, 30)] {
            let builder = builder(&servers).lease(Duration::from_secs(lease));
            let timeout = Duration::from_millis(timeout * 1001);
            let refused = builder.server_timeout(timeout).connect().await.unwrap_err();
            let refused = refused.to_string();
            assert!(
                refused.contains("server_timeout") && refused.contains("a third"),
                "{refused}"
            );
        }
    }
}

/// A round is decided by those that answer: the time that one may take is for servers that are far away.
#[tokio::test]
async fn a_silent_server_costs_a_round_of_near_ones_no_more_than_before() {
    for flavor in flavors(0) {
        let servers = Primaries::start(3, flavor).behind_proxies();
        let client = builder(&servers).connect().await.unwrap();
        let names: Vec<String> = (0..12).map(|name| format!("name:{name}")).collect();
        for name in &names {
            let guard = client.mutex(name.as_str()).lock().await.unwrap();
            guard.release().await.unwrap();
        }
        servers.proxy(0).black_hole(None);
        // Of a third of the names it is the coordinator.
        let mut longest = Duration::ZERO;
        for name in &names {
            let began = Instant::now();
            let guard = soon("a lock", client.mutex(name.as_str()).lock())
                .await
                .unwrap();
            longest = longest.max(began.elapsed());
            guard.release().await.unwrap();
        }
        assert!(longest < Duration::from_millis(500), "{longest:?}");
        servers.proxy(0).heal();
    }
}
