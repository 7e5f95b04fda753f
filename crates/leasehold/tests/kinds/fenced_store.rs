//! The resource's half: data that is written under no stale token.

use std::time::Duration;

use crate::common::{World, int, release, servers, soon};
use futures_util::{StreamExt, stream};
use leasehold::{Client, Error, ErrorKind, FencedStore};

const MS: Duration = Duration::from_millis(1);

#[track_caller]
fn assert_stale(written: Result<(), Error>, token: u64, newest: u64) {
    match written {
        Err(Error::Stale {
            fence,
            token: told,
            newest: seen,
        }) => assert_eq!((&*fence, told, seen), ("name", token, newest)),
        other => panic!("{other:?} instead of stale"),
    }
}

async fn store(world: &World) -> FencedStore {
    world.client().await.fenced_store("name")
}

#[tokio::test]
async fn nothing_is_written_under_a_token_older_than_the_newest_seen() {
    for world in World::all() {
        let store = store(&world).await;
        store.set("text", "5", 5).await.unwrap();
        store.set("text", "5 again", 5).await.unwrap();
        assert_stale(store.set("text", "4", 4).await, 4, 5);
        assert_eq!(store.get("text").await.unwrap().unwrap(), b"5 again");

        // The name has one fence for all its keys, whatever is done with them.
        store.set_field("hash", "a", "7", 7).await.unwrap();
        assert_stale(store.set("text", "6", 6).await, 6, 7);
        assert_stale(store.set_field("hash", "a", "6", 6).await, 6, 7);
        assert_stale(store.delete_field("hash", "a", 6).await, 6, 7);
        assert_stale(store.delete("text", 6).await, 6, 7);
        assert_eq!(store.get("text").await.unwrap().unwrap(), b"5 again");
        assert_eq!(store.get_field("hash", "a").await.unwrap().unwrap(), b"7");

        store.delete_field("hash", "a", 8).await.unwrap();
        assert_eq!(store.get_field("hash", "a").await.unwrap(), None);
        store.delete("text", 9).await.unwrap();
        assert_eq!(store.get("text").await.unwrap(), None);
        assert_stale(store.set("text", "8", 8).await, 8, 9);
    }
}

#[tokio::test]
async fn data_that_is_set_for_a_time_ends_then_unless_it_is_set_again() {
    for world in World::all() {
        let store = store(&world).await;
        let get = async |key: &str| store.get(key).await.unwrap();
        store.set_for("short", "1", 100 * MS, 5).await.unwrap();
        store.set_for("kept", "1", 100 * MS, 5).await.unwrap();
        store.set_for("longer", "1", 100 * MS, 5).await.unwrap();
        assert!(get("short").await.is_some());
        assert_stale(store.set_for("short", "0", MS, 4).await, 4, 5);
        store.set("kept", "2", 5).await.unwrap();
        store
            .set_for("longer", "2", 3_600_000 * MS, 6)
            .await
            .unwrap();
        tokio::time::sleep(150 * MS).await;
        assert_eq!(get("short").await, None);
        assert_eq!(get("kept").await.unwrap(), b"2", "a set without a time");
        assert_eq!(get("longer").await.unwrap(), b"2");
        for (time, limit) in [(Duration::ZERO, "1ms"), (MS * 86_400_000 * 367, "366d")] {
            let refused = store.set_for("short", "1", time, 6).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            let told = refused.to_string();
            assert!(told.contains("time is") && told.contains(limit), "{told}");
            assert!(told.contains("set() it without an end"), "{told}");
        }
        assert_eq!(get("short").await, None);
    }
}

#[tokio::test]
async fn names_have_fences_of_their_own() {
    for world in World::all() {
        let client = world.client().await;
        client.fenced_store("name").set("a", "9", 9).await.unwrap();
        // A name in braces shares Redisson's keys with the name inside, and none of ours.
        for other in ["other", "{name}"] {
            let store = client.fenced_store(other);
            store.set("b", "1", 1).await.unwrap();
        }
    }
}

#[tokio::test]
async fn any_bytes_are_kept_as_they_are() {
    for world in World::all() {
        let store = store(&world).await;
        let bytes: Vec<u8> = (0..=255).collect();
        store.set("key", &bytes, 1).await.unwrap();
        assert_eq!(store.get("key").await.unwrap().unwrap(), bytes);
        store.set_field("hash", "ünïcode", "", 1).await.unwrap();
        let empty = store.get_field("hash", "ünïcode").await.unwrap();
        assert_eq!(empty.unwrap(), b"");
    }
}

