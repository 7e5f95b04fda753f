//! The promises of every type and future to the compiler.

use std::{future::pending, time::Duration};

use leasehold::{
    Client, ClientBuilder, ClusterNodes, Detached, Election, Error, Event, FairMutex,
    FairMutexGuard, FencedMutex, FencedMutexGuard, FencedStore, Find, Guard, Handoff, Invalid,
    Latch, Leader, LeaderWatch, MemoryServer, MultiGuard, MultiLock, Mutex, Owner, Part,
    PlainMutex, PlainMutexGuard, Released, Semaphore, SemaphoreGuard, Sentinel, Shutdown,
    SpinMutex, SpinMutexGuard, Status, Term,
};

fn send_sync_static<T: Send + Sync + 'static>() {}
fn send<T: Send>(value: T) -> T {
    value
}
fn send_static<T: Send + 'static>(value: T) -> T {
    value
}

#[test]
fn every_type_goes_to_any_thread_and_outlives_any_scope() {
    send_sync_static::<Client>();
    send_sync_static::<ClientBuilder>();
    send_sync_static::<leasehold::ConnectionSettings>();
    send_sync_static::<leasehold::Credentials>();
    send_sync_static::<leasehold::Acknowledged>();
    send_sync_static::<leasehold::Durability>();
    send_sync_static::<leasehold::Unmet>();
    send_sync_static::<leasehold::Protocol>();
    send_sync_static::<Detached>();
    send_sync_static::<Election>();
    send_sync_static::<Error>();
    send_sync_static::<Leader>();
    send_sync_static::<LeaderWatch>();
    send_sync_static::<Term>();
    send_sync_static::<Event>();
    send_sync_static::<leasehold::Outcome>();
    #[cfg(feature = "metrics")]
    send_sync_static::<leasehold::metrics::Metrics>();
    send_sync_static::<leasehold::EventListener>();
    send_sync_static::<FencedMutex>();
    send_sync_static::<FencedMutexGuard>();
    send_sync_static::<FencedStore>();
    send_sync_static::<Find>();
    send_sync_static::<Guard>();
    send_sync_static::<Handoff>();
    send_sync_static::<Invalid>();
    send_sync_static::<MemoryServer>();
    send_sync_static::<MultiGuard>();
    send_sync_static::<MultiLock>();
    send_sync_static::<Part>();
    send_sync_static::<Latch>();
    send_sync_static::<Semaphore>();
    send_sync_static::<SemaphoreGuard>();
    send_sync_static::<Sentinel>();
    send_sync_static::<ClusterNodes>();
    send_sync_static::<Mutex>();
    send_sync_static::<Owner>();
    send_sync_static::<PlainMutex>();
    send_sync_static::<PlainMutexGuard>();
    send_sync_static::<SpinMutex>();
    send_sync_static::<FairMutex>();
    send_sync_static::<FairMutexGuard>();
    send_sync_static::<SpinMutexGuard>();
    send_sync_static::<Released>();
    send_sync_static::<Shutdown>();
    send_sync_static::<leasehold::ServerVote>();
    send_sync_static::<Status>();
}

#[cfg(feature = "blocking")]
#[test]
fn every_type_that_blocks_goes_to_any_thread_too() {
    use leasehold::blocking;

    send_sync_static::<blocking::Client>();
    send_sync_static::<blocking::EventListener>();
    send_sync_static::<blocking::FairMutex>();
    send_sync_static::<blocking::FencedMutex>();
    send_sync_static::<blocking::FencedStore>();
    send_sync_static::<blocking::Find>();
    send_sync_static::<blocking::Guard>();
    send_sync_static::<blocking::Latch>();
    send_sync_static::<blocking::LeasedSemaphore>();
    send_sync_static::<blocking::MultiGuard>();
    send_sync_static::<blocking::MultiLock>();
    send_sync_static::<blocking::Mutex>();
    send_sync_static::<blocking::PlainMutex>();
    send_sync_static::<blocking::RwLock>();
    send_sync_static::<blocking::Semaphore>();
    send_sync_static::<blocking::SpinMutex>();
}

