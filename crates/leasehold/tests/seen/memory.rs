//! The memory backend misbehaves on demand, and what a program sees of it is what it would see of a server.

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common;
use crate::common::wait_until_idle;
use leasehold::{Client, ErrorKind, EventKind, LEASE_DEFAULT, LostReason, MemoryServer, Released};
use tokio::time::{Instant, advance};

const SECOND: Duration = Duration::from_secs(1);

async fn client_of(server: &MemoryServer) -> Client {
    Client::builder().memory(server).connect().await.unwrap()
}

async fn world() -> (MemoryServer, Client) {
    let server = MemoryServer::new();
    let client = client_of(&server).await;
    (server, client)
}

#[tokio::test(start_paused = true)]
async fn dropped_replies_are_asked_for_again_and_nothing_is_done_twice() {
    let (server, client) = world().await;
    server.drop_replies(3);
    let guard = client.mutex("name").lock().await.unwrap();
    assert_eq!(server.names(), ["name"]);
    server.drop_replies(3);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    assert_eq!(server.names(), [""; 0]);
    // For ever: told after the patience of a caller that asks once.
    server.drop_replies(usize::MAX);
    let began = Instant::now();
    let error = client.mutex("name").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert!(error.to_string().contains("drop_replies"), "{error}");
    assert!(began.elapsed() >= 2 * SECOND && began.elapsed() < 4 * SECOND);
    server.drop_replies(0);
    wait_until_idle(&client).await;
    assert_eq!(
        server.names(),
        [""; 0],
        "what it may have taken is given back"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_operations_are_tried_again_and_change_nothing() {
    let (server, client) = world().await;
    server.fail(2);
    let guard = client.mutex("name").lock().await.unwrap();
    server.fail(2);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    server.fail(usize::MAX);
    let wait = client.mutex("name").try_lock_for(10 * SECOND);
    let error = wait.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
    assert!(error.to_string().contains("MemoryServer::fail"), "{error}");
    assert_eq!(server.names(), [""; 0]);
    server.fail(0);
    wait_until_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_to_be_sent_is_not_taken_back_and_goes_on_in_the_background() {
    let (server, client) = world().await;
    let guard = client.mutex("name").lock().await.unwrap();
    server.fail(usize::MAX);
    let free_within = match guard.release().await.unwrap() {
        Released::Unconfirmed { free_within } => free_within,
        other => panic!("{other:?}"),
    };
    assert!(free_within >= LEASE_DEFAULT && free_within < LEASE_DEFAULT + SECOND);
    assert_eq!(server.names(), ["name"]);
    server.fail(0);
    // The name is free as soon as the server answers again.
    assert!(
        client
            .mutex("name")
            .try_lock_for(SECOND)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_delay_counts_against_the_lease() {
    let (server, client) = world().await;
    server.delay(Duration::from_millis(400));
    let began = Instant::now();
    let guard = client
        .mutex("name")
        .fixed_lease(10 * SECOND)
        .lock()
        .await
        .unwrap();
    assert_eq!(began.elapsed(), Duration::from_millis(800));
    // Counted from before the send, less the margin of 102 ms.
    assert_eq!(guard.remaining(), Duration::from_millis(10_000 - 102 - 800));
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    // A grant that is over before it is here is none.
    let error = client
        .mutex("name")
        .fixed_lease(SECOND / 2)
        .lock()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(error.to_string().contains("take a longer one"), "{error}");
    // Longer than an operation may take.
    server.delay(3 * SECOND);
    let error = client.mutex("name").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    server.delay(Duration::ZERO);
    wait_until_idle(&client).await;
    assert_eq!(server.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_cut_shorter_than_the_lease_costs_nothing_and_a_longer_one_the_lease() {
    let (server, client) = world().await;
    let began = Instant::now();
    let guard = client.mutex("name").lock().await.unwrap();
    server.cut(true);
    tokio::time::sleep(25 * SECOND).await;
    assert!(guard.is_valid());
    server.cut(false);
    tokio::time::sleep(60 * SECOND).await;
    assert!(guard.is_valid(), "renewed again");
    server.cut(true);
    let began = began + 85 * SECOND;
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(!guard.is_valid());
    let lasted = began.elapsed();
    assert!(
        lasted > LEASE_DEFAULT / 2 && lasted < LEASE_DEFAULT,
        "{lasted:?}"
    );
    // The server still holds it at that moment, and no longer than the margin.
    assert_eq!(server.names(), ["name"]);
    advance(Duration::from_millis(303)).await;
    assert_eq!(server.names(), [""; 0]);
    server.cut(false);
    common::assert_lost(guard.release().await, LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_lost_in_a_cut_is_made_good_by_looking_again() {
    let (server, a) = world().await;
    let b = client_of(&server).await;
    let guard = a
        .mutex("name")
        .fixed_lease(20 * SECOND)
        .lock()
        .await
        .unwrap();
    let waiter = tokio::spawn(b.mutex("name").lock());
    while a.status("name").await.unwrap().waiting_clients == 0 {
        tokio::task::yield_now().await;
    }
    server.cut(true);
    tokio::time::sleep(25 * SECOND).await; // the holder's lease ends unheard
    assert!(!waiter.is_finished());
    server.cut(false);
    let began = Instant::now();
    let next = waiter.await.unwrap().unwrap();
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    assert!(!guard.is_valid());
    drop((guard, next));
    wait_until_idle(&b).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_clock_that_jumps_is_what_only_the_server_knows() {
    let (server, client) = world().await;
    let guard = client.mutex("name").lock().await.unwrap();
    server.step_clock(LEASE_DEFAULT);
    assert_eq!(server.names(), [""; 0], "the server thinks it is over");
    assert!(
        guard.is_valid(),
        "which nobody can know here without asking"
    );
    let began = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Replaced);
    assert!(
        began.elapsed() <= LEASE_DEFAULT / 3,
        "the next renewal told"
    );
    common::assert_lost(guard.release().await, LostReason::Replaced);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_name_is_noticed_by_verify_and_by_the_next_renewal() {
    let (server, client) = world().await;
    let guard = client.mutex("name").lock().await.unwrap();
    assert!(server.expire("name"));
    assert!(!server.expire("name"));
    assert!(!server.expire(""));
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    let guard = client.mutex("name").lock().await.unwrap();
    server.expire("name");
    let other = client_of(&server).await;
    let next = other.mutex("name").try_lock().await.unwrap().expect("free");
    assert_eq!(guard.lost().await, LostReason::Replaced);
    drop(guard);
    wait_until_idle(&client).await;
    assert!(next.verify().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_for_a_day_without_waiting_for_one() {
    let (server, client) = world().await;
    let guard = client.mutex("name").lock().await.unwrap();
    let mut events = client.events();
    tokio::time::sleep(3600 * 24 * SECOND).await;
    assert!(guard.is_valid());
    assert_eq!(server.names(), ["name"]);
    let mut renewals = 0_u64;
    loop {
        match events.try_recv() {
            Ok(event) => renewals += u64::from(matches!(event.kind, EventKind::Renewed { .. })),
            Err(tokio::sync::broadcast::error::TryRecvError::Lagged(missed)) => renewals += missed,
            Err(_) => break,
        }
    }
    assert!((8_640..=9_100).contains(&renewals), "{renewals}");
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// The lines that tracing writes.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_behind_a_hold_of_the_same_process_is_warned_about_once_with_both_places() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _tracing = tracing::subscriber::set_default(subscriber);
    let (_server, client) = world().await;
    let mutex = client.mutex("name");
    let (guard, held_at) = (mutex.lock().await.unwrap(), line!());
    let (waiting, waiting_at) = (mutex.lock(), line!());
    let waiter = tokio::spawn(waiting);
    tokio::time::sleep(Duration::from_millis(4_900)).await;
    assert_eq!(lines.text(), "");
    tokio::time::sleep(SECOND).await;
    let text = lines.text();
    assert!(
        text.contains("WARN") && text.contains("name=name"),
        "{text}"
    );
    for (what, line) in [("held_at", held_at), ("waiting_at", waiting_at)] {
        let place = format!("{what}={}:{line}:", file!());
        assert!(text.contains(&place), "no {place} in {text}");
    }
    assert!(text.contains("Owner"), "it says what to do: {text}");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(lines.text(), text, "once");
    drop(guard);
    drop(waiter.await.unwrap().unwrap());
    wait_until_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_behind_another_process_is_no_cause_for_a_warning() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _tracing = tracing::subscriber::set_default(subscriber.finish());
    let (server, a) = world().await;
    let b = client_of(&server).await;
    let guard = a.mutex("name").lock().await.unwrap();
    let wait = 20 * SECOND;
    assert!(b.mutex("name").try_lock_for(wait).await.unwrap().is_none());
    assert_eq!(lines.text(), "");
    drop(guard);
}
