//! Another server becomes the primary: what holders and waiters notice of it, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, EventKind, LostReason, MutexGuard};
use leasehold_testkit::{Flavor, SentinelGroup, Server, wait_until, wait_until_async};

use super::epochs::{counting, take};
use crate::common::{
    SOON, few_or, flavors, int, keys,
    late::{Control, judge},
    own_names::{GivenBack, OwnNames},
};

const MS: Duration = Duration::from_millis(1);

/// By then the client has left the old primary, and has a lock at the new one.
const AIM: Duration = Duration::from_millis(300);

const TASKS: usize = 50;
const NAMES: usize = 5;

/// How long a failover may take: some 3 s on an idle machine.
const FAILOVER: Duration = Duration::from_secs(60);

/// A hold, as its holder saw it.
#[derive(Clone, Debug)]
struct Hold {
    name: usize,
    task: usize,
    from: Instant,
    /// The last look that found it valid.
    to: Instant,
    /// Who held it: of a lease that is passed on in memory always the same.
    lease: String,
    /// When its release was over.
    released: Instant,
    /// The server that took over had never been told of it.
    forgotten: bool,
}

/// Tasks that contend for a few names, in two clients.
struct Crowd {
    ends: Arc<AtomicBool>,
    holds: Arc<Mutex<Vec<Hold>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    clients: Vec<Client>,
}

impl Crowd {
    async fn start(url: &str) -> Crowd {
        let clients = [
            Client::connect(url).await.unwrap(),
            Client::connect(url).await.unwrap(),
        ];
        let (ends, holds) = (
            Arc::<AtomicBool>::default(),
            Arc::<Mutex<Vec<Hold>>>::default(),
        );
        let tasks = (0..TASKS).map(|task| {
            let name = task % NAMES;
            let mutex = clients[task % 2].mutex(format!("name{name}"));
            let (ends, holds) = (Arc::clone(&ends), Arc::clone(&holds));
            tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    let guard = mutex.lock().await.unwrap();
                    let (from, lease) = (Instant::now(), guard.owner());
                    let mut to = from;
                    for _ in 0..3 {
                        tokio::time::sleep(MS).await;
                        let now = Instant::now();
                        if guard.is_valid() {
                            to = now;
                        }
                    }
                    let reason = |error| match error {
                        Error::Lost { reason, .. } => Some(reason),
                        _ => None,
                    };
                    let lost = guard.release().await.err().and_then(reason);
                    let forgotten = lost == Some(LostReason::Failover);
                    let hold = Hold {
                        name,
                        task,
                        from,
                        to,
                        lease,
                        released: Instant::now(),
                        forgotten,
                    };
                    holds
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(hold);
                }
            })
        });
        Crowd {
            tasks: tasks.collect(),
            ends,
            holds,
            clients: clients.to_vec(),
        }
    }

    fn holds(&self) -> Vec<Hold> {
        self.holds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until each task has had its name again, and says how long after `since` the last of them came in.
    async fn until_all_had_it_since(&self, since: Instant) -> Duration {
        let first = || {
            let mut first = BTreeMap::new();
            for hold in self.holds().iter().filter(|hold| hold.from > since) {
                first.entry(hold.task).or_insert(hold.from);
            }
            first
        };
        wait_until_async(FAILOVER, "all go on", || first().len() == TASKS).await;
        first().into_values().max().unwrap() - since
    }

    /// No two holds of a name were valid at once, but for those that the new primary had never been told of. Such a lease is told lost to its
    /// last holder here, unless its release was under way when the first sentinel spoke, at one of `words`.
    async fn end(self, words: &[Instant]) -> Vec<Hold> {
        self.ends.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        for client in &self.clients {
            crate::common::wait_until_idle(client).await;
        }
        let mut holds = self
            .holds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        holds.sort_by_key(|hold| hold.from);
        let forgotten: BTreeSet<_> = holds
            .iter()
            .filter(|hold| hold.forgotten)
            .map(|hold| hold.lease.clone())
            .collect();
        let is_told = |hold: &&Hold| {
            let is_under_way =
                |word: &Instant| hold.from < *word + 20 * MS && hold.released + 20 * MS > *word;
            !forgotten.contains(&hold.lease) && !words.iter().any(is_under_way)
        };
        for name in 0..NAMES {
            let of_name: Vec<_> = holds
                .iter()
                .filter(|hold| hold.name == name)
                .filter(is_told)
                .collect();
            for pair in of_name.windows(2) {
                assert!(pair[0].to <= pair[1].from, "both valid: {pair:?}");
            }
        }
        holds
    }
}

/// When the first sentinel said that another server is the primary.
struct FirstWord(Arc<Mutex<Option<Instant>>>);

