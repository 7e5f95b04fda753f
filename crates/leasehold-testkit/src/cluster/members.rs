//! All nodes, as a node sees them: `CLUSTER NODES`.

use std::ops::RangeInclusive;

use crate::look::look;
use crate::server::Server;

/// A node as one of them sees it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: String,
    /// It speaks of itself.
    pub(super) own: bool,
    pub(super) primary: bool,
    /// It is neither lost nor still unknown.
    pub(super) well: bool,
    pub(super) epoch: u64,
    pub(super) slots: Vec<RangeInclusive<u16>>,
    /// Slots that are open, and with which node at the other end. A node says so of itself only.
    pub(super) leaving: Vec<(u16, String)>,
    pub(super) coming: Vec<(u16, String)>,
}

impl Member {
    pub(super) fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// `ID ADDRESS FLAGS PRIMARY PING PONG EPOCH LINK SLOT…`
    fn read(line: &str) -> Option<Member> {
        let mut fields = line.split(' ');
        let id = fields.next()?.to_owned();
        let flags: Vec<&str> = fields.nth(1)?.split(',').collect();
        let epoch = fields.nth(3)?.parse().ok()?;
        let connected = fields.next()? == "connected";
        let sick = ["fail", "fail?", "handshake", "noaddr"];
        let mut member = Member {
            id,
            own: flags.contains(&"myself"),
            primary: flags.contains(&"master"),
            well: connected && !flags.iter().any(|flag| sick.contains(flag)),
            epoch,
            slots: Vec::new(),
            leaving: Vec::new(),
            coming: Vec::new(),
        };
        for slots in fields {
            let open = slots.trim_matches(['[', ']']);
            if let Some((slot, to)) = open.split_once("->-") {
                member.leaving.push((slot.parse().ok()?, to.to_owned()));
            } else if let Some((slot, from)) = open.split_once("-<-") {
                member.coming.push((slot.parse().ok()?, from.to_owned()));
            } else {
                let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                member.slots.push(first.parse().ok()?..=last.parse().ok()?);
            }
        }
        Some(member)
    }
}

/// All nodes as this one sees them; nothing if it does not answer.
pub(super) fn members(node: &Server) -> Option<Vec<Member>> {
    let lines: String = look(node, &["CLUSTER", "NODES"])?;
    lines.lines().map(Member::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_to_its_end() {
        let line =
            "a1 127.0.0.1:7000@17000,host myself,master - 0 0 7 connected 0-5 9 [4->-b2] [10-<-c3]";
        let member = Member::read(line).expect("a line");
        assert!(member.own && member.primary && member.well);
        assert_eq!((member.id.as_str(), member.epoch), ("a1", 7));
        assert_eq!(member.slots, [0..=5, 9..=9]);
        assert!(member.has(5) && member.has(9) && !member.has(6));
        assert_eq!(member.leaving, [(4, "b2".to_owned())]);
        assert_eq!(member.coming, [(10, "c3".to_owned())]);
        let lost = "b2 127.0.0.1:7001@17001 slave,fail a1 0 0 7 connected";
        assert!(!Member::read(lost).expect("a line").well);
    }
}
