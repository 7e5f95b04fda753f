//! How many servers there are, and what they know of each other.

use std::fmt;

use clap::ValueEnum;

use crate::kind::Kind;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server
    Single,
    /// A primary, two replicas and three sentinels
    Sentinel,
    /// A cluster of three primaries with a replica each
    Cluster,
    /// A majority of three servers
    Quorum3,
    /// A majority of five servers
    Quorum5,
}

impl Topology {
    /// The servers at which faults happen one by one. Where servers replace each other these are the primaries.
    pub(crate) fn servers(self) -> usize {
        match self {
            Topology::Single | Topology::Sentinel => 1,
            Topology::Cluster | Topology::Quorum3 => 3,
            Topology::Quorum5 => 5,
        }
    }

    pub(crate) fn is_quorum(self) -> bool {
        matches!(self, Topology::Quorum3 | Topology::Quorum5)
    }

    /// Whether locks of this kind are there, and promise something.
    pub(crate) fn has(self, kind: Kind) -> bool {
        match self {
            Topology::Single => true,
            // A count that a failover has forgotten is told to nobody.
            Topology::Sentinel | Topology::Cluster => kind != Kind::Latch,
            Topology::Quorum3 | Topology::Quorum5 => {
                matches!(kind, Kind::Mutex | Kind::Plain | Kind::Spin)
            }
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value().expect("none is skipped");
        f.write_str(name.get_name())
    }
}