impl FirstWord {
    fn listen(group: &SentinelGroup) -> FirstWord {
        let first = Arc::<Mutex<Option<Instant>>>::default();
        for sentinel in group.sentinels() {
            let mut connection = sentinel.connection();
            connection.set_read_timeout(Some(FAILOVER)).unwrap();
            let first = Arc::clone(&first);
            let ready = Arc::new(std::sync::Barrier::new(2));
            let listens = Arc::clone(&ready);
            std::thread::spawn(move || {
                let mut told = connection.as_pubsub();
                told.subscribe("+switch-master").unwrap();
                listens.wait();
                if told.get_message().is_ok() {
                    first.lock().unwrap().get_or_insert_with(Instant::now);
                }
            });
            ready.wait();
        }
        FirstWord(first)
    }

    async fn heard(&self) -> Instant {
        let heard = || *self.0.lock().unwrap();
        wait_until_async(FAILOVER, "a sentinel says so", || heard().is_some()).await;
        heard().unwrap()
    }
}

/// The same server, with a connection of the kit that works: a server that changes its role closes all that it has.
pub(super) fn again(server: &Server) -> &Server {
    let _ = server.try_cli(&["PING"]);
    server
}

/// Both replicas have all that the primary was told until now. Only a write makes `WAIT` look.
fn until_replicated(primary: &Server) {
    primary.cli(&["SET", "probe", "1"]);
    primary.cli(&["DEL", "probe"]);
    assert_eq!(primary.cli(&["WAIT", "2", "5000"]), redis::Value::Int(2));
}

/// How many scripts the server has carried out.
pub(super) fn scripts(server: &Server) -> u64 {
    let calls = again(server).calls();
    ["eval", "evalsha"]
        .iter()
        .filter_map(|command| calls.get(*command))
        .sum()
}

/// No lock is held. Keys that end may be there: tombstones, and a place that was copied to the new primary and left at the old one.
fn assert_nothing_left(group: &SentinelGroup) {
    // A replica may be some commands behind.
    until_replicated(again(group.server(group.primary())));
    for server in group.servers() {
        for key in keys(again(server)) {
            let ends = key.contains(":gone:") || key.ends_with(":queue");
            assert!(ends, "{key} is left at {}", server.addr());
            assert_ne!(int(server, &["PTTL", &key]), -1, "{key} has no end");
        }
    }
}

/// It goes on taking writes for ten seconds, and never says that it is no primary any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_moves_the_client_before_the_old_primary_closes() {
    for flavor in Flavor::available() {
        let mut group = SentinelGroup::start(flavor);
        let crowd = Crowd::start(&group.url()).await;
        let (mut words, mut in_time) = (Vec::new(), 0);
        let control = Control::start();
        for round in 1.. {
            let old = group.primary();
            crowd.until_all_had_it_since(Instant::now()).await;
            let word = FirstWord::listen(&group);
            for sentinel in group.sentinels() {
                if sentinel
                    .try_cli(&["SENTINEL", "FAILOVER", group.master()])
                    .is_ok()
                {
                    break;
                }
            }
            let switched = word.heard().await;
            control.latest();
            words.push(switched);
            tokio::time::sleep_until((switched + AIM).into()).await;
            let at_old = scripts(group.server(old));
            // Of that time alone: what comes later excuses nothing.
            let late = control.latest();
            let new = group.wait_for_successor(old);
            let all = crowd.until_all_had_it_since(switched + AIM).await;
            tokio::time::sleep_until((switched + 4 * AIM).into()).await;
            let after = scripts(group.server(old));
            // After the moment in which the client left the old one.
            let first = crowd
                .holds()
                .iter()
                .map(|hold| hold.from)
                .filter(|from| *from > switched + 10 * MS)
                .min();
            let first = first.unwrap() - switched;
            println!(
                "{flavor}, round {round}: server {old} to {new}, first {first:?}, all in {all:?}"
            );
            assert!(scripts(group.server(new)) > 0);
            group.settle();
            if at_old == after && first < AIM {
                in_time += 1;
            } else {
                let more = after - at_old;
                let wrong = format!(
                    "{flavor}: {more} scripts at the old primary {AIM:?} after the first word, first after {first:?}"
                );
                judge("a planned failover", AIM, round, &wrong, late);
            }
            if in_time == few_or(2, 20) {
                break;
            }
        }
        let holds = crowd.end(&words).await;
        let forgotten = holds.iter().filter(|hold| hold.forgotten).count();
        println!("{flavor}: {} holds, {forgotten} forgotten", holds.len());
        group.settle();
        assert_nothing_left(&group);
    }
}

