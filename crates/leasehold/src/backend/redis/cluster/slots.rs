//! Which slot a key is in, and what a node says of the owners of slots.

use redis::Value;

use crate::backend::redis::{discovery::Address, script::text};

/// So many slots has each cluster.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a key: that of what stands between its first `{` and the first `}` behind it, if that is not empty.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| {
        let (tag, _) = rest.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    });
    // A power of two, and so a mask.
    crc16(tag.unwrap_or(key).as_bytes()) & 0x3fff
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (crc << 8) ^ CRC[usize::from((crc >> 8) ^ u16::from(*byte))]
    })
}

static CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0_u16;
    while at < 256 {
        let (mut crc, mut bit) = (at << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[at as usize] = crc;
        at += 1;
    }
    table
};

/// Slots that follow one another, and the primary that has them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    /// `None`: it is listed without an address.
    pub(super) owner: Option<Address>,
    /// The ids of the primary and of its replicas.
    pub(super) ids: Vec<String>,
}

/// Reads an answer to `CLUSTER SLOTS` of the node at `answered`; `None`: it is none.
pub(super) fn ranges(reply: &Value, answered: &Address) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let range = |range: &Value| {
        let Value::Array(parts) = range else {
            return None;
        };
        let [first, last, nodes @ ..] = parts.as_slice() else {
            return None;
        };
        let slot = |value: &Value| match value {
            Value::Int(slot) => u16::try_from(*slot)
                .ok()
                .filter(|it| usize::from(*it) < SLOTS),
            _ => None,
        };
        Some(SlotRange {
            first: slot(first)?,
            last: slot(last)?,
            // A node that has lost its address is listed with port 0, and must not be looked for there (bug 255).
            owner: Some(address(nodes.first()?, answered)?).filter(|(_, port)| *port != 0),
            ids: nodes.iter().filter_map(id).collect(),
        })
    };
    // All or nothing: a table with a range left out would look like slots that no node serves.
    ranges.iter().map(range).collect()
}

/// The first replica of the primary that has the slot, of an answer to `CLUSTER SLOTS`, which lists those that are up.
pub(super) fn replica(reply: &Value, of: u16, answered: &Address) -> Option<Address> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    ranges.iter().find_map(|range| {
        let Value::Array(parts) = range else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), _, replica, ..] = parts.as_slice() else {
            return None;
        };
        let has_slot = (*first..=*last).contains(&i64::from(of));
        let replica = has_slot.then(|| address(replica, answered))?;
        replica.filter(|(_, port)| *port != 0)
    })
}

/// A node without a host of its own is where the one is that answered. A node whose host is not known (`?`) may be known by its number. Without
/// a port it has no address at all: the node that answered has lost it, or it takes no connections of this sort.
fn address(node: &Value, (answered, _): &Address) -> Option<Address> {
    let Value::Array(parts) = node else {
        return None;
    };
    let [host, Value::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let host = text(host).filter(|host| !host.is_empty());
    let host = match host.as_deref() {
        Some("?") => parts.get(3).and_then(number),
        _ => host,
    };
    Some((
        host.unwrap_or_else(|| answered.clone()),
        u16::try_from(*port).ok()?,
    ))
}

/// The number that a node adds to a host, behind the word `ip`.
fn number(more: &Value) -> Option<String> {
    let pairs: Vec<String> = match more {
        Value::Array(pairs) => pairs.iter().filter_map(text).collect(),
        // By RESP3 a server answers with a map, which RESP2 flattens into a list.
        Value::Map(pairs) => {
            let both = pairs.iter().flat_map(|(name, value)| [name, value]);
            both.filter_map(text).collect()
        }
        _ => return None,
    };
    let mut pairs = pairs.chunks_exact(2);
    let ip = pairs.find(|pair| pair[0] == "ip")?;
    Some(ip[1].clone()).filter(|ip| !ip.is_empty())
}

fn id(node: &Value) -> Option<String> {
    match node {
        Value::Array(parts) => text(parts.get(2)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kind::LockKind,
        name::{LockId, Name, TOKENS},
        owner::LeaseId,
    };

    #[test]
    fn a_slot_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // CLUSTER KEYSLOT of Redis 7.0.15.
        for (key, in_slot) in [
            ("somekey", 11_058),
            ("foo{hash_tag}", 2515),
            ("", 0),
            ("foo", 12_182),
            ("{foo}.bar{zap}", 12_182),
        ] {
            assert_eq!(slot(key), in_slot, "{key}");
        }
        assert_ne!(slot("foo{}{bar}"), slot("bar"));
    }

    #[test]
    fn all_keys_of_a_lock_are_in_the_slot_of_its_name() {
        for name in ["order:42", "order:{42}:x", "{a}", "x{a}y{b}"] {
            let name = Name::new(name).unwrap();
            for kind in LockKind::ALL {
                let id = LockId::new(kind, name.clone());
                for key in [
                    id.queue_key(),
                    id.gone_key("client", LeaseId::from(7)),
                    id.gone_prefix(),
                    id.grant_channel("client"),
                    id.entries_key(),
                    id.free_channel(),
                    name.fence_key(),
                    name.leader_key(),
                    name.marker(),
                    name.suffixed("timeout"),
                    name.prefixed(TOKENS),
                ] {
                    assert_eq!(slot(&key.to_string()), slot(name.wire()), "{key} of {id}");
                }
            }
        }
    }

    #[test]
    fn the_owners_of_slots_are_read_with_and_without_their_addresses() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| {
            Value::Array(vec![
                host,
                Value::Int(port),
                text("id"),
                Value::Array(Vec::new()),
            ])
        };
        let range =
            |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let reply = Value::Array(vec![
            range(0, 5000, node(text("10.0.0.1"), 7000)),
            range(5001, 5001, node(Value::Nil, 7001)),
            range(5002, 5002, node(text(""), 7002)),
            range(
                5003,
                5003,
                Value::Array(vec![
                    text("?"),
                    Value::Int(7003),
                    text("id"),
                    Value::Array(vec![text("ip"), text("10.0.0.3")]),
                ]),
            ),
            range(5004, 5004, node(text("?"), 7004)),
            range(5005, 16_383, node(text(""), 0)),
        ]);
        let owners: Vec<_> = ranges(&reply, &("here".to_owned(), 1)).unwrap();
        let owners: Vec<_> = owners
            .iter()
            .map(|range| {
                let owner = range.owner.as_ref();
                (
                    range.first,
                    range.last,
                    owner.map(|(host, port)| (&**host, *port)),
                )
            })
            .collect();
        assert_eq!(
            owners,
            [
                (0, 5000, Some(("10.0.0.1", 7000))),
                (5001, 5001, Some(("here", 7001))),
                (5002, 5002, Some(("here", 7002))),
                (5003, 5003, Some(("10.0.0.3", 7003))),
                (5004, 5004, Some(("here", 7004))),
                (5005, 16_383, None),
            ]
        );
        let odd = Value::Array(vec![range(0, 16_384, node(Value::Nil, 1))]);
        assert_eq!(ranges(&odd, &("here".to_owned(), 1)), None);
    }
}
