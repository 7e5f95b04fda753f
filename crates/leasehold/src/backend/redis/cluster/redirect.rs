//! The words of a node of a cluster that has not carried a step out.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::{
    backend::{
        Failure,
        redis::{discovery::Address, failure::said},
    },
    error::Cause,
};

/// Why a node has not carried a step out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// Another node has the slot.
    Moved(Address),
    /// The slot is being moved there, and these keys are there, or nowhere.
    Ask(Address),
    /// A redirect to a node whose address it does not know.
    Nowhere,
    /// The slot is being moved, and not all of these keys are at either node.
    Open,
    /// The cluster serves no client, or not this slot.
    Down,
    /// The name has no slot here: the answer of a script that found a slot moved away under it. It may have changed something.
    Torn,
}

impl Redirect {
    /// Reads a failure that the node at `answered` has told of.
    pub(super) fn of(failure: &Failure, answered: &Address) -> Option<Redirect> {
        Redirect::read(said(failure.cause())?, answered)
    }

    /// The same of the node's own words.
    pub(super) fn read(error: &RedisError, answered: &Address) -> Option<Redirect> {
        let address = || {
            let (address, _) = error.redirect_node()?;
            // At the last colon: an IPv6 address stands here without brackets.
            let (host, port) = address.rsplit_once(':')?;
            let port = port.parse().ok()?;
            let host = if host.is_empty() { &answered.0 } else { host };
            // The host of a node that has no name is known to the table.
            Some((host != "?" && port != 0).then(|| (host.to_owned(), port)))
        };
        let to = |redirect: fn(Address) -> Redirect| {
            let address = address()?;
            Some(address.map_or(Redirect::Nowhere, redirect))
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => to(Redirect::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => to(Redirect::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Redirect::Open),
            ErrorKind::Server(ServerErrorKind::ClusterDown) => Some(Redirect::Down),
            _ if error
                .detail()
                .is_some_and(|detail| detail.contains("non local key")) =>
            {
                Some(Redirect::Torn)
            }
            _ => None,
        }
    }
}

/// A slot is open, and so no lock in it can be taken or given back.
#[derive(Debug, thiserror::Error)]
#[error(
    "slot {slot}, in which the name is, is being moved to another node of the cluster, and takes no locks until it is there; if nobody \
     moves it any more, end that with redis-cli --cluster fix host:port"
)]
pub(super) struct SlotOpen {
    pub(super) slot: u16,
}

/// No client can reach the node that has a slot.
#[derive(Debug, thiserror::Error)]
#[error(
    "the cluster lists the node that has slot {slot}, in which the name is, without an address (as :0); see to it with redis-cli cluster \
     nodes: set its cluster-announce-ip and cluster-announce-port (or a port for TLS, if the client speaks that), or give its slots to another with \
     redis-cli --cluster fix host:port"
)]
pub(super) struct NoAddress {
    pub(super) slot: u16,
}

/// Nodes have named each other too often.
#[derive(Debug, thiserror::Error)]
#[error("the nodes of the cluster do not agree yet where slot {slot} is: {cause}")]
pub(super) struct NoOwner {
    pub(super) slot: u16,
    pub(super) cause: Cause,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::failure::classify;

    fn read(said: &str) -> Option<Redirect> {
        let said = redis::parse_redis_value(said.as_bytes()).unwrap();
        let failure = classify(said.extract_error().unwrap_err());
        Redirect::of(&failure, &("here".to_owned(), 7000))
    }

    #[test]
    fn what_a_node_says_is_read_out_of_a_failure() {
        let at = |host: &str, port| (host.to_owned(), port);
        for (said, expected) in [
            (
                "-MOVED 12182 10.0.0.2:7001\r\n",
                Some(Redirect::Moved(at("10.0.0.2", 7001))),
            ),
            (
                "-MOVED 12182 ::1:7001\r\n",
                Some(Redirect::Moved(at("::1", 7001))),
            ),
            (
                "-MOVED 12182 :7001\r\n",
                Some(Redirect::Moved(at("here", 7001))),
            ),
            ("-MOVED 12182 :0\r\n", Some(Redirect::Nowhere)),
            ("-MOVED 12182 ?:7001\r\n", Some(Redirect::Nowhere)),
            ("-ASK 12182 10.0.0.2:0\r\n", Some(Redirect::Nowhere)),
            (
                "-ASK 12182 10.0.0.2:7001\r\n",
                Some(Redirect::Ask(at("10.0.0.2", 7001))),
            ),
            (
                "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
                Some(Redirect::Open),
            ),
            (
                "-CLUSTERDOWN Hash slot not served\r\n",
                Some(Redirect::Down),
            ),
            (
                "-ERR Script attempted to access a non local key in a cluster node script: f, on @user_script:1.\r\n",
                Some(Redirect::Torn),
            ),
            ("-LOADING Redis is loading the dataset in memory\r\n", None),
            ("-MOVED nonsense\r\n", None),
        ] {
            assert_eq!(read(said), expected, "{said}");
        }
    }
}
