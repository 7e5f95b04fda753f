//! Servers of a majority are hit one by one, and the others go on.

use std::time::Duration;

use leasehold_testkit::{Flavor, Primaries};
use redis::Value;

const A_WHILE: Duration = Duration::from_secs(1);

fn ping(url: &str) -> redis::RedisResult<Value> {
    let client = redis::Client::open(url).expect("a url");
    let mut connection = client.get_connection_with_timeout(A_WHILE)?;
    connection.set_read_timeout(Some(A_WHILE))?;
    redis::cmd("PING").query(&mut connection)
}

#[test]
fn each_server_can_be_hit_alone() {
    for flavor in Flavor::available() {
        let mut servers =
            Primaries::start_with(5, flavor, &["--requirepass", "hush"]).behind_proxies();
        let urls = servers.urls();
        assert_eq!(servers.len(), 5);
        assert!(urls.iter().all(|url| ping(url).is_ok()), "{flavor}");
        servers.kill(0);
        servers.freeze(1);
        servers.proxy(2).black_hole(None);
        let up: Vec<bool> = urls.iter().map(|url| ping(url).is_ok()).collect();
        assert_eq!(up, [false, false, false, true, true], "{flavor}");
        servers.restart_empty(0);
        servers.thaw(1);
        servers.proxy(2).heal();
        assert!(urls.iter().all(|url| ping(url).is_ok()), "{flavor}");
        assert_eq!(servers.urls(), urls, "{flavor}");
    }
}

#[test]
fn a_server_that_keeps_its_data_forgets_it_when_told() {
    let mut servers = Primaries::start_with(
        3,
        Flavor::Redis,
        &["--appendonly", "yes", "--appendfsync", "always"],
    );
    for server in servers.servers() {
        server.cli(&["SET", "name", "ours"]);
    }
    servers.restart(0);
    servers.restart_empty(1);
    let exists = |server: &leasehold_testkit::Server| server.cli(&["EXISTS", "name"]);
    let exist: Vec<Value> = servers.servers().iter().map(exists).collect();
    assert_eq!(exist, [Value::Int(1), Value::Int(0), Value::Int(1)]);
}
