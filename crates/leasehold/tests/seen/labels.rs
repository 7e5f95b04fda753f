//! The labels on the server: holders and those that wait are told by name, also after a crash, for one command in ten seconds.

use std::time::Duration;

use crate::common::{
    SOON, World, int, keys,
    kinds::{ROWS, Row},
    process::{Job, Process, hear, job, say},
    servers, soon,
    wire::Monitor,
};
use leasehold::Client;
use leasehold_testkit::{Server, wait_until_async};

// ---- what the other process does ----

#[test]
#[ignore = "a process of its own, started by the other tests"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::builder().url(&job.url).label("the-holder");
        let client = client.lease(job.lease).connect().await.unwrap();
        let mut guards = Vec::new();
        for row in ROWS.into_iter().filter(|row| row.has_lease()) {
            let name = name(row);
            row.prepare(&client, &name).await;
            guards.push(row.lock(&client, &name).lock().await.unwrap());
        }
        say("held");
        hear();
    });
    std::process::exit(0);
}

fn name(row: Row) -> String {
    format!("{row:?}")
}

async fn until_labelled(server: &Server, client: &Client) {
    let key = key_of(client);
    wait_until_async(SOON, "its label is there", || labels(server).contains(&key)).await;
}

/// The keys of labels.
fn labels(server: &Server) -> Vec<String> {
    let keys = server.cli(&["KEYS", "leasehold:client:*"]);
    redis::from_redis_value(keys).unwrap()
}

fn key_of(client: &Client) -> String {
    format!("leasehold:client:{}", &client.id()[..13])
}

// ---- the tests ----

#[tokio::test]
async fn a_holder_of_any_kind_is_named_after_it_was_killed_and_known_to_be_gone() {
    for server in servers() {
        let case = server.flavor().to_string();
        let mut holder = Process::start(&Job {
            what: "hold".into(),
            url: server.url(),
            name: String::new(),
            lease: Duration::from_secs(30),
        });
        holder.wait_for("held");
        wait_until_async(SOON, &case, || !labels(&server).is_empty()).await;
        let client = Client::connect(&server.url()).await.unwrap();
        for row in ROWS.into_iter().filter(|row| row.has_lease()) {
            let status = row.lock(&client, &name(row)).status().await;
            let holder = status.holder().expect("it is held");
            assert_eq!(holder.connected, Some(true), "{case}, {holder:?}");
        }
        holder.kill();
        for row in ROWS.into_iter().filter(|row| row.has_lease()) {
            let status = row.lock(&client, &name(row)).status().await;
            let holder = status.holder().expect("its lease lasts");
            let case = format!("{case}, {row:?}: {holder:?}");
            assert_eq!(holder.label.as_deref(), Some("the-holder"), "{case}");
            assert_eq!(holder.client.len(), 36, "{case}");
            assert!(holder.since.is_some(), "{case}");
            assert_eq!(holder.connected, Some(false), "{case}");
        }
    }
}

#[tokio::test]
async fn a_label_costs_one_command_at_the_first_hold_and_none_for_each_lock() {
    for server in servers() {
        let case = server.flavor().to_string();
        let client = Client::connect(&server.url()).await.unwrap();
        let mut monitor = Monitor::start(&server);
        let key = key_of(&client);
        let mutex = client.mutex("name");
        for row in ROWS.into_iter().filter(|row| row.has_lease()) {
            row.prepare(&client, &name(row)).await;
            let lock = row.lock(&client, &name(row)).lease(Duration::from_secs(20));
            lock.lock().await.unwrap().release().await.unwrap();
        }
        for _ in 0..100 {
            mutex.lock().await.unwrap().release().await.unwrap();
        }
        until_labelled(&server, &client).await;
        let ours = |sent: &&Vec<String>| sent.contains(&key) && sent[0] != "KEYS";
        let sent: Vec<_> = monitor.seen().iter().filter(ours).cloned().collect();
        assert_eq!(sent.len(), 1, "{case}: {sent:?}");
        assert_eq!(sent[0][0], "SET", "{case}: {sent:?}");
        // It goes by itself.
        let left = int(&server, &["PTTL", &key]);
        assert!((1..=75_000).contains(&left), "{case}: {left}");
    }
}

