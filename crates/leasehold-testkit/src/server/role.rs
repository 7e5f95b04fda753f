//! A server of data, a node of a cluster, or a sentinel: one program is all of them.

use std::path::Path;

/// The file a sentinel reads, and writes whenever it learns something.
const FILE: &str = "sentinel.conf";

/// How a server's program is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A server of data.
    Data,
    /// A node of a cluster.
    Node,
    /// A sentinel.
    Sentinel,
}

impl Role {
    /// The arguments before all others.
    pub(super) fn first_args(self) -> &'static [&'static str] {
        match self {
            Role::Data => &["--save", "", "--appendonly", "no"],
            Role::Node => &[
                "--save",
                "",
                "--appendonly",
                "no",
                "--cluster-enabled",
                "yes",
            ],
            Role::Sentinel => &[FILE, "--sentinel"],
        }
    }

    /// The words that a server logs when it is up.
    pub(super) fn ready(self) -> &'static str {
        match self {
            Role::Data | Role::Node => "Ready to accept connections",
            Role::Sentinel => "Sentinel ID is",
        }
    }
}

/// Writes a sentinel's file, below its directory.
pub(super) fn write_file(dir: &Path, text: &str) {
    std::fs::write(dir.join(FILE), text).expect("a file for the sentinel is written");
}

/// Removes what a server of data would read at its start. A replica keeps what its primary sent, also with persistence off.
pub(super) fn forget(dir: &Path) {
    // Either may not be there.
    let _ = std::fs::remove_file(dir.join("dump.rdb"));
    let _ = std::fs::remove_dir_all(dir.join("appendonlydir"));
}
