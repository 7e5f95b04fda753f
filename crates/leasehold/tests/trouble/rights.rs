//! The rights of a user of the server may differ from key to key: nobody is refused who has them, and nothing is taken that could not be
//! renewed or given back.

use std::{iter::once, time::Duration};

use crate::common::{
    SOON, keys,
    kinds::{ROWS, Row},
    refused, servers, wait_until_idle,
    wire::{documented_rules, more_rules},
};
use leasehold::{Client, ErrorKind, Released};
use leasehold_testkit::{Flavor, Server, wait_until_async};

const LABELS: &str = "~leasehold:client:*";

/// All that docs/keys.md says of locks whose names begin with `order:`, with `labels` for the rule about labels.
fn rules(labels: &str) -> Vec<String> {
    let more = ["fenced", "leased", "semaphores", "fair"];
    let more = more.into_iter().flat_map(more_rules);
    let all = documented_rules().into_iter().chain(more);
    let all = all.map(|rule| {
        if rule == LABELS {
            labels.to_owned()
        } else {
            rule
        }
    });
    all.filter(|rule| !rule.is_empty()).collect()
}

fn set_user(server: &Server, rules: &[String]) {
    let rules = rules.iter().map(String::as_str);
    let command = ["ACL", "SETUSER", "worker", "reset"].into_iter();
    server.cli(&command.chain(rules).collect::<Vec<_>>());
    // As docs/keys.md says; Redis 7.0 does not know it.
    let _ = server.try_cli(&["ACL", "SETUSER", "worker", "+client|setinfo"]);
}

async fn client_of_the_user(server: &Server) -> Client {
    let builder = Client::builder().url(server.url());
    let builder = builder.username("worker").password("secret");
    builder.connect().await.unwrap()
}