#[tokio::test]
async fn a_client_that_only_waits_is_named_too_and_all_stand_in_their_order() {
    for world in World::all() {
        for row in ROWS.into_iter().filter(|row| row.has_lease()) {
            if matches!(row, Row::Permit | Row::Count | Row::Spin) {
                continue; // without a queue
            }
            let case = format!("{}, {row:?}", world.name());
            let client = async |label: &str| world.builder().label(label).connect().await.unwrap();
            let holder = client("holder").await;
            let rivals = [client("first").await, client("second").await];
            let guard = row.lock(&holder, "name").lock().await.unwrap();
            let mut waiting = Vec::new();
            for (before, rival) in rivals.iter().enumerate() {
                waiting.push(tokio::spawn(row.rival(rival, "name").lock()));
                let lock = row.lock(&holder, "name");
                while lock.status().await.queue.len() == before {
                    tokio::task::yield_now().await;
                }
            }
            let status = row.lock(&holder, "name").status().await;
            let labels: Vec<_> = status.queue.iter().map(|it| it.label.clone()).collect();
            let expected = ["first", "second"].map(|label| Some(label.to_owned()));
            assert_eq!(labels, expected, "{case}: {status:?}");
            for (waiter, rival) in status.queue.iter().zip(&rivals) {
                assert_eq!(waiter.client, rival.id(), "{case}");
            }
            guard.release().await.unwrap();
            for waiting in waiting {
                let guard = soon(&case, waiting).await.unwrap().unwrap();
                guard.release().await.unwrap();
            }
            let status = row.lock(&holder, "name").status().await;
            assert_eq!(status.queue, [], "{case}");
            if let World::Server(server) = &world {
                for rival in &rivals {
                    until_labelled(server, rival).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn where_the_server_refuses_labels_no_lock_is_the_worse() {
    for server in servers() {
        let case = server.flavor().to_string();
        let user = [
            "ACL",
            "SETUSER",
            "worker",
            "on",
            ">pw",
            "~name",
            "~leasehold:{*",
            "&*",
            "+@all",
        ];
        server.cli(&user);
        let builder = Client::builder().url(server.url()).label("refused");
        let client = builder
            .username("worker")
            .password("pw")
            .connect()
            .await
            .unwrap();
        let mutex = client.mutex("name");
        let refused = || sets_refused(&server) > 0;
        let guard = mutex.lock().await.unwrap();
        wait_until_async(SOON, &case, refused).await;
        let status = mutex.status().await.unwrap();
        let holder = status.holder().unwrap();
        assert_eq!(
            holder.label.as_deref(),
            Some("refused"),
            "by its connection"
        );
        guard.release().await.unwrap();
        for _ in 0..20 {
            mutex.lock().await.unwrap().release().await.unwrap();
        }
        assert_eq!(sets_refused(&server), 1, "{case}");
        assert_eq!(labels(&server), [""; 0], "{case}");
    }
}

/// How many keys the server did not let a user write.
fn sets_refused(server: &Server) -> u32 {
    let info = server.cli(&["INFO", "commandstats"]);
    let info: String = redis::from_redis_value(info).unwrap();
    let line = info.lines().find(|line| line.starts_with("cmdstat_set:"));
    let count = line.and_then(|line| line.split("rejected_calls=").nth(1)?.split(',').next());
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_label_stays_while_a_lease_is_left_to_expire() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        until_labelled(&server, &client).await;
        let (id, key) = (client.id().to_owned(), key_of(&client));
        guard.detach();
        drop(client);
        assert_eq!(labels(&server), [key]);
        let looker = Client::connect(&server.url()).await.unwrap();
        let status = looker.status("name").await.unwrap();
        let holder = status.holder().unwrap();
        assert_eq!(holder.client, id);
        assert!(holder.label.is_some());
        assert!(
            status.server.contains(&server.addr().to_string()),
            "{status:?}"
        );
        assert!(!status.replica);
        assert_eq!(keys(&server), ["name"]);
    }
}
