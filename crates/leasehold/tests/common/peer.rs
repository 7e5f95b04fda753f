//! A process of another library, which does what it is told on its standard input: a line in, a line out.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A running process. Dropping it kills it.
pub struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: UnboundedReceiver<String>,
}

impl Peer {
    /// Starts it, and waits until it says that it is ready.
    pub async fn of(command: &mut Command) -> Peer {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("its interpreter is installed");
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
        let mut peer = Peer {
            child,
            orders,
            answers,
        };
        assert_eq!(peer.answer().await, "ready");
        peer
    }

    /// Tells it to do something; see its source in `interop/`.
    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it lives");
    }

    /// The answer to the order before.
    pub async fn answer(&mut self) -> String {
        let answer = tokio::time::timeout(Duration::from_secs(60), self.answers.recv()).await;
        let answer = answer.expect("an answer within a minute");
        answer.expect("it lives")
    }

    /// Gives an order, and waits for its answer.
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

impl Drop for Peer {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
