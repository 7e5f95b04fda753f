//! The series of one kind of lock in one class of names.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Key, Label, Recorder};

use super::{
    ACQUIRES, HANDOVERS, HELD, HOLD, LEFT, LOST, METADATA, RENEWALS, WAIT, WAITING, with_recorder,
};
use crate::{EventKind, LostReason, Outcome};

/// Of one class and kind.
#[derive(Default)]
pub(super) struct Series {
    /// Known also while there is no recorder, so that gauges begin where they are.
    waiting: AtomicI64,
    held: AtomicI64,
    handles: OnceLock<Handles>,
}

pub(super) struct Handles {
    granted: Counter,
    busy: Counter,
    given_up: Counter,
    failed: Counter,
    wait: Histogram,
    hold: Histogram,
    waiting: Gauge,
    held: Gauge,
    handovers: Counter,
    renewed: Counter,
    unanswered: Counter,
    left: Histogram,
    lost: [Counter; LOST_REASONS.len()],
}

const LOST_REASONS: [(LostReason, &str); 6] = [
    (LostReason::Expired, "expired"),
    (LostReason::Replaced, "replaced"),
    (LostReason::Failover, "failover"),
    (LostReason::MaxHold, "max_hold"),
    (LostReason::ClientShutdown, "client_shutdown"),
    (LostReason::Unconfirmed, "unconfirmed"),
];

impl Series {
    pub(super) fn handles(&self, labels: impl FnOnce() -> [Label; 2]) -> Option<&Handles> {
        if let Some(handles) = self.handles.get() {
            return Some(handles);
        }
        with_recorder(|recorder| {
            let handles = || {
                let handles = Handles::new(recorder, &labels());
                handles.waiting.increment(number(&self.waiting));
                handles.held.increment(number(&self.held));
                handles
            };
            // Once, also if two clients of one builder come here at a time: the gauges would else begin with the same counts twice.
            self.handles.get_or_init(handles)
        })
    }

    pub(super) fn count(&self, kind: EventKind, handles: Option<&Handles>) {
        let step = |count: &AtomicI64, gauge: fn(&Handles) -> &Gauge, by: i32| {
            count.fetch_add(by.into(), Ordering::Relaxed);
            if let Some(handles) = handles {
                gauge(handles).increment(f64::from(by));
            }
        };
        match kind {
            EventKind::Asked => step(&self.waiting, |handles| &handles.waiting, 1),
            EventKind::Answered { .. } => step(&self.waiting, |handles| &handles.waiting, -1),
            // Passed on in memory, it is held all the time.
            EventKind::TakenOver { .. } | EventKind::HandedOver { .. } => {}
            kind if kind.wait().is_some() => step(&self.held, |handles| &handles.held, 1),
            kind if kind.held().is_some() => step(&self.held, |handles| &handles.held, -1),
            _ => {}
        }
        if let Some(handles) = handles {
            handles.count(kind);
        }
    }
}

impl Handles {
    fn new(recorder: &dyn Recorder, labels: &[Label; 2]) -> Handles {
        let key = |name: &'static str, more: Option<Label>| {
            let labels = labels.iter().cloned().chain(more);
            Key::from_parts(name, labels.collect::<Vec<_>>())
        };
        let counter = |name, more| recorder.register_counter(&key(name, more), &METADATA);
        let outcome = |name, outcome: &'static str| {
            let label = Label::new("outcome", outcome);
            recorder.register_counter(&key(name, Some(label)), &METADATA)
        };
        let histogram = |name| recorder.register_histogram(&key(name, None), &METADATA);
        let gauge = |name| recorder.register_gauge(&key(name, None), &METADATA);
        Handles {
            granted: outcome(ACQUIRES, Outcome::Granted.as_str()),
            busy: outcome(ACQUIRES, Outcome::Busy.as_str()),
            given_up: outcome(ACQUIRES, Outcome::GivenUp.as_str()),
            failed: outcome(ACQUIRES, Outcome::Failed.as_str()),
            wait: histogram(WAIT),
            hold: histogram(HOLD),
            waiting: gauge(WAITING),
            held: gauge(HELD),
            handovers: counter(HANDOVERS, None),
            renewed: outcome(RENEWALS, "renewed"),
            unanswered: outcome(RENEWALS, "unanswered"),
            left: histogram(LEFT),
            lost: LOST_REASONS.map(|(_, reason)| counter(LOST, Some(Label::new("reason", reason)))),
        }
    }

    fn count(&self, kind: EventKind) {
        if let Some(held) = kind.held() {
            self.hold.record(held);
        }
        match kind {
            EventKind::Answered { outcome, wait } => {
                match outcome {
                    Outcome::Granted => {
                        self.wait.record(wait);
                        &self.granted
                    }
                    Outcome::Busy => &self.busy,
                    Outcome::GivenUp => &self.given_up,
                    Outcome::Failed => &self.failed,
                }
                .increment(1);
            }
            EventKind::HandedOver { .. } => self.handovers.increment(1),
            EventKind::Renewed { left, lease } => {
                self.renewed.increment(1);
                self.left.record(ratio(left, lease));
            }
            EventKind::RenewalFailed => self.unanswered.increment(1),
            EventKind::Lost { reason, .. } => {
                let at = LOST_REASONS.iter().position(|(known, _)| *known == reason);
                if let Some(lost) = at.and_then(|at| self.lost.get(at)) {
                    lost.increment(1);
                }
            }
            _ => {}
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a process has fewer tasks than 2^53"
)]
fn number(count: &AtomicI64) -> f64 {
    count.load(Ordering::Relaxed) as f64
}

fn ratio(left: Duration, lease: Duration) -> f64 {
    if lease.is_zero() {
        return 0.0;
    }
    left.as_secs_f64() / lease.as_secs_f64()
}
