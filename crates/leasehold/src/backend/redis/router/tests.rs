//! A new topology is a router: here every second name is at another server.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use leasehold_testkit::{Flavor, Server, wait_until_async};

use super::*;
use crate::{
    Client,
    backend::redis::{
        Redis,
        cluster::slots::slot,
        find,
        repeats::Repeats,
        target::{Login, Target},
    },
    background::BackgroundRuntime,
    clock::Clock,
    config::Config,
    engine::{core::Core, wakeup::WakeUps},
    error::Cause,
    outage::Outage,
};

const SOON: Duration = Duration::from_secs(20);

#[derive(Clone)]
struct EverySecond([Redis; 2]);

impl EverySecond {
    fn at(&self, id: &LockId) -> &Redis {
        &self.0[usize::from(self.slot(id.name.wire()))]
    }
}

impl Router for EverySecond {
    type Servers = Repeats;

    const HAS_SEVERAL: bool = true;

    fn slot(&self, key: &str) -> u16 {
        slot(key) % 2
    }

    fn send<T: Send + 'static>(
        &self,
        way: Route,
        step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<NodeAnswer<T>> {
        self.0[usize::from(way.slot)].send(way, step)
    }

    fn replaceable(&self) -> Option<&Arc<Repeats>> {
        None
    }

    fn steps(&self) -> NodeSteps {
        self.0[0].steps()
    }

    /// The pages of one server, and then those of the other.
    fn page(&self, step: FindPage) -> Reply<FoundPage> {
        let at = step.cursor.server;
        let page = find::find(&self.0[usize::from(at)].steps.runner, &step);
        Box::pin(async move {
            let mut page = page.await?;
            page.cursor.others = 1;
            page.cursor.server = if page.cursor.keys == 0 { 1 - at } else { at };
            Ok(page)
        })
    }

    fn inspect_each(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>> {
        let found = ids.iter().map(|id| self.at(id).steps.inspect(id.clone()));
        let found: Vec<_> = found.collect();
        Box::pin(async move { crate::backend::find::all_of(&ids, found).await })
    }
}

impl WakeUpSteps for EverySecond {
    fn listen(&self, id: LockId) -> Reply<()> {
        self.at(&id).listen(id)
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        self.at(id).unlisten(id)
    }
}

impl ServerLink for EverySecond {
    fn show(&self, lasts_ms: u64) -> Reply<()> {
        let shown = self.0.each_ref().map(|redis| redis.show(lasts_ms));
        Box::pin(async move { join_all(shown).await.into_iter().collect() })
    }

    fn has_reached(&self) -> bool {
        self.0.iter().any(ServerLink::has_reached)
    }

    fn trouble(&self) -> Option<Cause> {
        self.0.iter().find_map(ServerLink::trouble)
    }

    fn trouble_of(&self, id: &LockId) -> Option<Cause> {
        self.at(id).trouble()
    }

    fn outage(&self) -> &Outage {
        self.0[0].outage()
    }

    fn server(&self) -> String {
        format!("{:?} and {:?}", self.0[0], self.0[1])
    }

    fn server_of(&self, id: &LockId) -> String {
        self.at(id).server()
    }

    fn shard(&self, id: &LockId) -> Option<u32> {
        Some(self.slot(id.name.wire()).into())
    }

    fn prepare(&self) {
        self.0.iter().for_each(ServerLink::prepare);
    }

    fn move_to_background(&self) {
        self.0.iter().for_each(ServerLink::move_to_background);
    }

    fn shut(&self) {
        self.0.iter().for_each(ServerLink::shut);
    }
}

impl fmt::Debug for EverySecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.server())
    }
}

fn client(servers: &[Server; 2], number: u8) -> Client {
    let uuid = format!("00000000-0000-4000-8000-0000000000{number:02}").into();
    let (config, wake_ups) = (Config::default(), Arc::new(WakeUps::default()));
    let background = BackgroundRuntime::here();
    let router = servers.each_ref().map(|server| {
        let target = Target::parse(&server.url(), &Login::default()).unwrap();
        let sink = Arc::clone(&wake_ups);
        Redis::new(target, &uuid, "", &config, sink, &background)
    });
    let backend = Box::new(EverySecond(router));
    let core = Core::start(uuid, Clock::Boot, config, backend, &wake_ups, background);
    Client::new(&core)
}

/// The names of these keys, or channels, of each server.
fn at_each(servers: &[Server; 2], question: &[&str], prefix: &str) -> [BTreeSet<String>; 2] {
    servers.each_ref().map(|server| {
        let found: Vec<String> = redis::from_redis_value(server.cli(question)).unwrap();
        let names = found.iter().filter_map(|it| it.strip_prefix(prefix));
        names.map(|name| name.replace(['{', '}'], "")).collect()
    })
}

#[tokio::test]
async fn a_router_that_sends_every_second_name_elsewhere_is_a_topology() {
    let flavor = Flavor::available()[0];
    let servers = [Server::start(flavor), Server::start(flavor)];
    let (one, two) = (client(&servers, 1), client(&servers, 2));
    let names: BTreeSet<String> = (0..20).map(|number| format!("name{number}")).collect();
    let all = async |client: &Client| {
        let locks = names.iter().map(|name| client.mutex(name).lock());
        let fair = names
            .iter()
            .map(|name| client.fair_mutex(format!("fair{name}")).lock());
        let (locks, fair) = (join_all(locks), join_all(fair));
        let all = tokio::time::timeout(SOON, join(locks, fair));
        let (locks, fair) = all.await.expect("each is free, or its waiter is woken");
        let locks: Vec<_> = locks.into_iter().map(Result::unwrap).collect();
        let fair: Vec<_> = fair.into_iter().map(Result::unwrap).collect();
        (locks, fair)
    };
    let (locks, fair) = all(&one).await;
    let at = at_each(&servers, &["KEYS", "name*"], "");
    assert!(at.iter().all(|names| !names.is_empty()), "{at:?}");
    assert!(at[0].is_disjoint(&at[1]));
    assert_eq!(at[0].union(&at[1]).cloned().collect::<BTreeSet<_>>(), names);
    // They are found at both.
    let (mut find, mut found) = (one.find("name*"), BTreeSet::new());
    while let Some(page) = find.next().await.unwrap() {
        found.extend(page.into_iter().map(|status| status.name));
    }
    assert_eq!(found, names);
    // A waiter listens where its name is, and is woken there.
    let given_back = async {
        let channels = ["PUBSUB", "CHANNELS", "redisson_lock__channel:*"];
        let is_heard = || at_each(&servers, &channels, "redisson_lock__channel:") == at;
        wait_until_async(SOON, "each waiter listens where its name is", is_heard).await;
        for held in locks {
            held.release().await.unwrap();
        }
        for held in fair {
            held.release().await.unwrap();
        }
    };
    let ((), (locks, fair)) = join(given_back, all(&two)).await;
    assert_eq!((locks.len(), fair.len()), (20, 20));
}
