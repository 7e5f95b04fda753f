//! Which server: Redis or Valkey, and where its program is.

use std::fmt;
use std::path::{Path, PathBuf};

/// Which server to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavor {
    /// `redis-server`
    Redis,
    /// `valkey-server`
    Valkey,
}

impl Flavor {
    /// Finds the server: the environment variable `LEASEHOLD_REDIS_SERVER` or
    /// `LEASEHOLD_VALKEY_SERVER`, then `PATH`, then (Valkey) `target/valkey/valkey-server` of this
    /// workspace.
    ///
    /// The path in a variable is taken as it is, so that a wrong one is noticed.
    pub fn binary(self) -> Option<PathBuf> {
        let named = std::env::var_os(self.variable()).filter(|path| !path.is_empty());
        named
            .map(PathBuf::from)
            .or_else(|| self.in_path())
            .or_else(|| self.in_workspace())
    }

    /// The flavors that can be started here.
    pub fn available() -> Vec<Flavor> {
        [Flavor::Redis, Flavor::Valkey]
            .into_iter()
            .filter(|flavor| flavor.binary().is_some())
            .collect()
    }

    pub(super) fn program(self) -> &'static str {
        match self {
            Flavor::Redis => "redis-server",
            Flavor::Valkey => "valkey-server",
        }
    }

    pub(super) fn variable(self) -> &'static str {
        match self {
            Flavor::Redis => "LEASEHOLD_REDIS_SERVER",
            Flavor::Valkey => "LEASEHOLD_VALKEY_SERVER",
        }
    }

    pub(super) fn in_path(self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|dir| dir.join(self.program()))
            .find(|file| file.is_file())
    }

    pub(super) fn in_workspace(self) -> Option<PathBuf> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let file = target.join("valkey/valkey-server");
        (self == Flavor::Valkey && file.is_file()).then_some(file)
    }

    pub(super) fn remedy(self) -> &'static str {
        match self {
            Flavor::Redis => "run `scripts/test`, or `apt-get install redis-server`",
            Flavor::Valkey => "run `scripts/test`, which fetches one",
        }
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavor::Redis => "redis",
            Flavor::Valkey => "valkey",
        })
    }
}
