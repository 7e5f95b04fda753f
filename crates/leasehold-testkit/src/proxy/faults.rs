//! The faults of the proxy.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::links::Link;
use super::{Lane, Way};

/// The faults of the network at the moment.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) refuse: bool,
    pub(super) to_server: Flow,
    pub(super) to_client: Flow,
    pub(super) held_lanes: Vec<(Lane, Option<Way>)>,
    pub(super) delay: Duration,
    pub(super) cut_reply_after: Option<u64>,
    pub(super) traps: Vec<Trap>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Flow {
    pub(super) swallow: bool,
    pub(super) hold: bool,
}

/// Loses one part of the commands that contain a needle.
#[derive(Debug)]
pub(super) struct Trap {
    pub(super) needle: Vec<u8>,
    pub(super) times: usize,
    pub(super) part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Request,
    Reply,
}

/// The possible fates of the next parcel.
pub(super) enum Passage {
    Open,
    Swallowed,
    HeldUntil(Option<Instant>),
}

impl Faults {
    pub(super) fn set(&mut self, way: Option<Way>, change: impl Fn(&mut Flow)) {
        if way != Some(Way::ToClient) {
            change(&mut self.to_server);
        }
        if way != Some(Way::ToServer) {
            change(&mut self.to_client);
        }
    }

    pub(super) fn flow(&self, way: Way) -> Flow {
        match way {
            Way::ToServer => self.to_server,
            Way::ToClient => self.to_client,
        }
    }

    pub(super) fn arm(&mut self, needle: &[u8], times: usize, part: Part) {
        self.traps.push(Trap {
            needle: needle.to_vec(),
            times,
            part,
        });
    }

    /// The part to lose of `command`, if a trap waits for it. The trap counts it.
    pub(super) fn spring(&mut self, command: &[u8]) -> Option<Part> {
        let trap = self
            .traps
            .iter_mut()
            .find(|trap| trap.times > 0 && contains(command, &trap.needle))?;
        trap.times -= 1;
        Some(trap.part)
    }

    pub(super) fn passage(&self, way: Way, arrived: Instant, link: &Link) -> Passage {
        let flow = self.flow(way);
        let due = arrived + self.delay;
        let lane_held = |&(lane, held): &(Lane, Option<Way>)| {
            held.is_none_or(|held| held == way) && lane.has(link)
        };
        if flow.swallow || link.hung.load(Ordering::SeqCst) {
            Passage::Swallowed
        } else if flow.hold || self.held_lanes.iter().any(lane_held) {
            Passage::HeldUntil(None)
        } else if due > Instant::now() {
            Passage::HeldUntil(Some(due))
        } else {
            Passage::Open
        }
    }
}

pub(super) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    needle.is_empty()
        || haystack
            .windows(needle.len())
            .any(|window| window == needle)
}