#[leasehold::locked("name")]
async fn locked() -> Result<(), Error> {
    tokio::task::yield_now().await;
    Ok(())
}

#[tokio::test]
async fn every_future_can_be_spawned() {
    let client = send(Client::connect("memory:")).await.unwrap();
    let mutex = client.mutex("name");
    let guard = send_static(mutex.lock()).await.unwrap();
    drop(send_static(mutex.try_lock()));
    drop(send_static(mutex.try_lock_for(Duration::ZERO)));
    drop(send_static(client.plain_mutex("plain").lock()));
    drop(send_static(client.plain_mutex("plain").try_lock()));
    drop(send_static(client.spin_mutex("spin").lock()));
    drop(send_static(client.fair_mutex("fair").lock()));
    drop(send_static(client.fair_mutex("fair").try_lock()));
    drop(send_static(
        client.spin_mutex("spin").try_lock_for(Duration::ZERO),
    ));
    drop(send_static(client.semaphore("semaphore").acquire_many(2)));
    let latch = client.latch("latch");
    drop(send(latch.wait()));
    drop(send(latch.wait_for(Duration::ZERO)));
    drop(send(latch.count_down()));
    let hour = Duration::from_secs(3600);
    drop(send_static(mutex.run_once_per(hour, pending::<()>())));
    drop(send_static(
        client
            .plain_mutex("plain")
            .run_once_per(hour, pending::<()>()),
    ));
    drop(send(mutex.status()));
    drop(send(client.find("*").next()));
    drop(send(client.shutdown(Shutdown::LetExpire)));
    drop(send(guard.lost()));
    drop(send(guard.at_risk(Duration::ZERO)));
    drop(send(guard.run(pending::<()>())));
    drop(send(guard.verify()));
    drop(send(guard.extend(Duration::ZERO)));
    drop(send(Owner::new().scope(pending::<()>())));
    drop(send(client.scope(pending::<()>())));
    drop(send_static(locked()));
    assert_eq!(send_static(guard.release()).await.unwrap(), Released::Freed);
    let fenced = client.fenced_mutex("fenced");
    drop(send_static(fenced.lock()));
    drop(send_static(fenced.try_lock()));
    drop(send_static(fenced.try_lock_for(Duration::ZERO)));
    drop(send_static(fenced.run_once_per(hour, pending::<()>())));
    let multi = client.multi_lock(["one", "other"]);
    drop(send_static(multi.try_lock()));
    drop(send_static(multi.try_lock_for(Duration::ZERO)));
    let all = send_static(multi.lock()).await.unwrap();
    drop(send(all.lost()));
    drop(send(all.at_risk(Duration::ZERO)));
    drop(send(all.run(pending::<()>())));
    drop(send(all.verify()));
    drop(send(all.extend(Duration::ZERO)));
    assert_eq!(send_static(all.release()).await.unwrap(), Released::Freed);
    let store = client.fenced_store("fenced");
    drop(send(store.set("key", "value", 1)));
    drop(send(store.set_for("key", "value", hour, 1)));
    drop(send(store.delete_field("key", "field", 1)));
    drop(send(store.get("key")));
    let election = client.election("election");
    drop(send_static(election.run(async |term: Term| drop(term))));
    drop(send(election.leader()));
    drop(send(election.observe().next()));
    let term = send_static(election.campaign()).await.unwrap();
    drop(send(term.lost()));
    drop(send(term.run(pending::<()>())));
    assert_eq!(send_static(term.resign()).await.unwrap(), Released::Freed);
}

#[test]
fn no_debug_and_no_error_shows_a_password() {
    let builder = Client::builder()
        .url("redis://me:hush@127.0.0.1:1/")
        .password("hush");
    assert!(!format!("{builder:?}").contains("hush"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let error = runtime.unwrap().block_on(builder.connect()).unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let shown = format!("{error} {error:?}");
    assert!(
        !shown.contains("hush") && shown.contains("127.0.0.1:1"),
        "{shown}"
    );
}