/// Users that may do all that a lock needs with its own keys, and less, or more, with the keys of labels.
fn users() -> [(&'static str, Vec<String>); 5] {
    let and = |mut rules: Vec<String>, selector: &str| {
        rules.push(selector.to_owned());
        rules
    };
    let in_selector = rules("").split_off(2).join(" ");
    let labels_at_root = ["on", ">secret", LABELS, "+set", "+mget", "+eval"];
    [
        ("reads labels", rules("%R~leasehold:client:*")),
        (
            "a selector for labels",
            and(rules(""), "(+set +mget +exists ~leasehold:client:*)"),
        ),
        (
            "a selector that reads",
            and(rules(""), "(+@read ~leasehold:client:*)"),
        ),
        (
            "a selector for locks",
            and(
                labels_at_root.map(str::to_owned).to_vec(),
                &format!("({in_selector})"),
            ),
        ),
        ("no labels", rules("")),
    ]
}

#[tokio::test]
async fn a_user_whose_rights_differ_from_key_to_key_locks_and_releases_each_kind() {
    for server in servers() {
        for (user, rules) in users() {
            assert_eq!(rules[..2], ["on", ">secret"], "{user}");
            set_user(&server, &rules);
            for row in ROWS {
                let case = format!("{}, {user}, {row:?}", server.flavor());
                // Each kind is the first that its connection is asked for.
                let client = client_of_the_user(&server).await;
                row.prepare(&client, "order:x").await;
                let guard = row.lock(&client, "order:x").lock().await.expect(&case);
                assert_eq!(guard.release().await.unwrap(), Released::Freed, "{case}");
                wait_until_idle(&client).await;
                server.cli(&["FLUSHALL"]);
            }
        }
    }
}

/// A connection that is made later is asked about the one key again.
#[tokio::test]
async fn a_user_without_labels_keeps_its_lock_on_the_next_connection() {
    for server in servers() {
        set_user(&server, &rules(""));
        let client = client_of_the_user(&server).await;
        let mutex = client.mutex("order:x").lease(Duration::from_secs(2));
        let guard = mutex.lock().await.unwrap();
        server.cli(&["CLIENT", "KILL", "USER", "worker"]);
        let mut left = guard.remaining();
        wait_until_async(SOON, "it is renewed", || {
            let before = std::mem::replace(&mut left, guard.remaining());
            left > before
        })
        .await;
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
}

/// Its tasks ask side by side, and what is refused to one of them is not refused to another.
#[tokio::test]
async fn a_key_that_is_refused_costs_no_other_its_lock() {
    for server in servers() {
        set_user(&server, &rules("%R~leasehold:client:*"));
        let client = client_of_the_user(&server).await;
        let (other, own) = (client.mutex("other:x"), client.mutex("order:x"));
        for _ in 0..2 {
            let (other, own) = tokio::join!(other.try_lock(), own.try_lock());
            assert_eq!(other.unwrap_err().kind(), ErrorKind::Rejected);
            let guard = own.unwrap().expect("it is free");
            guard.release().await.unwrap();
        }
    }
}

/// Commands that a release or a renewal calls, and an acquisition may not.
const KEEPS: [&str; 4] = ["llen", "set", "lrange", "pexpireat"];

#[tokio::test]
async fn a_lock_that_could_not_be_kept_or_given_back_is_not_taken() {
    for server in servers() {
        let admin = Client::connect(&server.url()).await.unwrap();
        for right in KEEPS {
            let lacks = once(format!("-{right}"));
            let rules: Vec<_> = rules(LABELS).into_iter().chain(lacks).collect();
            set_user(&server, &rules);
            let client = client_of_the_user(&server).await;
            for row in ROWS {
                let case = format!("{}, {row:?}, -{right}", server.flavor());
                row.prepare(&admin, "order:x").await;
                let before = keys(&server);
                server.cli(&["ACL", "LOG", "RESET"]);
                let taken = row.lock(&client, "order:x").try_lock().await;
                let needs_none = match row {
                    Row::Permit | Row::Count => right == "llen" || right == "pexpireat",
                    Row::Fair => right == "llen",
                    _ => false,
                };
                if needs_none {
                    let guard = taken.expect(&case).expect("it is free");
                    assert_eq!(guard.release().await.unwrap(), Released::Freed, "{case}");
                } else {
                    let error = taken.expect_err(&case);
                    assert_eq!(error.kind(), ErrorKind::Rejected, "{case}: {error}");
                    let names = error.to_string().contains(&format!("add +{right} to"));
                    assert!(names, "{case}: {error}");
                    assert_eq!(keys(&server), before, "{case}");
                }
                wait_until_idle(&client).await;
                let in_script = refused(&server);
                let mut in_script = in_script.iter().map(|entry| format!("{entry:?}"));
                // A label is written by a plain command, which may be refused.
                assert!(in_script.all(|entry| entry.contains("toplevel")), "{case}");
                server.cli(&["FLUSHALL"]);
            }
        }
    }
}

/// No command is asked about first, so that the others are not.
#[tokio::test]
async fn a_user_without_any_one_command_is_told_so() {
    for server in servers() {
        let lacks = ["-exists", "-hset"].map(str::to_owned);
        let rules: Vec<_> = rules(LABELS).into_iter().chain(lacks).collect();
        set_user(&server, &rules);
        let client = client_of_the_user(&server).await;
        let error = client.mutex("order:x").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        let words = "it may not call EXISTS, HSET; add +exists +hset to its rules";
        assert!(error.to_string().contains(words), "{error}");
        wait_until_idle(&client).await;
        assert_eq!(refused(&server), [], "{}", server.flavor());
        assert_eq!(keys(&server), [""; 0], "{}", server.flavor());
    }
}

#[tokio::test]
async fn a_command_that_was_renamed_away_is_named() {
    for flavor in Flavor::available() {
        let away = [
            "--rename-command",
            "SCAN",
            "",
            "--rename-command",
            "LLEN",
            "",
        ];
        let server = Server::start_with(flavor, &away);
        let lacks = once("-zadd".to_owned());
        let rules: Vec<_> = rules(LABELS).into_iter().chain(lacks).collect();
        // No rule can name a command that the server does not know.
        let rules: Vec<_> = rules.into_iter().filter(|r| r != "+llen").collect();
        set_user(&server, &rules);
        let client = client_of_the_user(&server).await;
        let error = client.mutex("order:x").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        let words = "the server does not know LLEN";
        assert!(error.to_string().contains(words), "{error}");
        let error = client.fair_mutex("order:x").try_lock().await.unwrap_err();
        let words = "it may not call ZADD; add +zadd to its rules";
        assert!(error.to_string().contains(words), "{flavor}: {error}");
        wait_until_idle(&client).await;
        assert_eq!(keys(&server), [""; 0], "{flavor}");
    }
}

/// Since 2026 servers refuse to tell of a command with another number of arguments than it takes (redis/redis#14847): then all was unknown.
#[tokio::test]
async fn a_server_that_wants_each_commands_own_number_of_arguments_is_asked_with_it() {
    const STRICT: &str = "local theirs = redis
        local redis = { acl_check_cmd = function(command, ...)
            local known, many = theirs.call('COMMAND', 'INFO', command)[1], 1 + select('#', ...)
            local arity = known and known[2] or -1
            if arity > 0 and many ~= arity or many < -arity then
                error('Wrong number of args for redis.acl_check_cmd()')
            end
            return theirs.acl_check_cmd(command, ...)
        end }\n";
    const ASK: &str = include_str!("../../src/backend/redis/scripts/rights.lua");
    for server in servers() {
        set_user(
            &server,
            &["on", ">secret", "~order:*", "+@all", "-time", "-hset"].map(str::to_owned),
        );
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let _: () = redis::cmd("AUTH")
            .arg("worker")
            .arg("secret")
            .query(&mut connection)
            .unwrap();
        for text in [ASK.to_owned(), format!("{STRICT}{ASK}")] {
            let mut ask = redis::cmd("EVAL");
            ask.arg(text)
                .arg(0)
                .arg("GET HSET TIME TYPE DEL HEXISTS ZADD NOSUCH")
                .arg("order:1");
            let told: [Vec<String>; 2] = ask.query(&mut connection).unwrap();
            let expected = [vec!["HSET", "TIME"], vec!["NOSUCH"]];
            assert_eq!(told, expected, "{}", server.flavor());
        }
    }
}
