//! A process with the real Redisson in it: `interop/redisson`, which `scripts/test` builds.

use std::{path::PathBuf, process::Command, time::Duration};

use leasehold_testkit::Server;

use super::peer::Peer;

/// A running JVM. Dropping it kills it.
pub type Redisson = Peer;

impl Peer {
    /// Starts a JVM, with a watchdog that keeps its leases so long.
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
        let mut java = Command::new("java");
        // Small and quick to start; the tests do not need it to be fast.
        java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", &class_path])
            .args(["leasehold.Peer", &server.url().replace("valkey:", "redis:")])
            .arg(lease.as_millis().to_string());
        Peer::of(&mut java).await
    }
}
