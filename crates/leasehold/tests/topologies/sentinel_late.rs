//! A sentinel that stood still announces a switch that is over by now.

use std::{
    collections::HashMap,
    sync::mpsc,
    time::{Duration, Instant},
};

use leasehold::Client;
use leasehold_testkit::{Flavor, Lane, Proxy, SentinelGroup, Server, wait_until, wait_until_async};

use super::sentinel_anew::{deaf_url, is_at};
use super::sentinel_failover::{again, scripts};
use crate::common::{
    SOON, flavors, keys,
    late::{in_time, unless_late_async},
    soon,
};

/// The one that stands still.
const LATE: usize = 2;

/// By then it has heard of the second failover.
const LATE_FOR: Duration = Duration::from_secs(4);

/// Its words from now on: the server that another has the place of, and that other. It goes on with what it has not heard yet.
fn words(sentinel: &Server) -> mpsc::Receiver<(String, String)> {
    let mut connection = sentinel.connection();
    let (says, words) = mpsc::channel();
    let (is_listening, listens) = mpsc::channel();
    std::thread::spawn(move || {
        let until = Duration::from_secs(60);
        connection.set_read_timeout(Some(until)).unwrap();
        let mut told = connection.as_pubsub();
        told.subscribe("+switch-master").unwrap();
        is_listening.send(()).unwrap();
        while let Ok(message) = told.get_message() {
            let message: String = message.get_payload().unwrap();
            let ports: Vec<_> = message.split(' ').collect();
            if says.send((ports[2].into(), ports[4].into())).is_err() {
                return;
            }
        }
    });
    listens.recv().unwrap();
    words
}

/// No sentinel makes this replica a primary.
fn never_choose(group: &SentinelGroup, replica: usize) {
    let server = group.server(replica);
    server.cli(&["CONFIG", "SET", "replica-priority", "0"]);
    for sentinel in group.sentinels() {
        // So that it notices; an older one takes its time.
        let _ = sentinel.try_cli(&["SENTINEL", "DEBUG", "info-period", "100"]);
        let knows = || {
            let replicas = sentinel.cli(&["SENTINEL", "REPLICAS", group.master()]);
            let replicas: Vec<HashMap<String, String>> = redis::from_redis_value(replicas).unwrap();
            let is_it = |of: &HashMap<String, String>| of["port"] == server.port().to_string();
            let it = replicas.iter().find(|of| is_it(of));
            it.is_some_and(|of| of["slave-priority"] == "0")
        };
        wait_until(2 * SOON, "the sentinel knows its priority", knows);
        let _ = sentinel.try_cli(&["SENTINEL", "DEBUG", "info-period", "10000"]);
    }
}

/// The port of the primary, as the sentinel says.
fn named(sentinel: &Server) -> u16 {
    let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"];
    let (_, port): (String, u16) = redis::from_redis_value(sentinel.cli(&command)).unwrap();
    port
}

/// How many connections of clients hear this sentinel.
fn listeners(sentinel: &Server) -> usize {
    let list: String = redis::from_redis_value(sentinel.cli(&["CLIENT", "LIST"])).unwrap();
    let is_one = |line: &&str| line.contains(" user=deaf ") && line.contains(" sub=1 ");
    list.lines().filter(is_one).count()
}

/// Ends the connections on which the sentinel of this id, which stands still, hears the others: of what they say from here on it is to hear
/// only when it has connected again, up to 2 s after it goes on.
fn deafen(group: &SentinelGroup, id: &str) {
    let name = format!(" name=sentinel-{}-pubsub ", &id[..8]);
    for server in group.servers() {
        let list = again(server).cli(&["CLIENT", "LIST"]);
        let list: String = redis::from_redis_value(list).unwrap();
        for line in list.lines().filter(|line| line.contains(&name)) {
            let id = line.split(' ').next().unwrap().trim_start_matches("id=");
            server.cli(&["CLIENT", "KILL", "ID", id]);
        }
    }
    for sentinel in &group.sentinels()[..LATE] {
        sentinel.cli(&["SENTINEL", "RESET", group.master()]);
    }
}

