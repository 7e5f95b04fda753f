//! The leased semaphore as Redisson would see it: keys, ids, ends, channel and payload, byte for byte (`docs/keys.md`), and
//! which client gets permits that become free. The scripts by themselves: `leased_semaphore_scripts.rs`.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use crate::common::{
    SOON, World, int, keys, refused, servers, soon, wait_until_idle, wire::Network,
};
use leasehold::{Access, Client, LeasedSemaphore, LostReason, PermitGuard, Released};
use leasehold_testkit::{Proxy, Server, wait_until, wait_until_async};

const OUT: &str = "{name}:timeout";
const CHANNEL: &str = "redisson_sc:{name}";
const SECOND: Duration = Duration::from_secs(1);

/// The permits that are out: their ids and ends.
fn out(server: &Server) -> Vec<(Vec<u8>, i64)> {
    redis::from_redis_value(server.cli(&["ZRANGE", OUT, "0", "-1", "WITHSCORES"])).unwrap()
}

fn free(server: &Server) -> i64 {
    int(server, &["GET", "name"])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes all");
        hex
    })
}

/// The server's clock.
fn now_ms(server: &Server) -> i64 {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(server.cli(&["TIME"])).unwrap();
    seconds * 1000 + micros / 1000
}

async fn semaphore(server: &Server) -> (Client, LeasedSemaphore) {
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.leased_semaphore("name");
    (client, semaphore)
}

/// Until so many clients listen.
async fn until_heard_by(server: &Server, clients: i64) {
    wait_until_async(SOON, "they listen", || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", CHANNEL]);
        let (_, heard): (String, i64) = redis::from_redis_value(reply).unwrap();
        heard == clients
    })
    .await;
}

async fn release(guard: PermitGuard) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

#[tokio::test]
async fn the_keys_are_redissons_number_and_sorted_set_and_nothing_else() {
    for server in servers() {
        let (client, semaphore) = semaphore(&server).await;
        assert!(semaphore.try_set_permits(5).await.unwrap());
        let before = now_ms(&server);
        let guard = semaphore.acquire_many(3).await.unwrap();
        let after = now_ms(&server);
        let mut names = keys(&server);
        names.sort();
        assert_eq!(names, ["name", OUT]);
        assert_eq!(free(&server), 2);
        for key in ["name", OUT] {
            assert_eq!(int(&server, &["PTTL", key]), -1, "as Redisson's");
        }

        let uuid = client.id().replace('-', "");
        let lease = &guard.owner()[16..];
        let permits = out(&server);
        assert_eq!(permits.len(), 3);
        for (number, (id, end)) in permits.iter().enumerate() {
            assert_eq!(hex(id), format!("{}{number:04x}{lease}", &uuid[..12]));
            let left = 30_000;
            assert!((before + left..=after + left).contains(end), "{end}");
        }
        assert_eq!(guard.owner(), hex(&permits[0].0));

        let status = semaphore.status().await.unwrap();
        assert_eq!(status.available, Some(2));
        let [holder] = status.holders.as_slice() else {
            panic!("{status:?}");
        };
        assert_eq!(holder.owner, guard.owner());
        assert_eq!((holder.access, holder.holds), (Access::Permits(3), 1));
        release(guard).await;
        assert_eq!((free(&server), out(&server).len()), (5, 0));
        assert_eq!(keys(&server), ["name"]);
    }
}

#[tokio::test]
async fn each_step_publishes_what_redissons_does() {
    for server in servers() {
        let (_, semaphore) = semaphore(&server).await;
        let mut listeners = server.connection();
        let mut listeners = listeners.as_pubsub();
        listeners.subscribe(CHANNEL).unwrap();
        listeners.set_read_timeout(Some(SOON)).unwrap();
        let mut heard = || {
            String::from_utf8(
                listeners
                    .get_message()
                    .unwrap()
                    .get_payload_bytes()
                    .to_vec(),
            )
        };

        semaphore.try_set_permits(5).await.unwrap();
        assert_eq!(heard().unwrap(), "5");
        let three = semaphore.acquire_many(3).await.unwrap();
        release(three).await;
        assert_eq!(
            heard().unwrap(),
            "03",
            "of several: those given back; and one turn is left"
        );
        release(semaphore.acquire().await.unwrap()).await;
        let told = heard().unwrap();
        assert_eq!(
            told.trim_start_matches(['+', '0']),
            "5",
            "of one: those that are free now"
        );
        semaphore.set_permits(9).await.unwrap();
        assert_eq!(heard().unwrap(), "9");
        assert_eq!(semaphore.add_permits(-9).await.unwrap(), 0);
        assert_eq!(semaphore.add_permits(2).await.unwrap(), 2);
        assert_eq!(heard().unwrap(), "2", "and nothing for those taken away");
        let held = semaphore.fixed_lease(SECOND).acquire().await.unwrap();
        assert_eq!(semaphore.add_permits(-3).await.unwrap(), -2);
        release(held).await;
        assert_eq!(semaphore.available_permits().await.unwrap(), -1);
        semaphore.set_permits(4).await.unwrap();
        assert_eq!(heard().unwrap(), "4", "and nothing below one");
        // Given back by the next client that looks, when its time is over.
        semaphore
            .fixed_lease(SECOND / 10)
            .acquire()
            .await
            .unwrap()
            .detach();
        wait_until(SOON, "it is over", || out(&server)[0].1 <= now_ms(&server));
        assert_eq!(semaphore.status().await.unwrap().available, Some(4));
        assert_eq!(free(&server), 3, "a look writes nothing");
        assert_eq!(semaphore.available_permits().await.unwrap(), 4);
        assert_eq!(heard().unwrap(), "4");
    }
}

