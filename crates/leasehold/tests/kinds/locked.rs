//! `#[locked]`: the body runs alone, and the name is free when the call has ended, however it ends.

use std::{
    future::pending,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, future::join_all};
use leasehold::{Client, Error, ErrorKind, LostReason, MemoryServer, locked};
use leasehold_testkit::wait_until_async;
use tokio::task::yield_now;

use crate::common::{
    ByHand, SOON, World,
    late::{in_time, unless_late_async},
    of_the_whole,
    process::{Job, Process, job, say},
    servers, soon, wait_until_idle,
};

const MS: Duration = Duration::from_millis(1);

/// Counts how many are inside at once.
#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl Room {
    async fn stay(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        tokio::time::sleep(5 * MS).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

/// Whether `name` is held, as another client sees it.
async fn is_held(other: &Client, name: &str) -> bool {
    !other.status(name).await.unwrap().holders.is_empty()
}

async fn until_free(world: &World, client: &Client, after: &str) {
    wait_until_idle(client).await;
    let held = || {
        let mut held = world.held();
        held.retain(|key| !key.starts_with("redisson_lock_token:"));
        held
    };
    wait_until_async(SOON, after, || held().is_empty()).await;
}

#[locked("room:{number}")]
async fn enter(number: u32, room: &Room) -> Result<u32, Error> {
    room.stay().await;
    Ok(number)
}

#[tokio::test]
async fn siblings_of_a_join_and_tasks_are_never_both_inside() {
    for world in World::all() {
        let client = world.client().await;
        let room = Room::default();
        let both = async { tokio::join!(enter(1, &room), enter(1, &room)) };
        let (one, other) = soon("both", client.scope(both)).await;
        assert_eq!((one.unwrap(), other.unwrap(), room.most()), (1, 1, 1));
        // Two names are inside side by side.
        let both = async { tokio::join!(enter(1, &room), enter(2, &room)) };
        let (one, other) = soon("two names", client.scope(both)).await;
        assert_eq!((one.unwrap(), other.unwrap(), room.most()), (1, 2, 2));
        until_free(&world, &client, "both").await;
    }
}

/// A counter without a lock of its own.
struct Counter {
    locks: Client,
    name: String,
}

impl Counter {
    #[locked("counter:{}", self.name, client = self.locks)]
    async fn add(&self, connection: &mut redis::aio::MultiplexedConnection) -> Result<(), Error> {
        let key = format!("data:{}", self.name);
        let read = redis::cmd("GET").arg(&key).query_async(connection).await;
        let read: Option<u64> = read.unwrap();
        yield_now().await;
        let next = read.unwrap_or(0) + 1;
        let written = redis::cmd("SET")
            .arg(&key)
            .arg(next)
            .query_async(connection)
            .await;
        let () = written.unwrap();
        Ok(())
    }
}

const CALLS: usize = 200;

#[test]
#[ignore = "a process that a test starts"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let counter = Counter {
            locks: Client::connect(&job.url).await.unwrap(),
            name: job.name,
        };
        let data = redis::Client::open(job.url).unwrap();
        let mut data = data.get_multiplexed_async_connection().await.unwrap();
        for _ in 0..of_the_whole(CALLS) {
            counter.add(&mut data).await.unwrap();
        }
    });
    say("done");
}

#[test]
fn a_counter_of_eight_processes_is_exact() {
    for server in servers() {
        let job = |_| Job {
            what: "count".to_owned(),
            url: server.url(),
            name: "orders".to_owned(),
            lease: SOON,
        };
        let children: Vec<Process> = (0..8).map(job).map(|job| Process::start(&job)).collect();
        for child in children {
            child.wait_for("done");
        }
        let counted: usize = redis::from_redis_value(server.cli(&["GET", "data:orders"])).unwrap();
        assert_eq!(counted, 8 * of_the_whole(CALLS), "{}", server.flavor());
    }
}

#[locked("nested")]
async fn outer(inner: impl Future<Output = Result<u32, Error>>) -> Result<u32, Error> {
    inner.await
}

#[locked("nested")]
async fn inner() -> Result<u32, Error> {
    Ok(1)
}

#[locked("nested", reentrant)]
async fn enters() -> Result<u32, Error> {
    Ok(2)
}

#[locked("nested", reentrant, kind = fenced)]
async fn enters_as_another_kind() -> Result<u32, Error> {
    Ok(3)
}

