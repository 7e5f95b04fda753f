//! A prefix for names: to the server it is a part of them, and users do not see it.

use std::{sync::Arc, time::Duration};

use crate::common;
use crate::common::{
    World, keys,
    kinds::{ROWS, Row},
    release, soon, wait_until_idle,
};
use leasehold::{Client, ClientBuilder, ErrorKind, EventKind, MemoryServer, Owner, Part};
use leasehold_testkit::wait_until_async;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A client whose waiters look by themselves long after any test is over.
async fn patient(builder: ClientBuilder) -> Client {
    builder.poll_every(60 * SECOND).connect().await.unwrap()
}

/// Until a task of this client waits for a wake-up.
async fn until_it_waits(client: &Client) {
    wait_until_async(common::SOON, "it waits", || {
        let now = client.footprint();
        now.waiting > 0 && now.asking == 0
    })
    .await;
}

/// Runs a test for every kind, each on every backend, side by side.
async fn for_each<F: Future<Output = ()>>(test: impl Fn(Row, Arc<World>) -> F) {
    let tests = ROWS.iter().flat_map(|row| {
        let worlds = World::all().into_iter().map(Arc::new);
        worlds.map(|world| test(*row, world)).collect::<Vec<_>>()
    });
    futures_util::future::join_all(tests).await;
}

/// Whether the prefix ends here or there, and whether there is one: it is one name.
#[tokio::test]
async fn names_are_one_lock_if_they_are_one_with_their_prefixes() {
    for_each(|row, world| async move {
        let case = format!("{row:?} on {}", world.name());
        let plain = (patient(world.builder()).await, "app:a:x");
        let long = patient(world.builder().name_prefix("app:a:")).await;
        let short = patient(world.builder().name_prefix("app:")).await;
        row.prepare(&plain.0, plain.1).await;
        for ((one, ones), (other, others)) in [
            ((&plain.0, plain.1), (&short, "a:x")),
            ((&short, "a:x"), (&long, "x")),
            ((&long, "x"), (&plain.0, plain.1)),
        ] {
            let (lock, rival) = (row.lock(one, ones), row.rival(other, others));
            let guard = soon(&case, lock.lock()).await.unwrap();
            assert!(rival.try_lock().await.unwrap().is_none(), "{case}");
            let (here, there) = (lock.status().await, rival.status().await);
            assert_eq!((&*here.name, &*there.name), (ones, others), "{case}");
            let [here, there] =
                [here, there].map(|status| status.holder().map(|is| is.owner.clone()));
            assert_eq!((&here, here.is_some()), (&there, row.has_lease()), "{case}");

            // It is woken, or given the name, and does not look by itself.
            let waiting = tokio::spawn(rival.lock());
            until_it_waits(other).await;
            guard.release().await.unwrap();
            let guard = soon(&case, waiting).await.unwrap().unwrap();

            if row.has_lease() {
                assert!(lock.force_unlock().await.unwrap(), "{case}");
                assert!(guard.verify().await.is_err(), "{case}");
            }
            drop(guard);
        }
        // Without the prefix it is another name.
        row.prepare(&plain.0, "x").await;
        row.prepare(&long, "x").await;
        let both = (row.lock(&plain.0, "x"), row.lock(&long, "x"));
        let guards = (both.0.try_lock().await, both.1.try_lock().await);
        assert!(guards.0.unwrap().is_some() && guards.1.unwrap().is_some());
    })
    .await;
}