async fn all_moved(group: &SentinelGroup, clients: &[&Client], old: usize, new: usize) {
    for client in clients {
        let has_moved = || is_at(group, new, client) && !is_at(group, old, client);
        wait_until_async(SOON, "the client has moved", has_moved).await;
    }
}

/// Fails over from server 0 to server 1, and back, while a sentinel stands still. Whether it answers what it is asked after its late word.
async fn announced_late(flavor: Flavor, answers: bool) {
    let group = SentinelGroup::start(flavor);
    never_choose(&group, 2);
    let url = deaf_url(&group);
    let client = Client::connect(&url).await.unwrap();
    let other = Client::connect(&url).await.unwrap();
    let port = |server: usize| group.server(server).port().to_string();
    let words = words(group.sentinel(LATE));
    let id = group.sentinel(LATE).cli(&["SENTINEL", "MYID"]);
    let id: String = redis::from_redis_value(id).unwrap();
    let are_heard = || listeners(group.sentinel(LATE)) == 2;
    wait_until(SOON, "both clients hear it", are_heard);
    if !answers {
        // The connections that are there go on.
        let other_password = ["ACL", "SETUSER", "deaf", "resetpass", ">other"];
        group.sentinel(LATE).cli(&other_password);
    }
    group.sentinel(LATE).freeze();
    assert_eq!(group.failover(), 1);
    all_moved(&group, &[&client, &other], 0, 1).await;
    let awake = &group.sentinels()[..LATE];
    let know_it = || awake.iter().all(|it| named(it) == group.server(1).port());
    wait_until(SOON, "the other sentinels know the new one", know_it);
    deafen(&group, &id);
    again(group.server(0)).cli(&["REPLICAOF", "127.0.0.1", &port(1)]);
    assert_eq!(group.failover(), 0);
    all_moved(&group, &[&client, &other], 1, 0).await;

    // The server before takes writes for ten seconds, and knows nothing of this.
    let held = soon("a lock", client.mutex("order:42").lock()).await;
    let held = held.unwrap();
    assert!(keys(again(group.server(0))).contains(&"order:42".to_owned()));
    let before = scripts(group.server(1));
    group.sentinel(LATE).thaw();
    let began = Instant::now();
    let (mut said, mut tries) = (Vec::new(), 0);
    while began.elapsed() < LATE_FOR {
        said.extend(words.try_iter().map(|word| (word, began.elapsed())));
        let second = other.mutex("order:42").try_lock().await.unwrap();
        assert!(
            second.is_none(),
            "{flavor}: taken twice after {:?}, and the first is valid: {}; said: {said:?}",
            began.elapsed(),
            held.is_valid()
        );
        tries += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("{flavor}: {tries} tries; said: {said:?}");
    assert_eq!(
        scripts(group.server(1)),
        before,
        "{flavor}: moved by {said:?}"
    );
    held.verify().await.unwrap();
    held.release().await.unwrap();
    let late = said.first().map(|(word, _)| word);
    assert_eq!(late, Some(&(port(0), port(1))), "{flavor}: {said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_announces_a_switch_which_is_over_moves_no_client() {
    for flavor in flavors(0) {
        announced_late(flavor, true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_announces_a_switch_which_is_over_and_then_ends_moves_no_client() {
    for flavor in flavors(1) {
        announced_late(flavor, false).await;
    }
}

/// The client has left the old primary so long after the word.
const MOST: Duration = Duration::from_millis(300);

/// A client that knows one sentinel only, through this proxy: no other announces a switch to it.
async fn with_one_sentinel(group: &SentinelGroup) -> (Proxy, Client) {
    let rights = "on >secret resetchannels &+switch-master &+monitor &-monitor &+reset-master +ping +subscribe \
                  +sentinel|master +sentinel|get-master-addr-by-name +sentinel|myid";
    let mut user = vec!["ACL", "SETUSER", "alone"];
    user.extend(rights.split_whitespace());
    group.sentinel(0).cli(&user);
    let proxy = Proxy::start(group.sentinel(0).addr());
    let url = format!(
        "redis-sentinel://{}/?master={}&sentinel_user=alone&sentinel_pass=secret",
        proxy.addr(),
        group.master()
    );
    let client = Client::connect(&url).await.unwrap();
    (proxy, client)
}

/// Polls are 2 s apart: what follows meets none.
async fn a_poll_is_answered(proxy: &Proxy) {
    let answered = proxy.bytes_to_client();
    let is_answered = || proxy.bytes_to_client() > answered;
    wait_until_async(SOON, "the sentinel has answered", is_answered).await;
}

/// How long after the word of the sentinel the client has left the old primary; or longer than `SOON`.
async fn left_after(group: &SentinelGroup, client: &Client) -> Duration {
    let (old, words) = (group.primary(), words(group.sentinel(0)));
    let order = ["SENTINEL", "FAILOVER", group.master()];
    let is_taken = || group.sentinel(1).try_cli(&order).is_ok();
    wait_until(2 * SOON, "a failover begins", is_taken);
    words.recv_timeout(2 * SOON).unwrap();
    let since = Instant::now();
    let has_left = || !is_at(group, old, client);
    let left = wait_until_async(2 * SOON, "the client has left", has_left);
    let _ = tokio::time::timeout(SOON, left).await;
    since.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_whose_first_answer_after_its_word_is_lost_is_asked_again() {
    let mut group = SentinelGroup::start(flavors(1)[0]);
    let (proxy, client) = with_one_sentinel(&group).await;
    unless_late_async("the client has left", MOST, async || {
        let held = client.mutex("order:42").lock().await.unwrap();
        let struck = proxy.struck();
        proxy.lose_replies(b"MYID", 1);
        let took = left_after(&group, &client).await;
        assert!(proxy.struck() > struck, "an answer was lost");
        drop(held.release().await);
        group.settle();
        in_time(took, MOST)
    })
    .await;
}

/// A dial takes several steps, and each may take long on a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_needs_no_new_connection_to_the_sentinel_that_announces_a_switch() {
    let mut group = SentinelGroup::start(flavors(1)[0]);
    let (proxy, client) = with_one_sentinel(&group).await;
    unless_late_async("the client has left", MOST, async || {
        let held = client.mutex("order:42").lock().await.unwrap();
        // The one that hears, and the one for questions.
        proxy.wait_for_connections(2, SOON);
        a_poll_is_answered(&proxy).await;
        proxy.refuse(true);
        let took = left_after(&group, &client).await;
        drop(held.release().await);
        proxy.refuse(false);
        group.settle();
        in_time(took, MOST)
    })
    .await;
}

/// It answers after the time that a new connection would be given, and takes none. A busy machine makes a poll late besides, which loses the
/// connection that is kept, and gets no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_of_the_sentinel_that_announces_a_switch_counts() {
    let mut group = SentinelGroup::start(flavors(1)[0]);
    let (proxy, client) = with_one_sentinel(&group).await;
    unless_late_async("it counts", MOST, async || {
        let held = client.mutex("order:42").lock().await.unwrap();
        proxy.wait_for_connections(2, SOON);
        a_poll_is_answered(&proxy).await;
        proxy.refuse(true);
        // Longer than one question may take otherwise.
        proxy.delay(Duration::from_millis(200));
        let took = left_after(&group, &client).await;
        drop(held.release().await);
        proxy.delay(Duration::ZERO);
        proxy.refuse(false);
        group.settle();
        in_time(took, SOON)
    })
    .await;
}

/// Sentinels are asked every 2 s; and a question that one has not answered is sent on a new connection before the next.
const DIALLED_ANEW: Duration = Duration::from_millis(2600);

/// As a balancer that has lost track of it: it takes what is sent, and answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_that_answers_nothing_costs_no_poll() {
    let group = SentinelGroup::start(flavors(1)[0]);
    let (proxy, client) = with_one_sentinel(&group).await;
    unless_late_async("a new connection", DIALLED_ANEW, async || {
        let held = client.mutex("order:42").lock().await.unwrap();
        proxy.wait_for_connections(2, SOON);
        a_poll_is_answered(&proxy).await;
        let (since, dials) = (Instant::now(), proxy.accepted());
        proxy.hang(Some(Lane::Commands));
        let is_dialled = || proxy.accepted() > dials;
        wait_until_async(SOON, "it is dialled anew", is_dialled).await;
        let took = since.elapsed();
        drop(held.release().await);
        proxy.heal();
        in_time(took, DIALLED_ANEW)
    })
    .await;
}