#[tokio::test]
async fn data_of_another_type_is_left_alone() {
    for world in World::all() {
        let store = store(&world).await;
        store.set("text", "text", 1).await.unwrap();
        store.set_field("hash", "a", "b", 1).await.unwrap();
        for error in [
            store.set_field("text", "a", "b", 1).await.unwrap_err(),
            store.delete_field("text", "a", 1).await.unwrap_err(),
            store.get("hash").await.unwrap_err(),
            store.get_field("text", "a").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        }
        assert_eq!(store.get("text").await.unwrap().unwrap(), b"text");
        // As Redis does.
        store.set("hash", "text", 1).await.unwrap();
        assert_eq!(store.get("hash").await.unwrap().unwrap(), b"text");
    }
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    for world in World::all() {
        let store = store(&world).await;
        let client = world.client().await;
        let guard = client.fenced_mutex("name").lock().await.unwrap();
        for key in [
            "",
            "name",
            "redisson_lock_token:{name}",
            "leasehold:{name}:fence",
        ] {
            for error in [
                store.set(key, "value", guard.token()).await.unwrap_err(),
                store
                    .set_field(key, "f", "v", guard.token())
                    .await
                    .unwrap_err(),
                store.delete(key, guard.token()).await.unwrap_err(),
                store
                    .delete_field(key, "f", guard.token())
                    .await
                    .unwrap_err(),
                store.get(key).await.unwrap_err(),
                store.get_field(key, "f").await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("{key:?}")), "{text}");
                assert!(text.contains("order:42:state"), "a remedy: {text}");
            }
        }
        guard.verify().await.unwrap();
        let other = world.client().await.fenced_mutex("name");
        assert!(other.try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        for token in [0, 1 << 53, u64::MAX] {
            let error = store.set("key", "value", token).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let text = error.to_string();
            assert!(text.contains(&token.to_string()), "{text}");
        }
        let nameless = world.client().await.fenced_store("");
        let error = nameless.set("key", "value", 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(store.get("key").await.unwrap(), None);
    }
}

#[tokio::test]
async fn the_fence_outlives_its_last_write_by_the_retention() {
    const FENCE: &str = "leasehold:{name}:fence";
    for server in servers() {
        let builder = || Client::builder().url(server.url());
        let week = builder().connect().await.unwrap().fenced_store("name");
        week.set("key", "1", 1).await.unwrap();
        let left = int(&server, &["PTTL", FENCE]);
        assert!((604_790_000..=604_800_000).contains(&left), "{left}");
        let short = builder().token_retention(Some(MS)).connect().await.unwrap();
        short.fenced_store("name").set("key", "2", 2).await.unwrap();
        assert!(int(&server, &["PTTL", FENCE]) > 604_700_000);
        let ever = builder().token_retention(None).connect().await.unwrap();
        ever.fenced_store("name").set("key", "3", 3).await.unwrap();
        assert_eq!(int(&server, &["PTTL", FENCE]), -1);
        week.set("key", "4", 4).await.unwrap();
        assert_eq!(int(&server, &["PTTL", FENCE]), -1);
        assert_stale(week.set("key", "3", 3).await, 3, 4);
    }
}

/// A holder that pauses past the end of its lease, and then writes.
#[tokio::test]
async fn a_late_write_of_a_paused_holder_is_refused_200_of_200() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let rounds = (0..200).map(|round| {
            let (one, other) = (one.clone(), other.clone());
            async move {
                let name = format!("name {round}");
                let data = format!("data {round}");
                let mutex = one.fenced_mutex(&name).fixed_lease(200 * MS);
                let paused = mutex.lock().await.unwrap();
                let store = one.fenced_store(&name);
                store.set(&data, "begun", paused.token()).await.unwrap();
                // It hears nothing, and does not look. The next has the name when the lease ends.
                let next = soon("the next", other.fenced_mutex(&name).lock()).await;
                let next = next.unwrap();
                let theirs = other.fenced_store(&name);
                theirs.set(&data, "theirs", next.token()).await.unwrap();
                let late = store.set(&data, "late", paused.token()).await;
                let kept = theirs.get(&data).await.unwrap().unwrap() == b"theirs";
                release(next).await;
                kept && late.is_err_and(|error| error.kind() == ErrorKind::Stale)
            }
        });
        let refused: Vec<bool> = stream::iter(rounds).buffer_unordered(20).collect().await;
        let refused = refused.into_iter().filter(|refused| *refused).count();
        assert_eq!(refused, 200, "{}", world.name());
    }
}
