//! Bad input is refused before anything is sent, and the message says what came, what may come, and what to do.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{World, keys, sentinel::Sentinel, servers};
use leasehold::{Client, Error, ErrorKind, Invalid, Released};
use leasehold_testkit::{Flavor, Server};

/// The value, the limit and the remedy are all in the message.
#[track_caller]
fn assert_says(error: &Error, says: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let Error::Invalid(Invalid {
        value,
        limit,
        remedy,
        ..
    }) = error
    else {
        panic!("{error:?}");
    };
    let message = error.to_string();
    for part in [value, limit, remedy] {
        assert!(!part.is_empty() && message.contains(&**part), "{message}");
    }
    for part in says {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[tokio::test]
async fn a_bad_name_is_refused_by_every_way_in() {
    for world in World::all() {
        let client = world.client().await;
        let long = "x".repeat(1025);
        for (name, says) in [
            ("", ["empty", "at least 1 byte"]),
            (&long, ["1025 bytes", "at most 1024"]),
            ("a{b", ["a{b", "slot"]),
            ("a}b", ["a}b", "slot"]),
            ("{}", ["{}", "slot"]),
            (
                "leasehold:{x}:queue",
                ["leasehold:{x}:queue", "\"leasehold:\""],
            ),
        ] {
            let before = commands(&world);
            let mutex = client.mutex(name);
            assert_eq!(mutex.name(), name);
            let wait = Duration::from_secs(1);
            for error in [
                mutex.lock().await.unwrap_err(),
                mutex.try_lock().await.unwrap_err(),
                mutex.try_lock_for(wait).await.unwrap_err(),
                mutex.status().await.unwrap_err(),
                mutex.force_unlock().await.unwrap_err(),
                client.status(name).await.unwrap_err(),
                client.force_unlock(name).await.unwrap_err(),
            ] {
                assert_says(&error, &says);
            }
            assert_eq!(commands(&world), before, "nothing was sent");
        }
        // At the limit.
        let name = "x".repeat(1024);
        client
            .mutex(&name)
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let tagged = client.mutex("order:{42}:pay").lock().await.unwrap();
        tagged.release().await.unwrap();
    }
}

/// The number of commands that the server has been asked, without this question.
fn commands(world: &World) -> u64 {
    match world {
        World::Memory(_) => 0,
        World::Server(server) => {
            let calls = server.calls();
            calls
                .iter()
                .filter(|(name, _)| *name != "info")
                .map(|(_, calls)| calls)
                .sum()
        }
    }
}

#[tokio::test]
async fn a_bad_lease_is_refused() {
    for world in World::all() {
        let client = world.client().await;
        let mutex = client.mutex("name");
        let us = Duration::from_micros;
        let before = commands(&world);
        for (error, says) in [
            (
                mutex.fixed_lease(Duration::ZERO).lock().await,
                ["0s", "at least 1ms"],
            ),
            (
                mutex.fixed_lease(us(999)).lock().await,
                ["999µs", "at least 1ms"],
            ),
            (
                mutex.lease(Duration::ZERO).lock().await,
                ["0s", "at least 1ms"],
            ),
            (mutex.lease(us(2_000)).lock().await, ["2ms", "at least 3ms"]),
            (
                mutex.fixed_lease(Duration::MAX).lock().await,
                ["213503982334601d", "366d"],
            ),
            (
                mutex.max_hold(Duration::ZERO).lock().await,
                ["max_hold", "at least 3ms"],
            ),
        ] {
            assert_says(&error.unwrap_err(), &says);
        }
        assert_eq!(commands(&world), before, "nothing was sent");
        let guard = mutex
            .fixed_lease(Duration::from_secs(9))
            .lock()
            .await
            .unwrap();
        for bad in [Duration::ZERO, us(500), Duration::MAX] {
            assert_says(&guard.extend(bad).await.unwrap_err(), &["lease"]);
        }
        assert!(guard.is_valid());
        // The shortest of all: over before it is here, and refused for that.
        let shortest = mutex.fixed_lease(Duration::from_millis(1));
        drop(guard);
        let error = shortest.lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("take a longer one"), "{error}");
    }
}

#[tokio::test]
async fn settings_that_do_not_fit_each_other_are_refused() {
    let seconds = Duration::from_secs;
    let builder = || Client::builder().url("redis://127.0.0.1:1/");
    let in_memory = || Client::builder().url("memory:");
    for (builder, says) in vec![
        (builder().lease(seconds(0)), ["lease is 0s", "at least 1ms"]),
        (
            builder().lease(Duration::from_micros(10)),
            ["10µs", "at least 1ms"],
        ),
        (builder().lease(seconds(400 * 86_400)), ["400d", "366d"]),
        (
            builder().lease(seconds(9)).renew_every(seconds(4)),
            ["4s", "lease of 9s"],
        ),
        (builder().renew_every(seconds(11)), ["11s", "lease of 30s"]),
        (builder().renew_every(seconds(0)), ["0s", "between 1ms"]),
        (
            builder().renew_every(Duration::MAX),
            ["213503982334601d", "30s"],
        ),
        (
            builder().poll_every(Duration::MAX),
            ["poll_every", "at most 366d"],
        ),
        (
            builder().poll_every(seconds(0)),
            ["poll_every", "at least 1ms"],
        ),
        (
            builder().operation_timeout(seconds(0)),
            ["operation_timeout", "at least 1ms"],
        ),
        (
            builder().connect_timeout(seconds(0)),
            ["connect_timeout", "at least 1ms"],
        ),
        (
            builder().label("two words"),
            ["two words", "without spaces"],
        ),
        (
            in_memory().label("two words"),
            ["two words", "without spaces"],
        ),
        (
            in_memory().lease(seconds(0)),
            ["lease is 0s", "at least 1ms"],
        ),
    ] {
        assert_says(&builder.connect().await.unwrap_err(), &says);
    }
}

#[tokio::test]
async fn a_bad_url_is_refused_without_its_password() {
    for (url, says) in [
        ("", "redis://"),
        ("localhost", "redis://"),
        ("127.0.0.1:6379", "redis://127.0.0.1:6379"),
        ("http://:hush@127.0.0.1/", "http"),
        ("redis://:hush@127.0.0.1:99999/", "port"),
        ("redis://:hush@127.0.0.1:0/", "between 1 and 65535"),
        ("redis://:hush@127.0.0.1:port/", "port"),
        ("redis://:hush@/", "host"),
        ("redis://:hush@127.0.0.1/first", "redis://"),
        (
            "rediss://127.0.0.1/#hush",
            if cfg!(feature = "tls") {
                "%23"
            } else {
                "feature `tls`"
            },
        ),
        ("memory", "redis://"),
        (" redis://:hush@127.0.0.1:1/", "a space at its beginning"),
        (
            "\nredis://:hush@127.0.0.1:1/",
            "a line break at its beginning",
        ),
        ("redis://:hush@127.0.0.1:1/\r\n", "a line break at its end"),
        ("redis://:hush@127.0.0.1:1/ ", "a space at its end"),
        ("redis://:hu\tsh@127.0.0.1:1/", "write it as %09"),
        ("redis://:hush @127.0.0.1:1/", "write it as %20"),
        ("redis://:hush\0@127.0.0.1:1/", "a control character in it"),
        (
            "redis+unix:///run/the server.sock?pass=hush",
            "a space in it",
        ),
        ("memory: ", "a space at its end"),
    ] {
        let error = Client::connect(url).await.unwrap_err();
        assert_says(&error, &[says]);
        let all = format!("{error} {error:?}");
        assert!(!all.contains("hush"), "{url}: {all}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_repeated() {
    for flavor in Flavor::available() {
        let server = Server::start_with(flavor, &["--requirepass", "open-sesame"]);
        let right = server.url();
        drop(Client::connect(&right).await.unwrap());
        let wrong = right.replace("open-sesame", "shut-sesame");
        let none = right.replace(":open-sesame@", "");
        for url in [wrong, none] {
            let error = Client::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let message = error.to_string();
            assert!(message.contains(&server.addr().to_string()), "{message}");
            let all = format!("{error} {error:?}");
            assert!(!all.contains("sesame"), "{all}");
        }
        let builder = Client::builder().url(right).password("builder-sesame");
        assert!(!format!("{builder:?}").contains("sesame"));
        let error = builder.connect().await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
    }
}

#[tokio::test]
async fn a_user_without_a_password_logs_in_and_one_that_is_not_known_is_refused() {
    for server in servers() {
        server.cli(&[
            "ACL", "SETUSER", "open", "on", "nopass", "~*", "&*", "+@all",
        ]);
        let at = server.addr();
        let builders = |user: &str| {
            let url = |url: String| Client::builder().url(url);
            [
                url(format!("redis://{user}@{at}/")),
                url(format!("redis://{user}:@{at}/")),
                url(server.url()).username(user),
            ]
        };
        for builder in builders("open") {
            let client = builder.connect().await.unwrap();
            let list = server.cli(&["CLIENT", "LIST"]);
            let list: String = redis::from_redis_value(list).unwrap();
            let ours = list.lines().find(|line| line.contains("name=leasehold:"));
            assert!(ours.unwrap().contains(" user=open "), "{list}");
            drop(client);
            let gone = || common::int(&server, &["CLIENT", "KILL", "USER", "open"]) == 0;
            leasehold_testkit::wait_until_async(common::SOON, "the client is gone", gone).await;
        }
        for builder in builders("ghost") {
            let error = builder.connect().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let message = error.to_string();
            assert!(message.contains("the user name"), "{message}");
        }
    }
}

/// Other nodes have other names: the right URL has it asked for them.
#[tokio::test]
async fn a_node_of_a_cluster_is_refused() {
    for flavor in Flavor::available() {
        let server = Server::start_with(flavor, &["--cluster-enabled", "yes"]);
        let error = Client::connect(&server.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        let message = error.to_string();
        let right = format!("redis-cluster://{}", server.addr());
        assert!(message.contains(&right), "{message}");
    }
}

/// Whatever the URL has that a Sentinel does not know: it has no databases, and mostly other users than its servers.
#[tokio::test]
async fn a_sentinel_is_told_from_a_server_and_says_what_to_do() {
    for flavor in Flavor::available() {
        let sentinel = Sentinel::start(flavor);
        let addr = sentinel.addr();
        for url in [
            sentinel.url(),
            format!("redis://{addr}/1"),
            format!("redis://:password@{addr}/"),
            format!("redis://user:password@{addr}/"),
            format!("redis://{addr}/?protocol=resp3"),
        ] {
            let error = Client::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{url}: {error}");
            let message = error.to_string();
            assert!(message.contains(&addr), "{message}");
            for says in [
                "is a Sentinel",
                &format!("redis-sentinel://{addr}/?master=NAME"),
            ] {
                assert!(message.contains(says), "{url}: {message}");
            }
        }
        let lazy = Client::builder().url(sentinel.url()).check_server(false);
        let error = lazy.connect_lazily().unwrap().mutex("x").try_lock().await;
        let message = error.unwrap_err().to_string();
        assert!(message.contains("is a Sentinel"), "{message}");
    }
}

/// Listens, and answers each client that sends something with `says`.
fn listener(says: Option<&'static str>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if let Some(says) = says {
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(says.as_bytes());
            }
            silent.push(stream);
        }
    });
    addr
}

