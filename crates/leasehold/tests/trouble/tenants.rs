//! Users of one server that share it by the rules of `docs/keys.md`: each can do everything with its own names, and nothing with those of
//! another.

use std::time::Duration;

use crate::common::{
    SOON, channels, keys,
    kinds::{ROWS, Row},
    refused, servers, soon, wait_until_idle,
    wire::{documented_rules, more_rules},
};
use leasehold::Client;
use leasehold_testkit::{Server, wait_until_async};

/// The names of a tenant, in each form that a name may have.
fn names(tenant: &str) -> [String; 3] {
    [
        format!("{tenant}:x"),
        format!("{tenant}:{{x}}"),
        format!("{{{tenant}:x}}"),
    ]
}

/// Makes the user `b`, by all rules for the names that begin with `b:`.
fn let_b_in(server: &Server) {
    let mut rules = documented_rules();
    for what in [
        "fenced mutexes, elections",
        "leased semaphores",
        "semaphores without leases",
        "latches",
        "fair mutexes",
    ] {
        rules.extend(more_rules(what));
    }
    let rules: Vec<String> = rules
        .into_iter()
        .map(|rule| rule.replace("order", "b"))
        .collect();
    let mut command = vec!["ACL", "SETUSER", "b"];
    command.extend(rules.iter().map(String::as_str));
    server.cli(&command);
    // As the documentation says; Redis 7.0 does not know it.
    let _ = server.try_cli(&["ACL", "SETUSER", "b", "+client|setinfo"]);
}

async fn client_of_b(server: &Server) -> Client {
    let builder = Client::builder().url(server.url());
    let builder = builder.username("b").password("secret");
    builder.connect().await.unwrap()
}

async fn until_it_waits(client: &Client) {
    wait_until_async(SOON, "it waits", || {
        let now = client.footprint();
        now.waiting > 0 && now.asking == 0
    })
    .await;
}

#[tokio::test]
async fn a_tenant_can_do_everything_with_its_own_names() {
    for server in servers() {
        let_b_in(&server);
        let (one, two) = (client_of_b(&server).await, client_of_b(&server).await);
        for name in names("b") {
            for row in ROWS {
                let case = format!("{}, {name}, {row:?}", server.flavor());
                row.prepare(&one, &name).await;
                let (first, second) = (row.lock(&one, &name), row.rival(&two, &name));
                let guard = soon(&case, first.lock()).await.expect(&case);
                assert!(second.try_lock().await.expect(&case).is_none(), "{case}");
                let wait = Duration::from_millis(50);
                assert!(second.try_lock_for(wait).await.unwrap().is_none(), "{case}");
                let waiting = tokio::spawn(second.lock());
                wait_until_async(SOON, &case, || two.footprint().waiting > 0).await;
                let nobody = first.status().await.holders.is_empty();
                assert_eq!(nobody, row == Row::Count, "{case}");
                guard.verify().await.expect(&case);
                guard.release().await.expect(&case);
                let guard = soon(&case, waiting).await.unwrap().expect(&case);
                let unlocks = second.force_unlock().await.expect(&case);
                assert_eq!(unlocks, row != Row::Count, "{case}");
                drop(guard);
                for client in [&one, &two] {
                    wait_until_idle(client).await;
                }
                server.cli(&["FLUSHALL"]);
                assert_eq!(refused(&server), [], "{case}");
            }
            let latch = one.latch(&name);
            assert!(latch.try_set_count(2).await.unwrap());
            let waiting = {
                let latch = two.latch(&name);
                tokio::spawn(async move { latch.wait().await })
            };
            until_it_waits(&two).await;
            latch.count_down_by(2).await.unwrap();
            soon("it is open", waiting).await.unwrap().unwrap();
            let guard = one.fenced_mutex(&name).lock().await.unwrap();
            let store = two.fenced_store(&name);
            store.set("b-data:x", "1", guard.token()).await.unwrap();
            assert!(store.get("b-data:x").await.unwrap().is_some());
            guard.release().await.unwrap();
            let term = one.election(&name).value("one").campaign().await.unwrap();
            let leader = two.election(&name).leader().await.unwrap().unwrap();
            assert_eq!((&*leader.value, leader.token), ("one", term.token()));
            term.resign().await.unwrap();
            server.cli(&["FLUSHALL"]);
            assert_eq!(refused(&server), [], "{name}");
        }
    }
}