/// Until all replicas follow, that sentinel says the old address to `SENTINEL MASTER`, in the new epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_before_the_failover_is_over_at_the_leading_sentinel_finds_the_new_primary()
 {
    for flavor in flavors(0) {
        let group = SentinelGroup::start(flavor);
        let old = group.primary();
        // The one that is not promoted cannot follow.
        for replica in (0..3).filter(|at| *at != old) {
            let refused = ["CONFIG", "SET", "masterauth", "wrong"];
            group.server(replica).cli(&refused);
        }
        let new = group.failover();
        let until = Instant::now() + 2_000 * MS;
        let mut clients = 0;
        while Instant::now() < until {
            clients += 1;
            let client = Client::connect(&group.url()).await.unwrap();
            // Time for it to ask each sentinel, and to hear it.
            for look in 0..4 {
                let name = format!("name:{clients}:{look}");
                let guard = client.mutex(&name).lock().await.unwrap();
                let at = keys(again(group.server(new)));
                assert!(at.contains(&name), "{flavor}: {name} is not at the new one");
                guard.release().await.unwrap();
                tokio::time::sleep(20 * MS).await;
            }
        }
        println!("{flavor}: {clients} clients");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_go_on_within_a_second_of_a_failover_from_a_primary_that_was_killed() {
    for flavor in flavors(0) {
        all_go_on(flavor, SentinelGroup::kill, |_, _| ()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_go_on_within_a_second_of_a_failover_from_a_primary_that_stood_still() {
    for flavor in flavors(1) {
        let freeze = |group: &mut SentinelGroup, primary| group.server(primary).freeze();
        let thaw = |group: &mut SentinelGroup, primary| group.server(primary).thaw();
        all_go_on(flavor, freeze, thaw).await;
    }
}

async fn all_go_on(
    flavor: Flavor,
    fails: impl Fn(&mut SentinelGroup, usize),
    comes_back: impl Fn(&mut SentinelGroup, usize),
) {
    let mut group = SentinelGroup::start(flavor);
    let crowd = Crowd::start(&group.url()).await;
    crowd.until_all_had_it_since(Instant::now()).await;
    let old = group.primary();
    fails(&mut group, old);
    let new = group.wait_for_successor(old);
    let all = crowd.until_all_had_it_since(Instant::now()).await;
    println!("{flavor}: server {old} to {new}, all in {all:?}");
    assert!(all < Duration::from_secs(1), "{flavor}: {all:?}");
    comes_back(&mut group, old);
    crowd.until_all_had_it_since(Instant::now()).await;
    crowd.end(&[]).await;
    group.settle();
    assert_nothing_left(&group);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_guards_that_the_new_primary_was_never_told_of_are_lost() {
    for flavor in flavors(1) {
        let mut group = SentinelGroup::start(flavor);
        let is_failover = |kind: &EventKind| {
            matches!(
                kind,
                EventKind::Lost {
                    reason: LostReason::Failover,
                    ..
                }
            )
        };
        let (client, told) = counting(&group.url(), is_failover).await;
        let kept = take(&client, 0..9_900).await;
        let primary = group.primary();
        until_replicated(group.server(primary));
        let replicas = group.freeze_replicas();
        let forgotten = take(&client, 9_900..10_000).await;
        group.kill(primary);
        group.thaw_replicas(&replicas);
        let new = group.wait_for_successor(primary);
        let is_connected = || {
            let list = again(group.server(new)).cli(&["CLIENT", "LIST"]);
            let list: String = redis::from_redis_value(list).unwrap();
            list.contains(" name=leasehold:")
        };
        wait_until(SOON, "the client is connected again", is_connected);
        let connected = Instant::now();
        wait_until(SOON, "the hundred are told", || {
            told.load(Ordering::Relaxed) == 100
        });
        let took = connected.elapsed();
        println!("{flavor}: {took:?}");
        assert!(took < Duration::from_secs(1), "{flavor}: {took:?}");
        assert!(forgotten.iter().all(|guard| !guard.is_valid()));
        for guard in kept.iter().take(200) {
            guard.verify().await.unwrap();
        }
        assert!(kept.iter().all(MutexGuard::is_valid));
        assert_eq!(told.load(Ordering::Relaxed), 100);
    }
}

/// It has none of the scripts, and then loses those that it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_caller_notices_that_the_new_primary_has_no_scripts() {
    let group = SentinelGroup::start(Flavor::available()[0]);
    let client = Client::connect(&group.url()).await.unwrap();
    let held = client.mutex("held").lock().await.unwrap();
    client
        .mutex("name")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let old = group.primary();
    until_replicated(group.server(old));
    let flush = |server: usize| again(group.server(server)).cli(&["SCRIPT", "FLUSH"]);
    let replicas = (0..3).filter(|server| *server != old);
    replicas.for_each(|server| drop(flush(server)));
    let new = group.failover();
    for _ in 0..20 {
        client
            .mutex("name")
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        // A look is sent once: one at the moment of the switch has no answer.
        while let Err(error) = held.verify().await {
            assert!(error.is_unreachable(), "{error}");
        }
        flush(new);
    }
    held.release().await.unwrap();
}

/// A caller is alone on its name. A lock that it gave back at the old primary may be held at the new one until it is given back there, too:
/// that is no "held by another". Every second user may not ask for `INFO`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_only_its_caller_uses_is_not_held_by_another_after_a_planned_failover() {
    for flavor in flavors(0) {
        let mut group = SentinelGroup::start(flavor);
        for round in 0..few_or(2, 10) {
            let rights = [
                "on",
                ">pw",
                "~*",
                "&*",
                "+@all",
                ["+info", "-info"][round % 2],
            ];
            for server in group.servers() {
                server.cli(&[&["ACL", "SETUSER", "app"][..], &rights].concat());
            }
            let url = group.url().replace("://", "://app:pw@");
            let client = Client::connect(&url).await.unwrap();
            let names = OwnNames::of(&client, &format!("alone {round}"), 42).await;
            tokio::time::sleep(500 * MS).await;
            group.failover();
            // Until it has left the old one, and some more.
            tokio::time::sleep(3000 * MS).await;
            assert_eq!(names.told_held().await, [""; 0], "{flavor}, round {round}");
            group.settle();
        }
    }
}

/// The second server learns by repetition what the first was told last, and the third knows neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_only_its_caller_uses_is_not_held_by_another_after_two_failovers_in_a_row() {
    let mut group = SentinelGroup::start(flavors(1)[0]);
    let client = Client::connect(&group.url()).await.unwrap();
    let first = group.primary();
    let mut replicas = Vec::new();
    let all = GivenBack::after(&client, "twice", || {
        group.server(first).cli(&["SET", "probe", "1"]);
        group.server(first).cli(&["WAIT", "2", "5000"]);
        replicas = group.freeze_replicas();
    });
    let all = all.await;
    group.kill(first);
    group.thaw_replicas(&replicas[..1]);
    let second = group.wait_for_successor(first);
    // It still had them, and they are given back there.
    wait_until_async(
        FAILOVER,
        "what the first knew is repeated at the second",
        || {
            let is_free = |name: &str| int(group.server(second), &["EXISTS", name]) == 0;
            all.0.iter().all(|(name, _)| is_free(name))
        },
    )
    .await;
    group.kill(second);
    group.thaw_replicas(&replicas[1..]);
    group.wait_for_successor(second);
    all.are_had_again().await;
}

/// A primary stands still with extensions in its socket, goes on when another has taken its place, and answers them: the new one knows
/// nothing of that (bug 300).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_is_answered_late_by_a_primary_that_was_replaced_is_not_believed() {
    const LEASE: Duration = Duration::from_secs(20);
    const LONGER: Duration = Duration::from_secs(60);
    let group = SentinelGroup::start(flavors(1)[0]);
    let client = Client::connect(&group.url()).await.unwrap();
    let names = ["a", "b", "c"];
    let mut guards = Vec::new();
    for name in names {
        let guard = client.mutex(name).fixed_lease(LEASE).lock().await.unwrap();
        // Else it would say that it does not know the script, which is asked elsewhere then.
        guard.extend(LEASE).await.unwrap();
        guards.push(guard);
    }
    let old = group.primary();
    group.server(old).cli(&["SET", "probe", "1"]);
    group.server(old).cli(&["WAIT", "2", "5000"]);
    group.server(old).freeze();
    // Its time is up before there is another primary. The client takes no notice of that connection any more, on which the others wait.
    let first = client.mutex("first");
    let first = tokio::spawn(async move { drop(first.try_lock().await) });
    let extensions = guards.into_iter().map(|guard| {
        tokio::spawn(async move {
            tokio::time::sleep(1500 * MS).await;
            let extended = guard.extend(LONGER).await;
            (extended, guard)
        })
    });
    let extensions: Vec<_> = extensions.collect();
    let new = tokio::task::block_in_place(|| group.wait_for_successor(old));
    drop(client.mutex("moved").lock().await.unwrap());
    group.server(old).thaw();
    for (name, extension) in names.iter().zip(extensions) {
        let (extended, guard) = extension.await.unwrap();
        let there = int(group.server(new), &["PTTL", name]);
        let there = Duration::from_millis(there.try_into().unwrap_or(0));
        let believed = guard.remaining();
        assert!(
            believed <= there,
            "{name}: {extended:?}, believed for {believed:?}, and there for {there:?}"
        );
        assert!(extended.is_err() || there > LEASE, "{extended:?}");
    }
    first.await.unwrap();
}