#[tokio::test]
async fn whoever_is_no_redis_server_is_told_from_one() {
    let http = listener(Some(
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    ));
    let began = Instant::now();
    let error = Client::connect(&format!("redis://{http}/"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(error.to_string().contains("check host and port"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(4));

    let silent = listener(None);
    let builder = Client::builder().url(format!("redis://{silent}/"));
    let builder = builder.connect_timeout(Duration::from_millis(300));
    let began = Instant::now();
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
    assert!(error.to_string().contains("300ms"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2));

    // No listener at all.
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = Client::connect(&format!("redis://{gone}/"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
    assert!(error.to_string().contains(&gone.to_string()), "{error}");
    let error = Client::connect("redis+unix:///nonexistent/redis.sock");
    let error = error.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
    let said = error.to_string();
    assert!(said.contains("check the path"), "{said}");
    assert!(!said.contains("port"), "{said}");
}

#[tokio::test]
async fn another_type_under_the_name_is_refused_and_left_alone() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        server.cli(&["SET", "name", "a string"]);
        for error in [
            client.mutex("name").lock().await.unwrap_err(),
            client.mutex("name").try_lock().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let message = error.to_string();
            assert!(
                message.contains("WRONGTYPE") && message.contains("\"name\""),
                "{message}"
            );
        }
        let value: String = redis::from_redis_value(server.cli(&["GET", "name"])).unwrap();
        assert_eq!(value, "a string");
        common::wait_until_idle(&client).await;
        assert_eq!(keys(&server), ["name"]);
        // The client is none the worse for it.
        client
            .mutex("other")
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// While it is held, another client writes another type under the name.
#[tokio::test]
async fn a_release_that_is_refused_ends_the_hold_all_the_same() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        server.cli(&["SET", "name", "a string"]);
        let released = guard.release().await.unwrap();
        assert!(
            matches!(released, Released::Unconfirmed { .. }),
            "{released:?}"
        );
        common::wait_until_idle(&client).await;
    }
}

/// The same under the key of its queue, which a waiter looks at when it is given the name.
#[tokio::test]
async fn a_queue_of_another_type_is_told_and_the_name_is_held_for_no_one() {
    for server in servers() {
        let queue = "leasehold:{name}:queue";
        let client = async || Client::connect(&server.url()).await.unwrap();
        let (holder, client) = (client().await, client().await);
        let mutex = holder.mutex("name").fixed_lease(Duration::from_secs(1));
        let guard = mutex.lock().await.unwrap();
        let waiting = tokio::spawn(client.mutex("name").lock());
        leasehold_testkit::wait_until_async(common::SOON, "it has a place", || {
            keys(&server).contains(&queue.to_owned())
        })
        .await;
        server.cli(&["SET", queue, "a string"]);
        guard.detach(); // it ends by itself, and the waiter asks
        let error = common::soon("its answer", waiting).await.unwrap();
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        common::wait_until_idle(&client).await;
        // The waiter may have asked while the lease of the holder lasted.
        let free = || keys(&server) == [queue];
        leasehold_testkit::wait_until_async(common::SOON, "the name is free", free).await;
    }
}

/// A script that would be refused halfway is not sent, and the missing rules are named. Once they are given, the same client locks.
#[tokio::test]
async fn a_user_without_the_right_to_a_command_is_told_which_rules_it_lacks() {
    for server in servers() {
        let all = [
            "ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all",
        ];
        server.cli(&[&all[..], &["-pexpire", "-hset"]].concat());
        let client = || {
            let builder = Client::builder().url(server.url());
            builder.username("worker").password("secret").connect()
        };
        let looking = client().await.unwrap();
        assert!(
            looking.mutex("name").status().await.is_ok(),
            "a look is not refused"
        );
        let client = client().await.unwrap();
        server.cli(&["ACL", "LOG", "RESET"]);
        let error = client.mutex("name").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        let words = "the server's user lacks a right: it may not call HSET, PEXPIRE; add +hset +pexpire to its rules";
        assert!(error.to_string().contains(words), "{error}");
        common::wait_until_idle(&client).await;
        assert_eq!(common::refused(&server), [], "the server was not asked");
        assert!(keys(&server).is_empty());
        server.cli(&["ACL", "SETUSER", "worker", "+pexpire", "+hset"]);
        common::release(client.mutex("name").lock().await.unwrap()).await;
    }
}

#[tokio::test]
async fn what_an_acl_forbids_is_told_in_its_words() {
    for server in servers() {
        let all = ["on", ">secret", "&*"];
        let user = |name: &str, rules: &[&str]| {
            let mut command = vec!["ACL", "SETUSER", name];
            command.extend(all);
            command.extend(rules);
            server.cli(&command);
        };
        user("no-scripts", &["~*", "+@all", "-@scripting"]);
        user("other-keys", &["~orders:*", "+@all"]);
        let connect = |name: &str| {
            let builder = Client::builder().url(server.url());
            builder.username(name).password("secret").connect()
        };
        for name in ["no-scripts", "other-keys"] {
            let client = connect(name).await.unwrap();
            let error = client.mutex("name").lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let message = error.to_string();
            assert!(
                message.contains("NOPERM") || message.contains("ermission"),
                "{name}: {message}"
            );
            assert!(!message.contains("secret"), "{message}");
            common::wait_until_idle(&client).await;
        }
        // A user that may not tell others that the name is free frees it, or leaves it to its end, and does not say that it was freed.
        let rules = ["resetchannels", "~*", "+@all", "-client", "-pubsub"];
        user("no-client", &rules);
        let client = connect("no-client").await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        let holder = client
            .status("name")
            .await
            .unwrap()
            .holder()
            .cloned()
            .unwrap();
        assert_eq!(holder.connected, None, "it may not see who is");
        let released = guard.release().await.unwrap();
        assert!(
            matches!(released, Released::Unconfirmed { .. }),
            "{released:?}"
        );
        common::wait_until_idle(&client).await;
        let left = common::int(&server, &["PTTL", "name"]);
        assert!(left > 0 || left == -2, "{left}");
        let mut left = keys(&server);
        left.retain(|key| key != "name");
        assert!(left.is_empty(), "of what was refused: {left:?}");
    }
}

/// As twemproxy does. It looks like a server that ends, and was told as one that wants TLS.
#[tokio::test]
async fn a_proxy_that_hangs_up_at_a_command_is_told_with_that_command() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut bytes).await {
                    let said = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    let answer: &[u8] = match said {
                        said if said.contains("CLIENT") => return,
                        said if said.contains("PING") => b"+PONG\r\n",
                        _ => b"-ERR unknown\r\n",
                    };
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    let error = Client::connect(&url).await.unwrap_err();
    let said = error.to_string();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{said}");
    assert!(
        said.contains("answers PING and closes the connection at CLIENT"),
        "{said}"
    );
    assert!(!said.contains("rediss"), "{said}");
    serving.abort();
}
