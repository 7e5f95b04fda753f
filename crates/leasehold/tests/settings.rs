//! The settings of a client in a configuration file.

mod common;

use std::fmt::Write as _;
use std::time::Duration;

use common::{
    addresses::{self, Random, SECRET},
    release,
};
use futures_util::StreamExt;
use leasehold::{
    Client, ClientBuilder, ClusterNodes, Durability, ErrorKind, Handoff, Sentinel, Unmet,
};
use leasehold_testkit::{Flavor, Server};
use serde::Deserialize;

/// Settings of a service, of which those of its client are a part.
#[derive(Clone, Debug, Deserialize)]
struct Service {
    workers: u32,
    locks: ClientBuilder,
}

fn refused(text: &str) -> String {
    match toml::from_str::<ClientBuilder>(text) {
        Ok(builder) => panic!("{text} is {builder:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_setting_has_the_name_of_its_method_and_means_the_same() {
    let text = r#"
        url = "redis://127.0.0.1/"
        username = "me"
        password = "hush"
        database = 3
        connect_timeout = "1s"
        operation_timeout = "500ms"
        server_timeout = "300ms"
        lease = "1m 30s"
        renew_every = "10s"
        poll_every = "20s"
        fair_wait_timeout = "7s"
        redisson_watchdog = "40s"
        text_permit_ids = true
        linger = "250ms"
        handoff = { max_in_row = 3, max_time = "2s" }
        may_duplicate = true
        token_retention = "2days"
        name_prefix = "app:"
        check_server = false
        scan_interval = "1s"
        sharded_channels = false
        durability = { replicas = 2 }
        durability_timeout = "300ms"
        unmet = "accept"
        label = "worker-7"
    "#;
    let seconds = Duration::from_secs;
    let read: ClientBuilder = toml::from_str(text).unwrap();
    let built = Client::builder()
        .url("redis://127.0.0.1/")
        .username("me")
        .password("hush")
        .database(3)
        .connect_timeout(seconds(1))
        .operation_timeout(Duration::from_millis(500))
        .server_timeout(Duration::from_millis(300))
        .lease(seconds(90))
        .renew_every(seconds(10))
        .poll_every(seconds(20))
        .fair_wait_timeout(seconds(7))
        .redisson_watchdog(seconds(40))
        .text_permit_ids(true)
        .linger(Duration::from_millis(250))
        .handoff(Handoff::new(3, seconds(2)))
        .may_duplicate(true)
        .token_retention(Some(seconds(2 * 24 * 3600)))
        .name_prefix("app:")
        .check_server(false)
        .scan_interval(seconds(1))
        .sharded_channels(false)
        .durability(Durability::Replicas(2))
        .durability_timeout(Duration::from_millis(300))
        .unmet(Unmet::Accept)
        .label("worker-7");
    let majority: ClientBuilder = toml::from_str(r#"durability = "majority""#).unwrap();
    let by_hand = Client::builder().durability(Durability::Majority);
    assert_eq!(format!("{majority:?}"), format!("{by_hand:?}"));
    assert_eq!(format!("{read:?}"), format!("{built:?}"));
    let text = r#"
        quorum = ["redis://127.0.0.1:1/", "redis://127.0.0.1:2/", "redis://127.0.0.1:3/"]
        longest_lease = "2m"
        persistent_servers = true
    "#;
    let quorum: ClientBuilder = toml::from_str(text).unwrap();
    let by_hand = Client::builder()
        .quorum([1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}/")))
        .longest_lease(seconds(120))
        .persistent_servers(true);
    assert_eq!(format!("{quorum:?}"), format!("{by_hand:?}"));
    for default in [
        toml::from_str("").unwrap(),
        serde_json::from_str("{}").unwrap(),
    ] {
        let default: ClientBuilder = default;
        assert_eq!(format!("{default:?}"), format!("{:?}", Client::builder()));
    }
    let forever: ClientBuilder = toml::from_str(r#"token_retention = "forever""#).unwrap();
    let built = Client::builder().token_retention(None);
    assert_eq!(format!("{forever:?}"), format!("{built:?}"));
}

#[tokio::test]
async fn a_service_reads_them_among_its_own_logs_in_by_them_and_may_change_them() {
    let server = Server::start_with(Flavor::Redis, &["--requirepass", "open-sesame"]);
    let text = serde_json::json!({
        "workers": 4,
        "locks": {
            "url": format!("redis://{}/", server.addr()),
            "password": "open-sesame",
            "database": 2,
            "lease": "9s",
            "label": "of-the-file",
        },
    });
    let service: Service = serde_json::from_value(text).unwrap();
    assert_eq!(service.workers, 4);
    let shown = format!("{service:?}");
    assert!(
        !shown.contains("sesame") && shown.contains("of-the-file"),
        "{shown}"
    );
    let client = service.locks.label("changed").connect().await.unwrap();
    let guard = client.mutex("name").lock().await.unwrap();
    assert!(
        guard.remaining() > Duration::from_secs(5) && guard.remaining() < Duration::from_secs(9)
    );
    let status = client.status("name").await.unwrap();
    assert_eq!(status.holder().unwrap().label.as_deref(), Some("changed"));
    let redis::Value::BulkString(keyspace) = server.cli(&["INFO", "keyspace"]) else {
        panic!("INFO is text")
    };
    let keyspace = String::from_utf8(keyspace).unwrap();
    assert!(keyspace.contains("db2:"), "{keyspace}");
    release(guard).await;
}

#[test]
fn what_is_not_understood_is_refused_with_what_would_be() {
    for (text, says) in [
        (
            "leese = \"10s\"",
            "unknown field `leese`, expected one of `url`",
        ),
        ("lease = 10", "a duration in quotes, such as \"10s\""),
        ("lease = \"10\"", "\"10s\""),
        ("lease = \"soon\"", "\"10s\""),
        ("lease = \"1M\"", "a minute is `m`"),
        ("lease = \"2 months\"", "in weeks, days or less"),
        ("poll_every = \"1h 1y\"", "\"365days\""),
        ("token_retention = \"1year\"", "\"365days\""),
        ("token_retention = \"always\"", "\"forever\""),
        ("token_retention = 7", "\"forever\""),
        ("handoff = \"off\"", "max_in_row = 64"),
        ("database = -1", "u32"),
        ("handoff = { max_in_row = 3 }", "max_time"),
        (
            "handoff = { max_in_row = 3, max_time = \"2s\", more = 1 }",
            "more",
        ),
    ] {
        let said = refused(text);
        assert!(said.contains(says), "{text}: {said}");
        assert!(!said.contains("Settings"), "{text}: {said}");
    }
    for text in ["null", "7", r#"{"handoff": 7}"#] {
        let said = serde_json::from_str::<ClientBuilder>(text).unwrap_err();
        let said = said.to_string();
        assert!(!said.contains("Settings"), "{text}: {said}");
        assert!(
            said.contains("expected the settings of a client") || said.contains("a hand-off"),
            "{said}"
        );
    }
    let weeks: ClientBuilder = toml::from_str("lease = \"1week 1day\"").unwrap();
    let built = Client::builder().lease(Duration::from_secs(8 * 86_400));
    assert_eq!(format!("{weeks:?}"), format!("{built:?}"));
    // As if it was left out.
    let null: ClientBuilder = serde_json::from_str(r#"{"token_retention": null}"#).unwrap();
    assert_eq!(format!("{null:?}"), format!("{:?}", Client::builder()));
}

#[test]
fn a_password_is_not_repeated_by_an_error() {
    let error = serde_json::from_str::<ClientBuilder>(r#"{"password": 1234567}"#).unwrap_err();
    let said = format!("{error} {error:?}");
    assert!(
        said.contains("quotes") && !said.contains("1234567"),
        "{said}"
    );
}

#[tokio::test]
async fn values_are_checked_when_the_client_connects() {
    let text = r#"lease = "9s"
        renew_every = "4s""#;
    let builder: ClientBuilder = toml::from_str(text).unwrap();
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("9s"), "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn certificates_are_named_by_their_files() {
    use leasehold_testkit::{Authority, TlsFiles};

    let authority = Authority::new("the authority");
    let files = TlsFiles::new(authority.signs(&["cache.example"]), &authority);
    let files = files.wants_client_certificate();
    let server = Server::start_with_tls(Flavor::Redis, &files, &[]);
    let (root, _) = authority.own().write(server.dir(), "root");
    let (cert, key) = authority.signs(&["worker"]).write(server.dir(), "worker");
    let mut settings = serde_json::json!({
        "url": server.tls_url("localhost"),
        "tls": {
            "root_file": root,
            "client_cert_file": cert,
            "client_key_file": key,
            "server_name": "cache.example",
        },
    });
    let builder: ClientBuilder = serde_json::from_value(settings.clone()).unwrap();
    let client = builder.connect().await.unwrap();
    release(client.mutex("name").lock().await.unwrap()).await;

    settings["tls"]["client_key_file"] = serde_json::Value::Null;
    let error = serde_json::from_value::<ClientBuilder>(settings).unwrap_err();
    assert!(error.to_string().contains("client_key_file"), "{error}");
}

/// An address in one of the ways in which one is given, and what is shown of that before anything is sent.
fn given(random: &mut Random) -> (String, String, Option<ClientBuilder>) {
    let url = addresses::url(random);
    let hosts = [addresses::host(random), addresses::host(random)];
    let settings = |settings: serde_json::Value| {
        let text = settings.to_string();
        match serde_json::from_value::<ClientBuilder>(settings) {
            Ok(builder) => (text, format!("{builder:?}"), Some(builder)),
            Err(error) => (text, format!("{error} {error:?}"), None),
        }
    };
    let builder = Client::builder();
    let (given, shown, builder) = match random.below(9) {
        0..=2 => (url.clone(), String::new(), builder.url(url)),
        3 => {
            let urls = [&*url, "redis://127.0.0.1:2", "redis://127.0.0.1:3"];
            (url.clone(), String::new(), builder.quorum(urls))
        }
        4 => {
            let nodes = ClusterNodes::new(hosts.clone());
            let nodes = match random.below(2) {
                0 => nodes.reached_at(hosts[0].clone(), hosts[1].clone()),
                _ => nodes,
            };
            let shown = format!("{nodes:?}");
            (format!("nodes {hosts:?}"), shown, builder.cluster(nodes))
        }
        5 => {
            let sentinel = Sentinel::new(hosts.clone()).master("main").password(SECRET);
            let shown = format!("{sentinel:?}");
            (
                format!("sentinels {hosts:?}"),
                shown,
                builder.sentinel(sentinel),
            )
        }
        6 => return settings(serde_json::json!({ "url": url })),
        7 => return settings(serde_json::json!({ "quorum": [url, hosts[0]] })),
        _ => {
            return settings(match random.below(3) {
                0 => serde_json::json!({ "quorum": url }),
                1 => serde_json::json!({ "url": [url] }),
                _ => serde_json::json!(url),
            });
        }
    };
    (given, format!("{shown} {builder:?}"), Some(builder))
}

#[tokio::test]
async fn no_form_of_an_address_shows_what_stands_where_a_password_may() {
    const SEED: u64 = 14;
    println!("seed {SEED}");
    let mut random = Random(SEED);
    let cases: Vec<_> = (0..10_000).map(|_| given(&mut random)).collect();
    let tried = cases.into_iter().map(async |(given, mut shown, builder)| {
        if let Some(builder) = builder {
            let most = Duration::from_millis(100);
            match builder.connect_timeout(most).connect().await {
                Ok(client) => write!(shown, "{client:?}").unwrap(),
                Err(error) => write!(shown, "{error} {error:?} {error:#?}").unwrap(),
            }
        }
        (given, shown)
    });
    let tried: Vec<_> = futures_util::stream::iter(tried)
        .buffer_unordered(64)
        .collect()
        .await;
    let leaks = |shown: &str| shown.to_lowercase().contains(SECRET);
    let leaks: Vec<_> = tried.iter().filter(|(_, shown)| leaks(shown)).collect();
    let some = &leaks[..leaks.len().min(20)];
    assert!(leaks.is_empty(), "{} of 10,000: {some:#?}", leaks.len());
    // Some of them are addresses, and what was tried there is shown.
    let reached = tried
        .iter()
        .filter(|(_, shown)| shown.contains("127.0.0.1:1"))
        .count();
    assert!(reached > 500, "{reached}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn keys_are_pinned_in_a_list() {
    let text = r#"{"url": "rediss://127.0.0.1:1/", "tls": {"pinned": ["0102"]}}"#;
    let builder: ClientBuilder = serde_json::from_str(text).unwrap();
    let error = builder.connect().await.unwrap_err().to_string();
    assert!(error.contains("64 hexadecimal digits"), "{error}");
}
