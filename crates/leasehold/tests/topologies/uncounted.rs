//! Clients that hear a message and are not counted by the server that sends it: they listen at a replica.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::{Flavor, Server, wait_until};

use crate::common::{SOON, keys};

const QUEUE: &str = "leasehold:{name}:queue";

/// Two clients stand in the queue that listen at a replica, where `PUBLISH` at the primary does not count them. A release that went on by
/// that count told both that the name is theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_where_listeners_cannot_be_counted() {
    for flavor in Flavor::available() {
        for rights in [&["+@all", "-pubsub"][..], &["+@all"]] {
            let rules = ["--user", "worker", "on", ">pw", "~*", "&*"];
            let primary = Server::start_with(flavor, &[&rules[..], rights].concat());
            let port = primary.port().to_string();
            let replica = Server::start_with(flavor, &["--replicaof", "127.0.0.1", &port]);
            wait_until(SOON, "the replica follows", || {
                primary.cli(&["SET", "probe", "1"]);
                replica.cli(&["EXISTS", "probe"]) == redis::Value::Int(1)
            });
            let url = format!("redis://worker:pw@{}/", primary.addr());
            let client = Client::connect(&url).await.unwrap();
            let guard = client.mutex("name").lock().await.unwrap();

            let waiters = [
                "0a0a0a0a-1111-4111-8111-000000000001",
                "0a0a0a0a-1111-4111-8111-000000000002",
            ];
            let mut heard = replica.connection();
            heard
                .set_read_timeout(Some(Duration::from_millis(500)))
                .unwrap();
            let mut told = heard.as_pubsub();
            for (number, waiter) in waiters.iter().enumerate() {
                told.subscribe(format!("leasehold:{{name}}:grant:{waiter}"))
                    .unwrap();
                primary.cli(&["RPUSH", QUEUE, &format!("{waiter}:{} 30000 1", number + 1)]);
            }
            guard.release().await.unwrap();
            let mut grants = Vec::new();
            while let Ok(message) = told.get_message() {
                grants.push(message.get_payload::<String>().unwrap());
            }
            grants.retain(|grant| grant.contains(':'));
            assert!(grants.is_empty(), "{flavor}, {rights:?}: {grants:?}");
            assert!(!keys(&primary).contains(&"name".to_owned()));
        }
    }
}