#[tokio::test]
async fn a_user_that_may_only_ask_who_leads_is_told_and_can_write_nothing() {
    for server in servers() {
        let docs = std::fs::read_to_string("../../docs/keys.md").unwrap();
        let line = docs
            .lines()
            .find(|line| line.contains("only asks who leads"));
        let rules: Vec<&str> = line
            .unwrap()
            .split('`')
            .nth(1)
            .unwrap()
            .split(' ')
            .collect();
        let user = ["ACL", "SETUSER", "b", "reset", "on", ">secret"];
        server.cli(&[&user[..], &rules].concat());
        let leads = Client::connect(&server.url()).await.unwrap();
        let looks = client_of_b(&server).await;
        for name in names("order") {
            let term = leads.election(&name).campaign().await.unwrap();
            let seen = looks.election(&name).observe().next().await.unwrap();
            assert_eq!(seen.unwrap().token, term.token(), "{name}");
            let campaign = looks.election(&name).campaign();
            let error = soon("the refusal", campaign).await.unwrap_err();
            assert_eq!(error.kind(), leasehold::ErrorKind::Rejected, "{error}");
            for key in keys(&server) {
                assert_not_permitted(&server, &["DEL", &key]);
            }
            term.resign().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_tenant_can_neither_touch_nor_publish_nor_hear_what_is_anothers() {
    for server in servers() {
        let_b_in(&server);
        let (one, two) = (
            Client::connect(&server.url()).await.unwrap(),
            Client::connect(&server.url()).await.unwrap(),
        );
        // Labels are everyone's, as docs/keys.md says, and nothing beside them.
        let label = format!("leasehold:client:{}", &one.id()[..13]);
        let said = server.cli(&["ACL", "DRYRUN", "b", "SET", &label, "b's"]);
        assert_eq!(said, redis::Value::Okay);
        assert_not_permitted(&server, &["SET", "leasehold:client", "b's"]);
        for name in names("a") {
            for row in ROWS {
                let case = format!("{}, {name}, {row:?}", server.flavor());
                row.prepare(&one, &name).await;
                let guard = row.lock(&one, &name).lock().await.unwrap();
                let waiting = tokio::spawn(row.rival(&two, &name).lock());
                if row == Row::Spin {
                    wait_until_async(SOON, &case, || two.footprint().waiting > 0).await;
                } else {
                    wait_until_async(SOON, &case, || !channels(&server).is_empty()).await;
                }
                for key in keys(&server) {
                    assert_not_permitted(&server, &["DEL", &key]);
                    assert_not_permitted(&server, &["TYPE", &key]);
                }
                for channel in channels(&server) {
                    assert_not_permitted(&server, &["PUBLISH", &channel, "0"]);
                    assert_not_permitted(&server, &["SUBSCRIBE", &channel]);
                }
                guard.release().await.unwrap();
                drop(soon(&case, waiting).await.unwrap().unwrap());
                for client in [&one, &two] {
                    wait_until_idle(client).await;
                }
                server.cli(&["FLUSHALL"]);
            }
            let latch = two.latch(&name);
            assert!(latch.try_set_count(1).await.unwrap());
            let waiting = tokio::spawn(async move { latch.wait().await });
            wait_until_async(SOON, "it listens", || !channels(&server).is_empty()).await;
            for key in keys(&server) {
                assert_not_permitted(&server, &["DEL", &key]);
            }
            for channel in channels(&server) {
                assert_not_permitted(&server, &["PUBLISH", &channel, "0"]);
            }
            one.latch(&name).count_down().await.unwrap();
            soon("it is open", waiting).await.unwrap().unwrap();
            server.cli(&["FLUSHALL"]);
        }
    }
}

/// The server would refuse the user `b` this command.
#[track_caller]
fn assert_not_permitted(server: &Server, command: &[&str]) {
    let said = server.cli(&[&["ACL", "DRYRUN", "b"], command].concat());
    let said: String = redis::from_redis_value(said).unwrap();
    assert!(
        said.contains("permissions"),
        "{} lets b {command:?}: {said}",
        server.flavor()
    );
}
