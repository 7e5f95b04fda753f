//! A policy that cannot be had is refused before anything is sent.

use std::time::Duration;

use leasehold::{Client, Durability, Error, MemoryServer};

use super::replicated::{Replicated, flavors};

const ONE: Durability = Durability::Replicas(1);

/// Nothing is sent for it.
fn invalid<T>(answer: Result<T, Error>, words: &[&str]) {
    let Err(error @ Error::Invalid(_)) = answer.map(drop) else {
        panic!("it is not refused: {words:?}");
    };
    let said = error.to_string();
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

#[tokio::test]
async fn memory_and_a_quorum_refuse_a_policy_with_the_reason() {
    let server = MemoryServer::new();
    let builder = Client::builder().memory(&server).durability(ONE);
    invalid(builder.connect().await, &["Replicas(1)", "memory"]);
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let mutex = client.mutex("name").durability(Durability::Aof);
    invalid(mutex.try_lock().await, &["Aof", "memory", "Primary"]);
    assert!(server.names().is_empty());

    let quorum = [(); 3].map(|()| MemoryServer::new());
    let builder = Client::builder().quorum_memory(&quorum);
    let builder = builder.durability(Durability::Majority);
    invalid(builder.connect().await, &["Majority", "quorum"]);
}

#[tokio::test]
async fn settings_that_mean_nothing_are_refused() {
    let builder = || Client::builder().url("redis://127.0.0.1:1/");
    let none = builder().durability(Durability::Replicas(0));
    invalid(none.connect_lazily(), &["Replicas(0)", "at least 1"]);
    let none = builder().durability_timeout(Duration::ZERO);
    invalid(none.connect_lazily(), &["durability_timeout", "1ms", "1s"]);
    let long = builder().durability_timeout(Duration::from_secs(61));
    invalid(long.connect_lazily(), &["durability_timeout", "1m"]);
}

#[tokio::test]
async fn fixed_leases_and_permits_without_leases_are_refused() {
    let group = Replicated::start(flavors()[0], 1);
    let client = group.builder().durability(ONE).connect().await.unwrap();
    let fixed = client.mutex("name").fixed_lease(Duration::from_secs(5));
    invalid(fixed.try_lock().await, &["fixed lease", "max_hold"]);
    let semaphore = client.semaphore("permits").permits(2);
    invalid(semaphore.try_acquire().await, &["semaphore", "lease"]);
    let plain = fixed.durability(Durability::Primary);
    assert!(plain.try_lock().await.unwrap().is_some());
}

/// A majority of how many it cannot be known, and of one would be a promise of nothing.
#[tokio::test]
async fn majority_is_refused_where_the_server_does_not_say_how_many_replicas_it_has() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 2);
        let acl = "SETUSER blind on >pw ~* &* +@all -info";
        let acl: Vec<&str> = ["ACL"].into_iter().chain(acl.split(' ')).collect();
        group.primary.cli(&acl);
        let blind = || group.builder().username("blind").password("pw");
        let refused = |error: Error| {
            assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
            let said = error.to_string();
            for word in ["Majority", "+info", "Replicas(n)"] {
                assert!(said.contains(word), "{flavor}: {said}");
            }
        };
        let connected = blind().durability(Durability::Majority).connect().await;
        refused(connected.unwrap_err());
        let client = blind().connect().await.unwrap();
        let mutex = client.mutex("name");
        let locked = mutex.durability(Durability::Majority).lock().await;
        refused(locked.unwrap_err());
        assert!(mutex.durability(ONE).lock().await.is_ok());
        group.primary.cli(&["ACL", "SETUSER", "blind", "+info"]);
        let locked = mutex.durability(Durability::Majority).lock().await;
        assert!(locked.is_ok(), "{flavor}: {locked:?}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_is_refused_when_the_client_connects_or_first_asks() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 1);
        group.primary.cli(&[
            "ACL", "SETUSER", "weak", "on", ">pw", "~*", "&*", "+@all", "-wait",
        ]);
        let weak = || group.builder().username("weak").password("pw");
        let refused = |answer: Result<(), Error>, words: [&str; 2]| match answer {
            Err(error @ Error::Rejected { .. }) => {
                let said = error.to_string();
                assert!(
                    words.iter().all(|word| said.contains(word)),
                    "{flavor}: {said}"
                );
            }
            other => panic!("{flavor}: {other:?}"),
        };
        let connected = weak().durability(ONE).connect().await;
        refused(connected.map(drop), ["wait", "docs/keys.md"]);
        let client = weak().connect().await.unwrap();
        let mutex = client.mutex("name");
        let locked = mutex.durability(ONE).lock().await;
        refused(locked.map(drop), ["wait", "docs/keys.md"]);
        let calls = group.primary.calls();
        assert_eq!(
            calls.get("hset").or(calls.get("hincrby")),
            None,
            "{calls:?}"
        );
        mutex.run(async {}).await.unwrap();

        // No append-only file, or a server that is too old for it.
        let connected = group.builder().durability(Durability::Aof).connect().await;
        refused(connected.map(drop), ["WAITAOF", "Replicas(n)"]);
    }
}
