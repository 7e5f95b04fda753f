//! The program itself, on a real server: it answers over HTTP, does its jobs, and ends in good order.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use leasehold_testkit::{Flavor, Server, wait_until};
use rustix::process::{Pid, Signal, kill_process};

const SOON: Duration = Duration::from_secs(20);

struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start(server: &Server, database: &std::path::Path) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_service"))
            .env("LEASEHOLD_URL", server.url())
            .env("SERVICE_ADDRESS", "127.0.0.1:0")
            .env("SERVICE_DATABASE", database)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("open at http://").unwrap();
        let address = address.to_owned();
        Program { child, address }
    }

    /// Sends a request, and hands the connection out, from which the answer can be read.
    fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let rest = "HTTP/1.1\r\nhost: service\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        write!(stream, "{request} {rest}").unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        answer(self.send(request))
    }
}

impl Drop for Program {
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
fn a_payment_by_one_of_two_processes_their_jobs_their_metrics_and_their_end() {
    let server = Server::start(Flavor::Redis);
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("service.sqlite");
    let mut programs = [(); 2].map(|()| Program::start(&server, &database));
    let held = |name| server.cli(&["EXISTS", name]) == redis::Value::Int(1);

    let first = programs[0].send("POST /orders/42/pay");
    wait_until(SOON, "a process has the order", || held("order:42"));
    let second = programs[1].ask("POST /orders/42/pay");
    assert!(second.starts_with("HTTP/1.1 409 "), "{second}");
    assert!(second.contains("\r\nretry-after: 1\r\n"), "{second}");
    let first = answer(first);
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");

    wait_until(SOON, "a process has the report's hour", || held("report"));
    wait_until(SOON, "a process leads", || held("shipping"));
    let page = programs[1].ask("GET /metrics");
    let labels = r#"kind="fenced_mutex",class="order:",outcome="busy""#;
    let series = format!("leasehold_acquires_total{{{labels}}} 1");
    assert!(page.contains(&series), "{series} in {page}");

    // A payment that has begun is made, and then both end and hold nothing but the hour.
    let last = programs[0].send("POST /orders/43/pay");
    // A request that never comes to its end keeps no process alive.
    let mut endless = TcpStream::connect(&programs[1].address).unwrap();
    endless
        .write_all(b"POST /orders/44/pay HTTP/1.1\r\nhost:")
        .unwrap();
    wait_until(SOON, "a process has the order", || held("order:43"));
    for program in &programs {
        kill_process(Pid::from_child(&program.child), Signal::TERM).unwrap();
    }
    let last = answer(last);
    assert!(last.starts_with("HTTP/1.1 200 "), "{last}");
    for program in &mut programs {
        let mut ended = None;
        wait_until(SOON, "the program ends", || {
            ended = program.child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.unwrap().success());
    }
    drop(endless);
    assert!(!held("order:43") && !held("shipping") && held("report"));
}
