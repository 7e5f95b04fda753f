//! On real servers: alone, and as nodes of a cluster whose slots move.

use leasehold_testkit::{Cluster, Flavor, Server};
use redis::RedisError;

use super::*;
use crate::{
    backend::{
        Acquire, Acquired, Grant, LockSteps, QueueEntry, Release, ReleaseReply, Restarted, WakeUp,
        WakeUpSteps,
        redis::{
            Redis,
            sharding::{Chosen, Sharding},
            silence::Silence,
            target::{Login, Target},
        },
    },
    kind::{Access, LockKind},
    name::Name,
    owner::LeaseId,
};

const SOON: Duration = Duration::from_secs(20);

/// Passes on what it is told.
#[derive(Debug)]
struct Reported(mpsc::UnboundedSender<(LockId, WakeUp)>);

impl Sink for Reported {
    fn wake(&self, id: &LockId, wake_up: WakeUp) {
        let _ = self.0.send((id.clone(), wake_up));
    }

    fn restarted(&self, _change: Restarted) {}
}

/// A client, and what wakes it.
struct Client {
    redis: Redis,
    wakes: mpsc::UnboundedReceiver<(LockId, WakeUp)>,
}

impl Client {
    fn new(url: &str, number: u8, hearing: Hearing) -> Client {
        let (told, wakes) = mpsc::unbounded_channel();
        let target = Target::parse(url, &Login::default()).unwrap();
        let client = format!("00000000-0000-4000-8000-0000000000{number:02}").into();
        let (config, sink, background) = (
            Config::default(),
            Arc::new(Reported(told)),
            BackgroundRuntime::here(),
        );
        Client {
            redis: Redis::hearing(target, (&client, hearing), "", &config, sink, &background),
            wakes,
        }
    }

    async fn wakes(&mut self) -> (LockId, WakeUp) {
        let wakes = tokio::time::timeout(SOON, self.wakes.recv()).await;
        wakes.expect("it is woken").unwrap()
    }

    async fn acquire(&self, id: &LockId, lease: LeaseId, entry: Option<QueueEntry>) -> Acquired {
        let step = Acquire {
            id: id.clone(),
            access: Access::Exclusive,
            lease,
            lease_ms: 30_000,
            entry,
            permits: None,
        };
        self.redis.acquire(step).await.unwrap()
    }

    async fn release(&self, id: &LockId, lease: LeaseId) -> ReleaseReply {
        let step = Release {
            id: id.clone(),
            access: Access::Exclusive,
            lease,
            next: None,
            holds: None,
            held: true,
            tombstone_ms: None,
            listening: false,
        };
        self.redis.release(step).await.unwrap()
    }
}

fn mutex(name: &str) -> LockId {
    LockId::new(LockKind::Mutex, Name::new(name).unwrap())
}

fn channel(id: &LockId) -> String {
    format!("redisson_lock__channel:{{{}}}", id.name.wire())
}

fn counted(server: &Server, what: &str, channel: &str) -> u64 {
    let counts = server.cli(&["PUBSUB", what, channel]);
    let (_, count): (String, u64) = redis::from_redis_value(counts).unwrap();
    count
}

/// How often the server has answered which channels its cluster uses.
fn asked(server: &Server) -> u64 {
    let calls = server.calls();
    calls.get("pubsub|shardnumsub").copied().unwrap_or_default()
}

