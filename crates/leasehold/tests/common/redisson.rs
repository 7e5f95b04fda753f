//! A process with the real Redisson in it: `interop/redisson`, which `scripts/test` builds.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use leasehold_testkit::Server;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A running JVM. Dropping it kills it.
pub struct Redisson {
    child: Child,
    orders: ChildStdin,
    answers: UnboundedReceiver<String>,
}

impl Redisson {
    /// Starts one, with a watchdog that keeps its leases so long.
    pub async fn start(server: &Server, lease: Duration) -> Redisson {
        let built = PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../target/redisson"
        ));
        assert!(
            built.join("classes/leasehold/Peer.class").exists(),
            "Redisson is not built: run scripts/test --setup"
        );
        let class_path = format!("{0}/classes:{0}/lib/*", built.display());
        let mut child = Command::new("java")
            // Small and quick to start; the tests do not need it to be fast.
            .args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", &class_path])
            .args(["leasehold.Peer", &server.url().replace("valkey:", "redis:")])
            .arg(lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a java");
        let orders = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (said, answers) = unbounded_channel();
        std::thread::spawn(move || {
            // Ends with the process, or with the test that no longer listens.
            for line in lines.map_while(Result::ok) {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        let mut redisson = Redisson {
            child,
            orders,
            answers,
        };
        assert_eq!(redisson.answer().await, "ready");
        redisson
    }

    /// Tells it to do something; see `Peer.java`.
    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the JVM lives");
    }

    /// What came of the order before.
    pub async fn answer(&mut self) -> String {
        let answer = tokio::time::timeout(Duration::from_secs(60), self.answers.recv()).await;
        let answer = answer.expect("an answer within a minute");
        answer.expect("the JVM lives")
    }

    /// Both.
    pub async fn obey(&mut self, order: &str) -> String {
        self.order(order);
        self.answer().await
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be reaped");
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
