//! A process with the real Redisson in it: `interop/redisson`, which `scripts/test` builds.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use leasehold::{Client, Handoff, Released};
use leasehold_testkit::{SentinelGroup, Server};

use super::peer::Peer;

/// A running JVM. Dropping it kills it.
pub type Redisson = Peer;

impl Peer {
    /// Starts a JVM, with a watchdog that keeps its leases so long.
    pub async fn start(server: &Server, lease: Duration) -> Redisson {
        Peer::jvm(&server.url(), lease).await
    }

    /// The same, which asks the sentinels for the primary.
    pub async fn start_in(group: &SentinelGroup, lease: Duration) -> Redisson {
        Peer::jvm(&group.url(), lease).await
    }

    async fn jvm(url: &str, lease: Duration) -> Redisson {
        let built = PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../target/redisson"
        ));
        assert!(
            built.join("classes/leasehold/Peer.class").exists(),
            "Redisson is not built: run scripts/test --setup"
        );
        let class_path = format!("{0}/classes:{0}/lib/*", built.display());
        let mut java = Command::new("java");
        // Small and quick to start; the tests do not need it to be fast.
        java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", &class_path])
            .args(["leasehold.Peer", &url.replace("valkey:", "redis:")])
            .arg(lease.as_millis().to_string());
        Peer::of(&mut java).await
    }
}

/// Adds one to the number in the file, so often, as Redisson's threads do under the mutex `name`. Returns how long the longest wait was.
pub async fn count(client: Client, handoff: Handoff, file: PathBuf, times: usize) -> Duration {
    let mutex = client.mutex("name").handoff(handoff);
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let asked = Instant::now();
        let guard = mutex.lock().await.unwrap();
        longest = longest.max(asked.elapsed());
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
    longest
}
