//! A process of its own, which a test can stop and kill: this test binary once more, running only its
//! `child` test.
//!
//! A file that starts one has a `#[test] #[ignore] fn child()` that calls [`job`].

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    panic::Location,
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

/// An order to a child: what to do, and where.
pub struct Job {
    pub what: String,
    pub url: String,
    pub name: String,
    pub lease: Duration,
}

/// The job of this process, if it is a child.
pub fn job() -> Option<Job> {
    let var = |name: &str| std::env::var(format!("LEASEHOLD_TEST_{name}")).ok();
    let lease = var("LEASE")?.parse().ok()?;
    Some(Job {
        what: var("JOB")?,
        url: var("URL")?,
        name: var("NAME")?,
        lease: Duration::from_millis(lease),
    })
}

/// Says something to the parent.
pub fn say(word: &str) {
    // In one write, past the test harness.
    let line = format!("\n@{word}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).expect("the parent listens");
    out.flush().expect("the parent listens");
}

/// Blocks until the parent says something, or is gone.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}

/// A running child. Dropping it kills it.
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    said: Receiver<String>,
}

impl Process {
    #[track_caller]
    pub fn start(job: &Job) -> Process {
        let exe = std::env::current_exe().expect("a test binary has a path");
        let caller = Path::new(Location::caller().file());
        let module = caller.file_stem().and_then(OsStr::to_str).expect("a name");
        let is_program = caller
            .parent()
            .is_some_and(|folder| folder.ends_with("tests"));
        let child = if is_program {
            "child".to_owned()
        } else {
            format!("{module}::child")
        };
        let mut child_process = Command::new(exe)
            .args([
                "--ignored",
                "--exact",
                &child,
                "--nocapture",
                "--test-threads=1",
            ])
            .env("LEASEHOLD_TEST_JOB", &job.what)
            .env("LEASEHOLD_TEST_URL", &job.url)
            .env("LEASEHOLD_TEST_NAME", &job.name)
            .env("LEASEHOLD_TEST_LEASE", job.lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary runs");
        let stdin = child_process.stdin.take().expect("piped");
        let stdout = BufReader::new(child_process.stdout.take().expect("piped"));
        let (told, said) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(word) = line.strip_prefix('@')
                    && told.send(word.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Process {
            child: child_process,
            stdin,
            said,
        }
    }

    /// Blocks until the child says something.
    pub fn next(&self) -> String {
        self.said
            .recv_timeout(Duration::from_secs(20))
            .expect("the child says something")
    }

    /// The next line that the child has said, if any.
    pub fn try_next(&self) -> Option<String> {
        self.said.try_recv().ok()
    }

    /// Blocks until the child says this.
    pub fn wait_for(&self, word: &str) {
        assert_eq!(self.next(), word);
    }

    pub fn tell(&mut self, word: &str) {
        writeln!(self.stdin, "{word}").expect("the child listens");
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Blocks until the child has ended by itself.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().expect("the child is ours")
    }

    /// A child that has panicked would else be waited for.
    #[track_caller]
    pub fn assert_runs(&mut self) {
        let ended = self.child.try_wait().expect("the child is ours");
        assert_eq!(ended, None, "the child has ended by itself");
    }

    /// `SIGKILL`. Returns once the process is gone, with its sockets.
    pub fn kill(&mut self) {
        self.child.kill().expect("the child is ours to kill");
        self.child.wait().expect("the child is ours");
    }

    /// `SIGSTOP`. Returns once the process has stopped.
    pub fn freeze(&self) {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        self.signal(rustix::process::Signal::STOP);
        let pid = WaitId::Pid(Pid::from_child(&self.child));
        waitid(pid, WaitIdOptions::STOPPED).expect("it has stopped");
    }

    /// `SIGCONT`.
    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the child is there");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
