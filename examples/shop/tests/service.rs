//! The program itself: it answers over HTTP, and closes in good order.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use leasehold_testkit::{Flavor, Server};
use rustix::process::{Pid, Signal, kill_process};

struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(server: &Server, database: &Path) -> Service {
        let mut child = Command::new(env!("CARGO_BIN_EXE_shop"))
            .env("LEASEHOLD_URL", server.url())
            .env("SHOP_ADDRESS", "127.0.0.1:0")
            .env("SHOP_DATABASE", database)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("open at http://").unwrap();
        let address = address.to_owned();
        Service { child, address }
    }

    /// Sends a request, and hands the connection out, from which the answer can be read.
    fn ask(&self, buyer: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = buyer.len();
        write!(
            stream,
            "POST /buy HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{buyer}"
        )
        .unwrap();
        stream
    }

    fn terminate(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn two_processes_sell_ten_umbrellas_to_twelve_buyers() {
    let server = Server::start(Flavor::Redis);
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("shop.sqlite");
    let shops = [(); 2].map(|()| Service::start(&server, &database));
    let mut numbers: Vec<u32> = Vec::new();
    let mut refused = 0;
    // Four at a time: a buyer waits for two seconds at most, and the bank takes 0.3.
    for round in 0..3 {
        let asked: Vec<_> = (0..4)
            .map(|buyer| shops[buyer % 2].ask(&format!("{round} {buyer}")))
            .collect();
        for stream in asked {
            let answer = answer(stream);
            if let Some(rest) = answer.split("\r\n\r\numbrella ").nth(1) {
                numbers.push(rest.split(' ').next().unwrap().parse().unwrap());
            } else {
                assert!(answer.starts_with("HTTP/1.1 410 "), "{answer}");
                refused += 1;
            }
        }
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
    assert_eq!(refused, 2);
}

#[test]
fn a_shop_that_is_told_to_close_makes_the_sale_that_has_begun() {
    let server = Server::start(Flavor::Redis);
    let dir = tempfile::tempdir().unwrap();
    let mut shop = Service::start(&server, &dir.path().join("shop.sqlite"));
    let ada = shop.ask("ada");
    let held = || server.cli(&["EXISTS", "stock:umbrella"]) == redis::Value::Int(1);
    leasehold_testkit::wait_until(std::time::Duration::from_secs(20), "ada pays", held);
    shop.terminate();
    let answer = answer(ada);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(shop.child.wait().unwrap().success());
    assert!(!held(), "the lock is free");
}

#[test]
fn its_locks_are_on_its_metrics_page() {
    let server = Server::start(Flavor::Redis);
    let dir = tempfile::tempdir().unwrap();
    let shop = Service::start(&server, &dir.path().join("shop.sqlite"));
    assert!(answer(shop.ask("ada")).starts_with("HTTP/1.1 200 "));
    let mut stream = TcpStream::connect(&shop.address).unwrap();
    let ask = "GET /metrics HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";
    stream.write_all(ask.as_bytes()).unwrap();
    let page = answer(stream);
    let labels = r#"kind="fenced_mutex",class="stock:""#;
    for series in [
        format!("leasehold_acquires_total{{{labels},outcome=\"granted\"}} 1"),
        format!("leasehold_wait_seconds_bucket{{{labels},le="),
    ] {
        assert!(page.contains(&series), "{series} in {page}");
    }
}
