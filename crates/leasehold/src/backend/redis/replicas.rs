//! How many replicas the server has.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::backend::report::field;

/// How many replicas follow the server, as it said last, and ever.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// The last number plus one; zero: the server has not said.
    last: AtomicU32,
    most: AtomicU32,
}

impl Replicas {
    /// From the answer to `INFO replication`.
    pub(super) fn learn(&self, info: &str) {
        if field(info, "connected_slaves").is_none() {
            self.last.store(0, Ordering::Relaxed);
            return; // it does not say
        }
        // A replica that still loads its copy acknowledges nothing.
        let is_online = |line: &&str| line.starts_with("slave") && line.contains("state=online");
        // Less one than the largest number, since `last` stores one more.
        let online = u32::try_from(info.lines().filter(is_online).count()).unwrap_or(u32::MAX - 1);
        self.last.store(online + 1, Ordering::Relaxed);
        // Never less: a replica that is away goes on counting for the majority.
        self.most.fetch_max(online, Ordering::Relaxed);
    }

    pub(super) fn connected(&self) -> Option<u32> {
        self.last.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether a client may listen at one.
    pub(super) fn any(&self) -> bool {
        self.most.load(Ordering::Relaxed) > 0
    }

    /// How many of them, with the server, are a majority of the server and all that were ever seen; one at least.
    pub(super) fn majority(&self) -> u32 {
        // Of n replicas and the server (n + 1) / 2 + 1 are a majority, and the server is one of them. It is never enough by itself.
        self.most.load(Ordering::Relaxed).div_ceil(2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\nslave0:ip=127.0.0.1,port=1,state=online,offset=1,lag=0\r\n\
        slave1:ip=127.0.0.1,port=2,state=wait_bgsave,offset=0,lag=0\r\nmaster_replid:ab\r\n";

    #[test]
    fn a_replica_counts_as_connected_when_it_is_online_and_for_the_majority_ever_after() {
        let replicas = Replicas::default();
        assert_eq!((replicas.connected(), replicas.majority()), (None, 1));
        replicas.learn(TWO);
        assert_eq!(replicas.connected(), Some(1));
        let four = (0..4).map(|i| format!("slave{i}:ip=::1,port={i},state=online\r\n"));
        let four = four.fold("connected_slaves:4\r\n".to_owned(), |all, one| all + &one);
        replicas.learn(&four);
        assert_eq!((replicas.connected(), replicas.majority()), (Some(4), 2));
        replicas.learn("role:master\r\nconnected_slaves:0\r\n");
        assert_eq!((replicas.connected(), replicas.majority()), (Some(0), 2));
        replicas.learn("");
        assert_eq!(replicas.connected(), None);
    }
}
