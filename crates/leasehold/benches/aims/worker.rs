//! Other processes: this binary again, told by an environment variable what to be.
//!
//! The parent writes a line to a worker's standard input and reads a line from its standard output. A worker
//! ends with its parent, whose end of the pipe closes.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{contend, p6_handover, p7_idle, p8_renewal, stage};

const VARIABLE: &str = "LEASEHOLD_BENCH_WORKER";

/// A process of this binary, seen from its parent.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one and returns when it is ready. `role` is the name of the role and its words.
    pub(crate) fn start(role: &str) -> Worker {
        let binary = std::env::current_exe().expect("this binary has a path");
        let mut child = Command::new(binary)
            .env(VARIABLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary runs again");
        let orders = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut worker = Worker {
            child,
            orders,
            answers,
        };
        assert_eq!(worker.answer(), "ready", "the worker is ready");
        worker
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the worker lives");
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the worker lives");
        assert!(line.ends_with('\n'), "the worker has ended; see above");
        line.pop();
        line
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// If this process is a worker, works to the end.
pub(crate) fn run_if_told() -> bool {
    let Ok(role) = std::env::var(VARIABLE) else {
        return false;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let [role, url, words @ ..] = words.as_slice() else {
        panic!("{VARIABLE} is set to {role:?}, which is no role and no URL");
    };
    let runtime = stage::one_thread();
    runtime.block_on(async {
        match *role {
            "contend" => contend::work(url, words).await,
            "relay" => p6_handover::work(url, words).await,
            "hear" => p6_handover::hear(url, words).await,
            "call" => p6_handover::call(url, words).await,
            "idle" => p7_idle::work(url, words).await,
            "hold" => p8_renewal::work(url, words).await,
            other => panic!("there is no role {other:?}"),
        }
    });
    // A thread may still be reading orders that will not come; nothing is left to wait for.
    runtime.shutdown_background();
    true
}

/// In a worker: says something to the parent.
pub(crate) fn say(answer: &str) {
    println!("{answer}");
}

/// In a worker: the next order; `None` when the parent is gone. The runtime goes on meanwhile.
pub(crate) async fn heard() -> Option<String> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = line.await.ok()?.ok()?;
    line.strip_suffix('\n').map(str::to_owned)
}
