//! Warnings to a program that may have no subscriber of `tracing` yet, once per process: a URL that says `memory:`, for memory is
//! chosen, not stumbled into; and a task that waits for a lock of its own process.
//!
//! Each test is about the first client of a process, so each runs in one of its own.

use std::{
    io::Write,
    process::{Command, Output},
    sync::{Arc, Mutex},
};

use leasehold::{Client, MemoryServer};

const CHILD: &str = "LEASEHOLD_TEST_MEMORY_URL";

/// The output of this test in a process of its own; `None`: this is that process.
fn alone(test: &str) -> Option<Output> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let exe = std::env::current_exe().unwrap();
    let mut child = Command::new(exe);
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(output)
}

async fn connect(url: &str) {
    drop(Client::connect(url).await.unwrap());
}

fn warnings(text: &str) -> usize {
    text.matches("no other process is locked out").count()
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn a_url_of_memory_is_warned_about_once_by_the_subscriber_and_not_on_stderr() {
    if let Some(output) =
        alone("a_url_of_memory_is_warned_about_once_by_the_subscriber_and_not_on_stderr")
    {
        assert_eq!(warnings(&String::from_utf8_lossy(&output.stderr)), 0);
        return;
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _tracing = tracing::subscriber::set_default(subscriber.finish());
    let server = MemoryServer::new();
    let explicit = Client::builder().memory(&server).connect().await;
    drop(explicit.unwrap());
    assert_eq!(lines.text(), "", "the builder's way is not warned about");
    for url in ["memory:", "memory:shared", "memory:"] {
        connect(url).await;
    }
    let text = lines.text();
    assert!(text.contains("WARN"), "{text}");
    assert_eq!(warnings(&text), 1, "{text}");
    // It says how to go on, both ways.
    assert!(
        text.contains("redis://") && text.contains(".memory("),
        "{text}"
    );
}

#[tokio::test]
async fn without_a_subscriber_the_warning_is_one_line_on_stderr() {
    if let Some(output) = alone("without_a_subscriber_the_warning_is_one_line_on_stderr") {
        let text = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = text.lines().filter(|line| warnings(line) > 0).collect();
        assert_eq!(said.len(), 1, "{text}");
        assert!(said[0].starts_with("leasehold: "), "{text}");
        return;
    }
    connect("memory:").await;
    let lazily = Client::builder().url("memory:shared").connect_lazily();
    drop(lazily.unwrap());
}

#[tokio::test]
async fn the_builders_way_is_silent() {
    if let Some(output) = alone("the_builders_way_is_silent") {
        assert_eq!(warnings(&String::from_utf8_lossy(&output.stderr)), 0);
        return;
    }
    let server = MemoryServer::new();
    let explicit = Client::builder().memory(&server).connect().await;
    drop(explicit.unwrap());
}

#[tokio::test]
async fn its_scheme_may_be_in_any_letters() {
    let Some(output) = alone("its_scheme_may_be_in_any_letters") else {
        let one = Client::connect("MEMORY:Shared").await.unwrap();
        let two = Client::connect("memory:Shared").await.unwrap();
        let other = Client::connect("Memory:shared").await.unwrap();
        let _guard = one.mutex("name").lock().await.unwrap();
        assert!(two.mutex("name").try_lock().await.unwrap().is_none());
        assert!(other.mutex("name").try_lock().await.unwrap().is_some());
        return;
    };
    assert_eq!(warnings(&String::from_utf8_lossy(&output.stderr)), 1);
}

/// A program that is being written: its first deadlock is found without a subscriber.
#[tokio::test(start_paused = true)]
async fn one_that_waits_for_its_own_process_is_told_of_once_on_stderr_without_a_subscriber() {
    if let Some(output) =
        alone("one_that_waits_for_its_own_process_is_told_of_once_on_stderr_without_a_subscriber")
    {
        let text = String::from_utf8_lossy(&output.stderr);
        let told: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("waits for"))
            .collect();
        let [line] = told[..] else { panic!("{text}") };
        for said in [
            "leasehold: ",
            file!(),
            "waits for 5s for \"twice\", which this process holds itself, taken at",
            "pass the guard on, or lock through an Owner",
        ] {
            assert!(line.contains(said), "{line}");
        }
        return;
    }
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    for name in ["twice", "again"] {
        let _guard = client.mutex(name).lock().await.unwrap();
        let second = client
            .mutex(name)
            .try_lock_for(std::time::Duration::from_secs(6));
        assert!(second.await.unwrap().is_none());
    }
}