/// So a user of the server may be given the rights for one prefix.
#[tokio::test]
async fn every_key_and_channel_has_the_prefix() {
    for_each(|row, world| async move {
        let World::Server(server) = &*world else {
            return;
        };
        let clients = [
            patient(world.builder().name_prefix("app:")).await,
            patient(world.builder().name_prefix("app:")).await,
        ];
        row.prepare(&clients[0], "x").await;
        let (lock, rival) = (row.lock(&clients[0], "x"), row.rival(&clients[1], "x"));
        let guard = lock.lock().await.unwrap();
        let waiting = tokio::spawn(rival.lock());
        until_it_waits(&clients[1]).await;
        let is_prefixed = |text: &String| text.contains("app:x");
        let (stored, heard) = (keys(server), common::channels(server));
        assert!(stored.iter().all(is_prefixed), "{row:?}: {stored:?}");
        assert!(heard.iter().all(is_prefixed), "{row:?}: {heard:?}");
        assert!(
            !stored.is_empty() && (!heard.is_empty() || !row.listens()),
            "{row:?}"
        );
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        let stored = keys(server);
        assert!(stored.iter().all(is_prefixed), "{row:?}: {stored:?}");
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_latch_has_the_prefix() {
    for world in World::all() {
        let plain = patient(world.builder()).await;
        let prefixed = patient(world.builder().name_prefix("app:")).await;
        let latch = plain.latch("app:shards");
        assert!(latch.try_set_count(1).await.unwrap());
        let waiting = tokio::spawn(async move { latch.wait().await });
        until_it_waits(&plain).await;
        let latch = prefixed.latch("shards");
        assert_eq!(latch.name(), "shards");
        latch.count_down().await.unwrap();
        soon("the latch opens", waiting).await.unwrap().unwrap();
        wait_until_idle(&plain).await;
    }
}

#[tokio::test]
async fn data_and_its_fence_have_the_prefix() {
    for world in World::all() {
        let plain = world.client().await;
        let prefixed = world.builder().name_prefix("app:").connect().await.unwrap();
        let (store, same) = (prefixed.fenced_store("x"), plain.fenced_store("app:x"));
        let guard = prefixed.fenced_mutex("x").lock().await.unwrap();
        let token = guard.token();
        store.set("data", "41", token).await.unwrap();
        assert_eq!(same.get("app:data").await.unwrap().unwrap(), b"41");
        assert_eq!(same.get("data").await.unwrap(), None);
        same.set_field("app:hash", "field", "7", token)
            .await
            .unwrap();
        let read = store.get_field("hash", "field").await.unwrap();
        assert_eq!(read.unwrap(), b"7");

        // Its error names what its user knows, and so does that of another type.
        for error in [
            store.set("data", "40", token - 1).await.unwrap_err(),
            store
                .set_field("data", "field", "7", token)
                .await
                .unwrap_err(),
            store.set("x", "40", token).await.unwrap_err(),
        ] {
            let said = error.to_string();
            assert!(said.contains('"') && !said.contains("app"), "{said}");
        }
        let stale = same.set("app:data", "40", token - 1).await.unwrap_err();
        assert!(stale.to_string().contains("app:x"), "{stale}");
        if let World::Server(server) = &world {
            let stored = keys(server);
            assert!(stored.iter().all(|key| key.contains("app:")), "{stored:?}");
        }
    }
    // Together with the prefix it is a key of this library.
    let prefixed = Client::builder().memory(&MemoryServer::new());
    let prefixed = prefixed.name_prefix("lease").connect().await.unwrap();
    let refused = prefixed.fenced_store("x").get("hold:x").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn users_see_no_prefix() {
    let server = MemoryServer::new();
    let builder = || Client::builder().memory(&server).name_prefix("app:");
    let client = builder().connect().await.unwrap();
    let mut events = client.events();
    let owner = Owner::new();
    let mutex = client.mutex("x").owned_by(&owner);
    assert_eq!(mutex.name(), "x");
    let guard = mutex.lock().await.unwrap();
    assert_eq!(
        (guard.name(), &*client.status("x").await.unwrap().name),
        ("x", "x")
    );
    assert_eq!(server.names(), ["app:x"], "the server does");
    let again = mutex.reentrant(false).lock().await.unwrap_err();
    server.fail(1);
    let not_sent = mutex.status().await.unwrap_err();
    assert!(server.expire("app:x"));
    let lost = guard.verify().await.unwrap_err();
    let multi = client.multi_lock(["y", "x"]);
    assert_eq!(multi.names(), ["x", "y"]);
    let twice = client.multi_lock(["y", "y"]).lock().await.unwrap_err();
    for error in [again, not_sent, lost, twice] {
        let said = error.to_string();
        assert!(said.contains('"') && !said.contains("app"), "{said}");
    }
    let debugged = format!("{:?} {guard:?} {multi:?}", client.mutex("x"));
    assert!(!debugged.contains("app"), "{debugged}");
    let first = events.recv().await.unwrap();
    assert!(matches!(first.kind, EventKind::Asked));
    assert_eq!(&*first.name, "x");
}

/// Two clients that took names in the orders of what their users call them would wait in a circle.
#[tokio::test]
async fn a_multi_lock_takes_names_in_the_order_that_the_server_sees() {
    for world in World::all() {
        let plain = patient(world.builder()).await;
        let a = patient(world.builder().name_prefix("a:")).await;
        let b = patient(world.builder().name_prefix("b:")).await;
        let both = a.multi_lock([Part::from(b.mutex("1")), Part::from("2")]);
        assert_eq!(both.names(), ["2", "1"], "a:2 is before b:1");
        let guard = both.lock().await.unwrap();
        let first = plain.mutex("a:2");
        assert!(first.try_lock().await.unwrap().is_none());
        assert!(
            plain
                .mutex("b:1")
                .try_lock_for(500 * MS)
                .await
                .unwrap()
                .is_none()
        );
        guard.release().await.unwrap();

        let twice = a.multi_lock([Part::from("x"), plain.mutex("a:x").into()]);
        let refused = soon("one name", twice.lock()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        // Two names that their users call alike stay two.
        let alike = a.multi_lock([Part::from("x"), b.mutex("x").into()]);
        let guard = soon("two names", alike.lock()).await.unwrap();
        assert_eq!(guard.names(), ["x", "x"]);
        guard.release().await.unwrap();
        release(first.lock().await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_prefix_under_which_there_can_be_no_name_is_refused_at_once() {
    let long = "x".repeat(1024);
    for prefix in ["leasehold:", "a{", "a}", "{}", &long] {
        let builder = Client::builder().url("redis://127.0.0.1:1/");
        let refused = builder.name_prefix(prefix).connect_lazily().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        let said = refused.to_string();
        assert!(said.contains("name_prefix"), "{said}");
    }
    let none = Client::builder()
        .memory(&MemoryServer::new())
        .name_prefix("");
    let guard = none
        .connect()
        .await
        .unwrap()
        .mutex("x")
        .lock()
        .await
        .unwrap();
    release(guard).await;
}