#[tokio::test]
async fn a_release_wakes_who_waits_elsewhere_long_before_any_lease_ends() {
    for server in servers() {
        let (_, here) = semaphore(&server).await;
        let (there, waiting) = semaphore(&server).await;
        here.try_set_permits(3).await.unwrap();
        let two = here.acquire_many(2).await.unwrap();
        let waiter = tokio::spawn(waiting.acquire_many(3));
        until_waiting_here_of(&waiting, 1).await;
        until_heard_by(&server, 1).await;
        let released = Instant::now();
        release(two).await;
        let three = soon("woken", waiter).await.unwrap().unwrap();
        assert!(released.elapsed() < SECOND, "{:?}", released.elapsed());
        assert_eq!(three.permits(), 3);
        release(three).await;
        wait_until_idle(&there).await;
        assert_eq!((free(&server), out(&server).len()), (3, 0));
    }
}

async fn until_waiting_here_of(semaphore: &LeasedSemaphore, tasks: usize) {
    let deadline = Instant::now() + SOON;
    while semaphore.status().await.unwrap().waiting_here != tasks {
        assert!(Instant::now() < deadline, "{tasks} tasks never waited");
    }
}

#[tokio::test]
async fn permits_of_a_dead_client_come_back_to_a_waiter_without_anybody_calling() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let dies = Client::builder().url(proxy.url()).connect().await.unwrap();
        let (_, waiting) = semaphore(&server).await;
        waiting.try_set_permits(3).await.unwrap();
        let held = dies.leased_semaphore("name").lease(SECOND);
        let held = held.acquire_many(3).await.unwrap();
        let waiter = tokio::spawn(waiting.acquire_many(2));
        let with_limit = tokio::spawn(waiting.try_acquire_many_for(1, 10 * SECOND));
        until_heard_by(&server, 1).await;
        proxy.refuse(true);
        proxy.cut();
        let end = out(&server)[0].1;
        let two = soon("they come back", waiter).await.unwrap().unwrap();
        let late = now_ms(&server) - end;
        assert!((0..200).contains(&late), "{late} ms late");
        assert_eq!(held.lost().await, LostReason::Expired);
        let one = soon("in the middle of its wait", with_limit).await.unwrap();
        release(one.unwrap().unwrap()).await;
        assert_eq!((free(&server), out(&server).len()), (1, 2));
        release(two).await;
    }
}

#[tokio::test]
async fn renewal_keeps_all_permits_and_what_is_taken_from_a_hold_ends_it() {
    for server in servers() {
        let (_, semaphore) = semaphore(&server).await;
        semaphore.try_set_permits(1024).await.unwrap();
        let all = semaphore.lease(SECOND).acquire_many(1024).await.unwrap();
        let first_end = out(&server)[0].1;
        wait_until_async(SOON, "it is renewed twice", || {
            let ends = out(&server);
            assert_eq!(ends.len(), 1024);
            ends.iter().all(|(_, end)| *end > first_end + 500)
        })
        .await;
        assert!(all.is_valid());
        all.extend(Duration::from_secs(20)).await.unwrap_err(); // it is renewed
        // Redisson releases one of them, by its id.
        let (id, _) = out(&server).pop().unwrap();
        let zrem = redis::cmd("ZREM").arg(OUT).arg(id).clone();
        zrem.exec(&mut server.connection()).unwrap();
        server.cli(&["INCR", "name"]);
        assert_eq!(soon("it is lost", all.lost()).await, LostReason::Replaced);
        drop(all);
        // The rest is given back, or ends by itself.
        let deadline = Instant::now() + 2 * SECOND;
        while semaphore.available_permits().await.unwrap() != 1024 {
            assert!(Instant::now() < deadline, "the rest never comes back");
        }
        assert_eq!((free(&server), out(&server).len()), (1024, 0));
    }
}

