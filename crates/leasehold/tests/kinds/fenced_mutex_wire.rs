//! The fenced mutex, word by word: late and second copies of its requests, and the rights that it needs.

use std::time::Duration;

use crate::common::{
    int, keys, owners, refused, release, servers, soon, wait_until_idle,
    wire::{Monitor, documented_rules, more_rules, send_copy},
};
use leasehold::{Client, ErrorKind, FencedMutex};
use leasehold_testkit::{Server, wait_until_async};

const SOON: Duration = Duration::from_secs(10);
const TOKEN: &str = "redisson_lock_token:{name}";

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

async fn until_listening(mutex: &FencedMutex, clients: u64) {
    while !matches!(mutex.status().await, Ok(status) if status.waiting_clients == clients) {
        tokio::task::yield_now().await;
    }
}

/// The last token that was given or reserved.
fn last(server: &Server) -> u64 {
    redis::from_redis_value(server.cli(&["GET", TOKEN])).expect("a token")
}

#[tokio::test]
async fn a_free_name_costs_one_request_to_take_and_one_to_give_back() {
    for server in servers() {
        let client = client_of(&server).await;
        let mutex = client.fenced_mutex("name");
        // The server knows the scripts from here on.
        release(mutex.lock().await.unwrap()).await;
        let mut monitor = Monitor::start(&server);
        let guard = mutex.lock().await.unwrap();
        assert_eq!(owners(&server, "name"), [(guard.owner(), 1)], "Redisson's");
        assert_eq!(last(&server), guard.token() + 64);
        release(guard).await;
        let sent = monitor.seen().iter().filter(|sent| sent[0] == "EVALSHA");
        assert_eq!(sent.count(), 2);
        assert_eq!(keys(&server), [TOKEN]);
    }
}

#[tokio::test]
async fn a_second_copy_of_any_request_moves_no_token_back_and_gives_none_twice() {
    for server in servers() {
        let (one, other) = (client_of(&server).await, client_of(&server).await);
        let (mutex, others) = (one.fenced_mutex("name"), other.fenced_mutex("name"));
        release(mutex.lock().await.unwrap()).await;
        let mut monitor = Monitor::start(&server);
        let guard = mutex.lock().await.unwrap();
        let asked = monitor.calls(TOKEN);
        let acquire = asked.last().expect("it was asked for").clone();

        // While it holds: newer tokens, which its holder does not hear of.
        let before = last(&server);
        send_copy(&server, &acquire);
        assert!(last(&server) > before);
        assert!(guard.token() < before);
        assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);

        // To the next in line, and the copy finds its owner gone.
        let waiter = tokio::spawn(others.lock());
        until_listening(&mutex, 1).await;
        wait_until_async(SOON, "it stands in line", || {
            int(&server, &["LLEN", "leasehold:{name}:fenced:queue"]) == 1
        })
        .await;
        let token = guard.token();
        release(guard).await;
        let next = soon("handed over", waiter).await.unwrap().unwrap();
        assert!(next.token() > token);
        let given = last(&server);
        let calls = monitor.calls(TOKEN);
        let released = calls
            .iter()
            .rev()
            .find(|call| call[7].starts_with("redisson_lock__channel"));
        send_copy(&server, released.expect("a release names the channel"));
        // The copy of the acquisition comes after the end of its lease id: held by another.
        send_copy(&server, &acquire);
        assert_eq!(owners(&server, "name"), [(next.owner(), 1)]);
        assert_eq!(last(&server), given, "nothing was given");
        next.verify().await.unwrap();
        release(next).await;
        for client in [&one, &other] {
            wait_until_idle(client).await;
        }
    }
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    for server in servers() {
        let mut command = vec!["ACL".to_owned(), "SETUSER".to_owned(), "worker".to_owned()];
        command.extend(documented_rules());
        command.extend(more_rules("fenced mutexes"));
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        server.cli(&command);
        // As the documentation says; Redis 7.0 does not know it.
        let _ = server.try_cli(&["ACL", "SETUSER", "worker", "+client|setinfo"]);
        let connect = || {
            let builder = Client::builder().url(server.url());
            builder.username("worker").password("secret").connect()
        };
        let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
        let [first, second] = [&one, &two].map(|client| client.fenced_mutex("order:1"));
        let guard = first.lock().await.unwrap();
        let waiter = tokio::spawn(second.lock());
        wait_until_async(SOON, "the waiter is in line", || {
            int(&server, &["LLEN", "leasehold:{order:1}:fenced:queue"]) == 1
        })
        .await;
        let next = tokio::spawn(first.lock());
        release(guard).await;
        drop(soon("given", waiter).await.unwrap().unwrap());
        let guard = soon("given", next).await.unwrap().unwrap();
        let store = one.fenced_store("order:1");
        let (text, hash) = ("order-data:text", "order-data:hash");
        store.set(text, "value", guard.token()).await.unwrap();
        store
            .set_field(hash, "a", "b", guard.token())
            .await
            .unwrap();
        assert_eq!(store.get(text).await.unwrap().unwrap(), b"value");
        assert_eq!(store.get_field(hash, "a").await.unwrap().unwrap(), b"b");
        store.delete_field(hash, "a", guard.token()).await.unwrap();
        store.delete(text, guard.token()).await.unwrap();
        let late = store.set(text, "value", guard.token() - 1).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Stale);
        assert!(second.status().await.unwrap().token.is_some());
        assert!(second.force_unlock().await.unwrap());
        assert!(guard.verify().await.is_err());
        drop(guard);
        for client in [&one, &two] {
            wait_until_idle(client).await;
        }
        assert_eq!(refused(&server), [], "refused by the rules");
    }
}