#[tokio::test]
async fn a_nested_call_is_refused_at_once_and_enters_if_it_says_so() {
    for world in World::all() {
        let client = world.client().await;
        let began = Instant::now();
        let refused = client.scope(outer(async {
            let began = Instant::now();
            let refused = inner().await;
            assert!(began.elapsed() < 5 * MS, "{:?}", began.elapsed());
            refused
        }));
        let error = refused.await.unwrap_err();
        let Error::Reentered { held_at, .. } = &error else {
            panic!("{error}");
        };
        assert!(held_at.file().ends_with("locked.rs"), "{error}");
        let said = include_str!("locked.rs")
            .lines()
            .nth(held_at.line() as usize - 1);
        assert!(said.unwrap().contains("fn outer"), "{error}");
        assert!(error.to_string().contains("`reentrant`"), "{error}");
        assert!(began.elapsed() < SOON);

        let entered = client.scope(outer(enters())).await;
        assert_eq!(entered.unwrap(), 2);
        // Through a call that entered, and through one on another name.
        let entered = client.scope(outer(outer_of_another(enters()))).await;
        assert_eq!(entered.unwrap(), 2);
        let error = client
            .scope(outer(enters_as_another_kind()))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reentered, "{error}");
        // Another client holds for another program, as it were.
        let other = world.client().await;
        let waits = outer(async { other.scope(at_once()).await });
        assert_eq!(
            client.scope(waits).await.unwrap_err().kind(),
            ErrorKind::Busy
        );
        until_free(&world, &client, "nested").await;
    }
}

#[locked("another")]
async fn outer_of_another(inner: impl Future<Output = Result<u32, Error>>) -> Result<u32, Error> {
    inner.await
}

#[locked("nested", wait = "0s")]
async fn at_once() -> Result<u32, Error> {
    Ok(4)
}

#[locked("shelf", kind = write)]
async fn writes(inner: impl Future<Output = Result<u32, Error>>) -> Result<u32, Error> {
    inner.await
}

#[locked("shelf", kind = read, reentrant)]
async fn reads(inner: impl Future<Output = Result<u32, Error>>) -> Result<u32, Error> {
    inner.await
}

#[locked("shelf", kind = write, reentrant)]
async fn writes_too() -> Result<u32, Error> {
    Ok(5)
}

#[tokio::test]
async fn who_writes_may_read_and_who_reads_may_not_write() {
    for world in World::all() {
        let client = world.client().await;
        let all = writes(reads(writes_too()));
        // The reader inside does not see the writer around both: it asks for what the nearest frame cannot give.
        let refused = client.scope(all).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Reentered, "{refused}");
        let read = client.scope(writes(reads(async { Ok(6) }))).await;
        assert_eq!(read.unwrap(), 6);
        let read = client.scope(reads(reads(async { Ok(7) }))).await;
        assert_eq!(read.unwrap(), 7);
        until_free(&world, &client, "a shelf").await;
    }
}

#[derive(Debug, PartialEq)]
enum Sold {
    Now,
    TryLater,
}

#[locked("busy", wait = "200ms", busy = Ok(Sold::TryLater))]
async fn sell() -> Result<Sold, Error> {
    Ok(Sold::Now)
}

#[locked("busy", wait = 20 * MS)]
async fn sell_or_fail() -> Result<Sold, Error> {
    Ok(Sold::Now)
}

#[locked("busy", wait = "0s", failed = |error| error.kind() as usize)]
async fn sell_or_count() -> usize {
    1000
}

#[tokio::test]
async fn behind_a_holder_it_waits_as_long_as_it_says_and_then_says_busy() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        assert_eq!(client.scope(sell()).await.unwrap(), Sold::Now);
        let held = other.mutex("busy").lock().await.unwrap();
        unless_late_async(&world.name(), 60 * MS, async || {
            let began = Instant::now();
            assert_eq!(client.scope(sell()).await.unwrap(), Sold::TryLater);
            let waited = began.elapsed();
            assert!(waited >= 200 * MS, "{waited:?}");
            in_time(waited, 260 * MS)
        })
        .await;

        let error = client.scope(sell_or_fail()).await.unwrap_err();
        let Error::Busy { name, waited } = &error else {
            panic!("{error}");
        };
        assert!(&**name == "busy" && *waited >= 20 * MS, "{error}");
        let kind = client.scope(sell_or_count()).await;
        assert_eq!(kind, ErrorKind::Busy as usize);
        drop(held);
        until_free(&world, &client, "busy").await;
    }
}

#[locked("ends")]
async fn ends(how: &str) -> Result<u32, Error> {
    if how == "early" {
        return Ok(1);
    }
    if how == "?" {
        Err(Error::Closed)?;
    }
    assert_ne!(how, "panic");
    yield_now().await;
    Ok(2)
}