#[tokio::test]
async fn an_acquisition_whose_reply_is_lost_takes_its_permits_once() {
    for world in World::all() {
        let network = Network::to(&world);
        let client = network.client().await;
        let semaphore = client.leased_semaphore("name");
        semaphore.try_set_permits(3).await.unwrap();
        network.lose_replies(1);
        let two = soon("it asks again", semaphore.acquire_many(2)).await;
        let two = two.unwrap();
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        network.lose_replies(1);
        let _ = two.release().await; // "unconfirmed", or by its second copy
        let deadline = Instant::now() + SOON;
        while semaphore.available_permits().await.unwrap() != 3 {
            assert!(Instant::now() < deadline, "they never come back");
        }
        wait_until_idle(&client).await;
    }
}

/// The words of the code blocks under "Permissions", without the user and the password.
fn documented_permissions() -> Vec<String> {
    let keys = include_str!("../../../../docs/keys.md");
    let (_, section) = keys.split_once("## Permissions").unwrap();
    let blocks = section.split("```").skip(1).step_by(2);
    let blocks = blocks.filter(|block| !block.contains("user watcher"));
    let words = blocks.flat_map(str::split_whitespace);
    let rules = words.filter(|word| word.starts_with(['~', '&', '+']));
    rules.map(str::to_owned).collect()
}

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    for server in servers() {
        let rules = documented_permissions();
        assert!(rules.contains(&"+zscore".to_owned()), "{rules:?}");
        let user = ["ACL", "SETUSER", "worker", "reset", "on", ">pw"];
        let user = user.into_iter().chain(rules.iter().map(String::as_str));
        server.cli(&user.collect::<Vec<_>>());
        server.cli(&["ACL", "LOG", "RESET"]);
        let builder = Client::builder().url(server.url());
        let builder = builder.username("worker").password("pw");
        let client = builder.connect().await.unwrap();
        let semaphore = client.leased_semaphore("order:42");
        semaphore.try_set_permits(2).await.unwrap();
        semaphore.set_permits(3).await.unwrap();
        semaphore.add_permits(1).await.unwrap();
        let short = semaphore.fixed_lease(SECOND / 20);
        short.acquire_many(2).await.unwrap().detach(); // to be given back by the next
        let all = soon("all", semaphore.lease(SECOND).acquire_many(4)).await;
        let all = all.unwrap();
        tokio::time::sleep(SECOND).await; // renewed, or it would be lost
        assert!(all.is_valid());
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        assert_eq!(semaphore.status().await.unwrap().available, Some(0));
        release(all).await;
        wait_until_idle(&client).await;
        let log = format!("{:?}", refused(&server));
        let refused = log.matches("\"reason\"").count();
        let setinfo = log.matches("client|setinfo").count();
        assert!(refused <= setinfo, "{log}");
    }
}

#[tokio::test]
async fn of_many_holders_the_thousand_are_listed_that_end_first() {
    const MANY: &str = "local now = redis.call('TIME')[1] * 1000 \
        for i = 1, 20000 do \
          redis.call('ZADD', KEYS[1], now + ARGV[1], string.format('%016d', i)) \
        end";
    for server in servers() {
        let (_, semaphore) = semaphore(&server).await;
        semaphore.try_set_permits(1024).await.unwrap();
        let all = semaphore.acquire_many(1024).await.unwrap();
        server.cli(&["EVAL", MANY, "1", OUT, "90000"]);
        let status = semaphore.status().await.unwrap();
        assert_eq!(status.holders[0].access, Access::Permits(1024));
        assert_eq!(status.holders[0].owner, all.owner());
        assert_eq!(status.holders.len(), 1, "to the end of a hold");
        release(all).await;
        assert_eq!(semaphore.status().await.unwrap().holders.len(), 1000);
        // And when all come back at once.
        server.cli(&["EVAL", MANY, "1", OUT, "-90000"]);
        assert_eq!(semaphore.available_permits().await.unwrap(), 21_024);
        assert_eq!(out(&server).len(), 0);
    }
}

#[tokio::test]
async fn the_name_of_a_mutex_is_refused_and_left_alone() {
    for server in servers() {
        let (client, semaphore) = semaphore(&server).await;
        let guard = client.mutex("name").lock().await.unwrap();
        let error = semaphore.acquire().await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("held as a mutex, and not as a leased_semaphore"),
            "{text}"
        );
        guard.verify().await.unwrap();
    }
}

/// With `permits_exactly(n)` there are never more; with `permits(n)` others may have set more, so it is only warned of.
#[tokio::test]
async fn more_permits_than_there_ever_are_are_refused() {
    for world in World::all() {
        let client = world.client().await;
        let two = client.leased_semaphore("name").permits_exactly(2);
        for refused in [
            two.acquire_many(3).await.map(drop),
            two.try_acquire_many(3).await.map(drop),
            two.try_acquire_many_for(3, Duration::from_secs(1))
                .await
                .map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), leasehold::ErrorKind::Invalid);
            let said = "permits is 3, but must be at most 2";
            assert!(refused.to_string().starts_with(said), "{refused}");
        }
        assert_eq!(two.acquire_many(2).await.unwrap().permits(), 2);
    }
}
