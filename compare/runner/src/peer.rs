//! The libraries, and a process of one of them (compare/README.md has its orders).

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Duration,
};

use crate::{Failure, machine::Cores};

/// The first is the one that all others are compared with.
pub(crate) const LIBRARIES: [&str; 8] = [
    "Leasehold",
    "Redisson",
    "rueidislock",
    "redsync",
    "bsm/redislock",
    "node-redlock",
    "redis-py",
    "rslock",
];

/// A lock that never excludes, for `--check`.
pub(crate) const NOTHING: &str = "nothing";

/// Until a process is ready: a JVM on a busy core takes seconds.
const START: Duration = Duration::from_mins(1);

/// Starts it, but for its arguments. Paths are those of the repository, where compare/run stands.
fn command(library: &str, cores: &Cores) -> Result<Command, Failure> {
    const BUILT: &str = "target/compare";
    let (words, word): (&[&str], _) = match library {
        "Leasehold" => (&["rust/release/peer"], "leasehold"),
        "rslock" | NOTHING => (&["rust/release/peer"], library),
        "rueidislock" | "redsync" => (&["go/peer"], library),
        "bsm/redislock" => (&["go/peer"], "redislock"),
        "node-redlock" => (&["node", "node/peer.mjs"], "redlock"),
        "redis-py" => (&["python3", "python/peer.py"], "redis"),
        "Redisson" => (&["java"], "redisson"),
        other => return Err(format!("there is no library {other:?}").into()),
    };
    let mut all: Vec<String> = match words {
        [program] if *program != "java" => vec![format!("{BUILT}/{program}")],
        [language, program] => vec![(*language).into(), format!("{BUILT}/{program}")],
        _ => {
            let path = format!("{BUILT}/java/compare-peer-0.jar:{BUILT}/java/lib/*");
            vec![
                "java".into(),
                "-Xmx256m".into(),
                "-cp".into(),
                path,
                "Peer".into(),
            ]
        }
    };
    all.push(word.into());
    Ok(cores.on_clients(&all))
}

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    pub(crate) version: String,
    pub(crate) settings: String,
}

impl Process {
    /// `lease_ms`: 0 is the library's own.
    pub(crate) fn start(
        library: &str,
        address: &str,
        lease_ms: u64,
        cores: &Cores,
    ) -> Result<Process, Failure> {
        let mut child = command(library, cores)?
            .args([address, &lease_ms.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("its program does not start: {error}"))?;
        let orders = child.stdin.take().ok_or("a pipe was asked for")?;
        let lines = BufReader::new(child.stdout.take().ok_or("a pipe was asked for")?).lines();
        let (send, answers) = channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut process = Process {
            child,
            orders,
            answers,
            version: String::new(),
            settings: String::new(),
        };
        let ready = process.answer("ready", START)?;
        let (version, settings) = ready.trim().split_once('\t').ok_or("it told no settings")?;
        (process.version, process.settings) = (version.into(), settings.into());
        Ok(process)
    }

    pub(crate) fn order(&mut self, order: &str) -> Result<(), Failure> {
        writeln!(self.orders, "{order}")
            .map_err(|_| format!("its process has ended before the order {order:?}").into())
    }

    /// The rest of the next line that begins so. Lines in between are of tasks that go on.
    pub(crate) fn answer(&self, word: &str, within: Duration) -> Result<String, Failure> {
        loop {
            let line = self.answers.recv_timeout(within);
            let line = line.map_err(|error| match error {
                RecvTimeoutError::Timeout => format!("no answer within {within:?}"),
                RecvTimeoutError::Disconnected => "its process has ended".to_owned(),
            })?;
            if line.starts_with("failed") {
                return Err(line.into());
            }
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.to_owned());
            }
        }
    }

    /// The instant of a `got` or a `freed`.
    pub(crate) fn instant(&self, word: &str, within: Duration) -> Result<i64, Failure> {
        let answer = self.answer(word, within)?;
        let at = answer.split(' ').next_back().unwrap_or_default();
        Ok(at
            .parse()
            .map_err(|_| format!("{answer:?} has no instant"))?)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