#[tokio::test]
async fn the_name_is_free_however_the_body_ends() {
    for world in World::all() {
        let client = world.client().await;
        let mut results = Vec::new();
        for how in ["early", "?", "panic", "end"] {
            let call = AssertUnwindSafe(client.scope(ends(how)));
            let result = call.catch_unwind().await;
            results.push(result.map(|result| result.map_err(|error| error.kind())));
            until_free(&world, &client, how).await;
        }
        let said: Vec<String> = results
            .iter()
            .map(|result| format!("{:?}", result.as_ref().ok()))
            .collect();
        let expected = ["Some(Ok(1))", "Some(Err(Closed))", "None", "Some(Ok(2))"];
        assert_eq!(said, expected, "{}", world.name());
    }
}

/// An argument that looks, when it is dropped, whether the name is held.
struct Looks {
    server: MemoryServer,
    name: &'static str,
    saw: Arc<AtomicUsize>,
}

impl Drop for Looks {
    fn drop(&mut self) {
        let held = self.server.names().iter().any(|name| name == self.name);
        self.saw
            .fetch_add(if held { 1 } else { 1000 }, Ordering::SeqCst);
    }
}

struct Pair(Looks, #[expect(dead_code)] u32);

#[locked("polls", wait = "10s")]
async fn with_arguments(
    _quiet: Looks,
    _: Looks,
    Pair(within, _): Pair,
    mut counted: Looks,
    polls: usize,
) -> Result<usize, Error> {
    for _ in 0..polls {
        yield_now().await;
    }
    counted.name = "polls";
    drop(within);
    Ok(polls)
}

#[tokio::test]
async fn arguments_are_dropped_while_the_name_is_held() {
    let server = MemoryServer::new();
    let world = World::Memory(server.clone());
    let client = world.client().await;
    // To the end, and dropped at each of its first 50 polls.
    for most in 1..=50 {
        let saw = Arc::new(AtomicUsize::new(0));
        let looks = || Looks {
            server: server.clone(),
            name: "polls",
            saw: Arc::clone(&saw),
        };
        let call = with_arguments(looks(), looks(), Pair(looks(), 0), looks(), 30);
        let mut call = ByHand::new(client.scope(call));
        let mut ended = false;
        for poll in 0..most {
            if poll > 0 {
                call.woken().await;
            }
            if call.poll().is_ready() {
                ended = true;
                break;
            }
        }
        let held = !server.names().is_empty();
        drop(call);
        let saw = saw.load(Ordering::SeqCst);
        if held || ended {
            assert_eq!(saw, 4, "{most} polls; it ended: {ended}");
        }
        until_free(&world, &client, &format!("{most} polls")).await;
    }
}

#[locked("dropped", wait = "10s")]
async fn many_polls(polls: usize) -> Result<usize, Error> {
    for _ in 0..polls {
        yield_now().await;
    }
    Ok(polls)
}

#[tokio::test]
async fn a_call_that_is_dropped_at_any_poll_leaves_the_name_free() {
    for world in World::all() {
        let client = world.client().await;
        for most in 1..=50 {
            let mut call = ByHand::new(client.scope(many_polls(40)));
            for poll in 0..most {
                if poll > 0 {
                    call.woken().await;
                }
                if let Poll::Ready(ended) = call.poll() {
                    assert_eq!(ended.unwrap(), 40);
                    break;
                }
            }
            drop(call);
            until_free(
                &world,
                &client,
                &format!("{most} polls on {}", world.name()),
            )
            .await;
        }
    }
}

struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[locked("lost", fixed_lease = "300ms")]
async fn loses(gone: Gone) -> Result<u32, Error> {
    pending::<()>().await;
    drop(gone);
    Ok(1)
}

#[locked("lost", max_hold = "300ms", lease = "200ms", failed = |error| error.kind() as usize)]
async fn loses_and_counts() -> usize {
    pending::<()>().await;
    1000
}

#[tokio::test]
async fn a_lease_that_is_lost_drops_the_body_and_says_so() {
    for world in World::all() {
        let client = world.client().await;
        let gone = Arc::new(AtomicBool::new(false));
        let call = client.scope(loses(Gone(Arc::clone(&gone))));
        let error = soon("it is lost", call).await.unwrap_err();
        let expired = |error: &Error| matches!(error, Error::Lost { reason, .. } if *reason == LostReason::Expired);
        assert!(expired(&error), "{error}");
        assert!(gone.load(Ordering::SeqCst), "the body was dropped");
        until_free(&world, &client, "a loss").await;
        let kind = soon("max_hold", client.scope(loses_and_counts())).await;
        assert_eq!(kind, ErrorKind::Lost as usize);
        until_free(&world, &client, "max_hold").await;
    }
}

#[async_trait::async_trait]
trait Service {
    async fn serve(&self, id: u32) -> Result<bool, Error>;
}

struct Shop {
    locks: Client,
    other: Client,
}

#[async_trait::async_trait]
impl Service for Shop {
    #[locked("service:{id}", client = self.locks)]
    async fn serve(&self, id: u32) -> Result<bool, Error> {
        yield_now().await;
        Ok(is_held(&self.other, &format!("service:{id}")).await)
    }
}

#[tokio::test]
async fn under_async_trait_the_name_is_held_while_the_body_runs() {
    for world in World::all() {
        let shop = Shop {
            locks: world.client().await,
            other: world.client().await,
        };
        let served: Box<dyn Service + Send + Sync> = Box::new(shop);
        let served = tokio::spawn(async move { served.serve(7).await });
        assert!(served.await.unwrap().unwrap(), "{}", world.name());
    }
}

#[locked("{name}")]
async fn named(name: &str) -> Result<(), Error> {
    panic!("{name} is refused");
}

#[tokio::test]
async fn a_bad_name_a_bad_time_and_no_client_are_refused_and_nothing_is_sent() {
    let none = named("name").await.unwrap_err();
    let said = none.to_string();
    assert_eq!(none.kind(), ErrorKind::Invalid);
    assert!(
        said.contains("set_global(client)") && said.contains("client.scope(future)"),
        "{said}"
    );
    for world in World::all() {
        let client = world.client().await;
        let long = "x".repeat(100_000);
        for name in ["", "a{b", &*long] {
            let error = client.scope(named(name)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        let error = client.scope(too_short()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(world.held(), [""; 0]);
    }
}

#[locked("short", lease = "1us")]
async fn too_short() -> Result<(), Error> {
    panic!("it is refused");
}

#[tokio::test]
async fn a_scope_goes_before_no_client_and_an_option_before_a_scope() {
    let (one, other) = (World::all().swap_remove(0), World::all().swap_remove(0));
    let (ours, theirs) = (one.client().await, other.client().await);
    let names = theirs
        .scope(said_client(&ours, || (one.held(), other.held())))
        .await;
    assert_eq!(names.unwrap(), (vec!["said".to_owned()], vec![]));
    let nested = ours.scope(theirs.scope(no_client(|| (one.held(), other.held()))));
    assert_eq!(nested.await.unwrap(), (vec![], vec!["said".to_owned()]));
}

type Names = (Vec<String>, Vec<String>);

#[locked("said", client = client)]
async fn said_client(client: &Client, look: impl Fn() -> Names) -> Result<Names, Error> {
    Ok(look())
}

#[locked("said")]
async fn no_client(look: impl Fn() -> Names) -> Result<Names, Error> {
    Ok(look())
}

#[locked("tokens", kind = fenced, guard = g)]
async fn token() -> Result<u64, Error> {
    g.ensure(MS)?;
    Ok(g.token())
}

#[tokio::test]
async fn the_guard_is_at_hand_and_its_tokens_grow() {
    for world in World::all() {
        let client = world.client().await;
        let first = client.scope(token()).await.unwrap();
        let all = client.scope(join_all((0..8).map(|_| token()))).await;
        let all: Vec<u64> = all.into_iter().map(Result::unwrap).collect();
        assert!(all.iter().all(|token| *token > first), "{first} {all:?}");
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), 8);
    }
}

#[tokio::test]
async fn a_spawned_task_inherits_no_frame_and_waits() {
    for world in World::all() {
        let client = world.client().await;
        let scoped = client.clone();
        let spawned = outer(async move {
            let task = tokio::spawn(async move { scoped.scope(enters()).await });
            tokio::time::sleep(20 * MS).await;
            assert!(!task.is_finished(), "it is not inside");
            drop(task); // it goes on by itself
            Ok(1)
        });
        assert_eq!(client.scope(spawned).await.unwrap(), 1);
        until_free(&world, &client, "a spawned task").await;
    }
}

#[locked("once", once_per = "1h", busy = Ok(None), client = client)]
async fn once_an_hour(client: &Client, runs: &AtomicUsize) -> Result<Option<usize>, Error> {
    yield_now().await;
    Ok(Some(runs.fetch_add(1, Ordering::SeqCst)))
}

#[locked("once", once_per = Duration::from_secs(3600), kind = fenced, client = client)]
async fn once_or_an_error(client: &Client) -> Result<(), Error> {
    Err(Error::Closed)
}

#[tokio::test]
async fn once_per_interval_runs_once_also_after_an_error() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        let runs = AtomicUsize::new(0);
        assert_eq!(once_an_hour(&client, &runs).await.unwrap(), Some(0));
        assert_eq!(once_an_hour(&other, &runs).await.unwrap(), None);
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{}", world.name());
        assert!(client.force_unlock("once").await.unwrap());
        let error = once_or_an_error(&client).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "that of the work");
        let error = once_or_an_error(&other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
}