fn flavors() -> Vec<Flavor> {
    let flavors = Flavor::available();
    assert!(!flavors.is_empty(), "no real server to test on");
    flavors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_counts_and_wakes_those_that_listen_on_channels_of_its_sort() {
    for flavor in flavors() {
        let server = Server::start(flavor);
        for (sharding, heard_by, not_by) in [
            (Sharding::Classic, "NUMSUB", "SHARDNUMSUB"),
            (Sharding::Sharded, "SHARDNUMSUB", "NUMSUB"),
        ] {
            for kind in [LockKind::Mutex, LockKind::RwLock, LockKind::FairMutex] {
                let case = format!("{flavor} {sharding:?} {kind}");
                let hearing = || Hearing {
                    chosen: Chosen::by(Some(sharding)),
                    elsewhere: None,
                    silence: Silence::default(),
                };
                let first = Client::new(&server.url(), 1, hearing());
                let mut second = Client::new(&server.url(), 2, hearing());
                let id = LockId::new(kind, Name::new(&case).unwrap());
                let (lease, next) = (LeaseId::next(), LeaseId::next());
                let granted = first.acquire(&id, lease, None).await;
                assert!(matches!(granted, Acquired::Granted { .. }), "{case}");
                second.redis.listen(id.clone()).await.unwrap();
                let channels = super::super::kinds::wire(kind)
                    .channels(&id, "00000000-0000-4000-8000-000000000002");
                for channel in &channels {
                    assert_eq!(counted(&server, heard_by, channel), 1, "{case}");
                    assert_eq!(counted(&server, not_by, channel), 0, "{case}");
                }
                let entry = QueueEntry {
                    ask: 1,
                    keep_ms: 60_000,
                };
                let held = second.acquire(&id, next, Some(entry)).await;
                assert!(matches!(held, Acquired::Held { .. }), "{case}");
                let passed_on = first.release(&id, lease).await;
                assert!(matches!(passed_on, ReleaseReply::Granted { .. }), "{case}");
                loop {
                    let (woken, wake_up) = second.wakes().await;
                    assert_eq!(woken, id, "{case}");
                    if let WakeUp::Granted(Grant { lease, .. }) = wake_up {
                        assert_eq!(lease, next, "{case}");
                        break;
                    }
                }
                second.redis.unlisten(&id).await.unwrap();
                for channel in &channels {
                    assert_eq!(counted(&server, heard_by, channel), 0, "{case}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_asked_which_channels_its_cluster_uses_unless_the_settings_say_it() {
    for flavor in flavors() {
        let server = Server::start(flavor);
        let may = "ACL SETUSER classic on >secret ~* &* +@all -pubsub|shardnumsub";
        server.cli(&may.split(' ').collect::<Vec<_>>());
        let address = server.addr();
        let classic = format!("redis://classic:secret@{address}/");
        for (url, setting, expected) in [
            (&server.url(), None, Sharding::Sharded),
            (&classic, None, Sharding::Classic),
            (&classic, Some(Sharding::Sharded), Sharding::Sharded),
            (&server.url(), Some(Sharding::Classic), Sharding::Classic),
        ] {
            let case = format!("{flavor} {url} {setting:?}");
            let chosen = Chosen::by(setting);
            let hearing = Hearing {
                chosen: chosen.clone(),
                elsewhere: None,
                silence: Silence::default(),
            };
            let client = Client::new(url, 1, hearing);
            let before = asked(&server);
            client.redis.steps.runner.choose().await.unwrap();
            client.redis.steps.runner.choose().await.unwrap();
            assert_eq!(chosen.get(), expected, "{case}");
            let is_asked = asked(&server) != before;
            let is_open = setting.is_none() && expected == Sharding::Sharded;
            assert_eq!(is_asked, is_open, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_kinds_of_one_name_that_share_its_channels_are_left_one_by_one() {
    for flavor in flavors() {
        let server = Server::start(flavor);
        for sharding in [Sharding::Classic, Sharding::Sharded] {
            let case = format!("{flavor} {sharding:?}");
            let hearing = Hearing {
                chosen: Chosen::by(Some(sharding)),
                elsewhere: None,
                silence: Silence::default(),
            };
            let mut client = Client::new(&server.url(), 1, hearing);
            let ids = [
                (LockKind::Semaphore, "x"),
                (LockKind::LeasedSemaphore, "x"),
                (LockKind::Semaphore, "y"),
            ]
            .map(|(kind, name)| LockId::new(kind, Name::new(name).unwrap()));
            for id in &ids {
                client.redis.listen(id.clone()).await.unwrap();
            }
            // Nothing is left to end: the other kind has both channels. A request for none would end all.
            client.redis.unlisten(&ids[0]).await.unwrap();
            let publish = match sharding {
                Sharding::Classic => "PUBLISH",
                Sharding::Sharded => "SPUBLISH",
            };
            for id in &ids[1..] {
                let channel = super::super::kinds::wire(id.kind).channel(&id.name);
                server.cli(&[publish, &channel, "1"]);
                assert_eq!(client.wakes().await.0, *id, "{case}");
            }
        }
    }
}

/// Passes on which names a node hands up.
struct Unheard {
    node: usize,
    told: mpsc::UnboundedSender<(usize, LockId, Option<RedisError>)>,
}

impl Elsewhere for Unheard {
    fn unheard(&self, id: &LockId, refusal: Option<&RedisError>) {
        let _ = self.told.send((self.node, id.clone(), refusal.cloned()));
    }
}

/// The connections of one client at each node of a cluster, and what they hand up.
struct Connections {
    at: Vec<Client>,
    unheard: mpsc::UnboundedReceiver<(usize, LockId, Option<RedisError>)>,
}

impl Connections {
    fn new(cluster: &Cluster) -> Connections {
        let (told, unheard) = mpsc::unbounded_channel();
        let at = (0..cluster.nodes().len()).map(|node| {
            let told = told.clone();
            let hearing = Hearing {
                chosen: Chosen::by(Some(Sharding::Sharded)),
                elsewhere: Some(Arc::new(Unheard { node, told })),
                silence: Silence::default(),
            };
            Client::new(&format!("redis://{}/", cluster.addr(node)), 1, hearing)
        });
        Connections {
            at: at.collect(),
            unheard,
        }
    }

    async fn unheard(&mut self) -> (usize, LockId, Option<RedisError>) {
        let unheard = tokio::time::timeout(SOON, self.unheard.recv()).await;
        unheard.expect("the end of a subscription is told").unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_that_a_moved_slot_brings_is_told_apart_from_the_answers_beside_it() {
    const MOVES: usize = 100;
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let mut connections = Connections::new(&cluster);
        let ids: Vec<_> = (0..10).map(|i| mutex(&format!("moves-{i}"))).collect();
        let mut owners = Vec::new();
        for id in &ids {
            let owner = cluster.primary_of(cluster.slot(id.name.wire()));
            connections.at[owner]
                .redis
                .listen(id.clone())
                .await
                .unwrap();
            owners.push(owner);
        }
        // Beside them, at each node: names whose slots stay, listened for and left as fast as answers come.
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stays: Vec<LockId> = (0..3)
            .map(|node| {
                let mut names = (0..).map(|i| format!("stays-{i}"));
                let is_there = |name: &String| {
                    let slot = cluster.slot(name);
                    let moves = |id: &LockId| cluster.slot(id.name.wire()) == slot;
                    cluster.primary_of(slot) == node && !ids.iter().any(moves)
                };
                mutex(&names.find(is_there).unwrap())
            })
            .collect();
        let beside: Vec<_> = stays
            .iter()
            .zip(&connections.at)
            .map(|(id, client)| {
                let (subscriptions, id) =
                    (Arc::clone(&client.redis.steps.subscriptions), id.clone());
                let is_over = Arc::clone(&is_over);
                tokio::spawn(async move {
                    let mut answers = 0_u32;
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        subscriptions.listen(id.clone()).await.unwrap();
                        subscriptions.unlisten(&id).await.unwrap();
                        answers += 2;
                    }
                    subscriptions.listen(id.clone()).await.unwrap();
                    answers
                })
            })
            .collect();
        for i in 0..MOVES {
            let (id, owner) = (&ids[i % ids.len()], &mut owners[i % ids.len()]);
            let (slot, to) = (cluster.slot(id.name.wire()), (*owner + 1) % 3);
            tokio::task::block_in_place(|| cluster.migrate(slot, to));
            let (node, unheard, refusal) = connections.unheard().await;
            assert_eq!((node, &unheard), (*owner, id), "{flavor}, move {i}");
            assert!(refusal.is_none(), "{flavor}: {refusal:?}");
            assert!(
                !connections.at[*owner]
                    .redis
                    .steps
                    .subscriptions
                    .is_counted(id)
            );
            connections.at[to].redis.listen(id.clone()).await.unwrap();
            *owner = to;
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        for beside in beside {
            let answers = beside.await.unwrap();
            assert!(answers > 100, "{flavor}: {answers} answers beside them");
        }
        assert!(
            connections.unheard.try_recv().is_err(),
            "{flavor}: one too many"
        );
        for (id, owner) in ids.iter().zip(owners).chain(stays.iter().zip(0..)) {
            let heard: Vec<u64> = (0..3)
                .map(|node| cluster.shard_subscribers(node, &channel(id)))
                .collect();
            let expected: Vec<u64> = (0..3).map(|node| u64::from(node == owner)).collect();
            assert_eq!(heard, expected, "{flavor} {id:?}");
            cluster.command(owner, &["SPUBLISH", &channel(id), "0"]);
            assert_eq!(
                connections.at[owner].wakes().await,
                (id.clone(), WakeUp::TryAgain)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_slot_says_who_has_it_and_one_that_is_demoted_lets_go() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let mut connections = Connections::new(&cluster);
        let id = mutex("elsewhere");
        let slot = cluster.slot("elsewhere");
        let owner = cluster.primary_of(slot);
        let wrong = (owner + 1) % 3;
        // Who waits for the answer has it, and it is not handed up as well.
        let refused = connections.at[wrong]
            .redis
            .listen(id.clone())
            .await
            .unwrap_err();
        let refused = format!("{:?}", refused.cause());
        assert!(refused.contains("Moved"), "{flavor}: {refused}");
        assert!(connections.unheard.try_recv().is_err(), "{flavor}");
        connections.at[owner]
            .redis
            .listen(id.clone())
            .await
            .unwrap();
        let successor = tokio::task::block_in_place(|| cluster.fail_over(owner));
        let (node, unheard, _) = connections.unheard().await;
        assert_eq!((node, unheard), (owner, id.clone()), "{flavor}");
        connections.at[successor]
            .redis
            .listen(id.clone())
            .await
            .unwrap();
        assert_eq!(cluster.shard_subscribers(successor, &channel(&id)), 1);
    }
}
