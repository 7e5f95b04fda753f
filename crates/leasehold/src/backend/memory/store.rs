//! What the scripts in `backend/redis` do, in Rust: the readable specification. No I/O, no clock of its own.

#[cfg(feature = "sim")]
pub(crate) mod look;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::Listener;
use crate::{
    backend::{
        Abandon, Acquire, Acquired, Inspection, Line, Release, Released, Renew, Renewal, WakeUp,
    },
    name::Name,
    owner::LeaseId,
    wakeup::WakeUps,
};

/// What one client hears.
pub(crate) struct Ears {
    pub(super) client: Arc<str>,
    pub(super) wake_ups: Arc<WakeUps>,
}

impl Ears {
    pub(crate) fn new(client: &Arc<str>, wake_ups: Arc<WakeUps>) -> Ears {
        Ears {
            client: Arc::clone(client),
            wake_ups,
        }
    }
}

#[derive(Default)]
pub(crate) struct Store {
    pub(super) held: BTreeMap<Name, Held>,
    lines: HashMap<Name, VecDeque<InLine>>,
    pub(super) listeners: HashMap<Name, Vec<Listener>>,
    /// Lease ids that were given up, until then.
    gone: HashMap<(Arc<str>, LeaseId), Duration>,
    pub(super) labels: HashMap<Arc<str>, String>,
    /// Messages of the present step, told after it.
    pub(super) outbox: Vec<(Arc<Ears>, Name, WakeUp)>,
    /// What the server's clock shows: the time since the server began.
    clock: Duration,
    /// How far it has been stepped ahead.
    pub(super) ahead: Duration,
    /// Messages do not get through.
    pub(super) cut: bool,
}

pub(super) struct Held {
    client: Arc<str>,
    lease: LeaseId,
    holds: u32,
    ends: Duration,
}

struct InLine {
    client: Arc<str>,
    lease: LeaseId,
    lease_ms: u64,
}

impl Store {
    /// The server's clock shows `now` from here on. What has ended by then is gone.
    pub(crate) fn set_clock(&mut self, now: Duration) {
        self.clock = now + self.ahead;
        let now = self.clock;
        self.held.retain(|_, held| held.ends > now);
        self.gone.retain(|_, until| *until > now);
    }

    fn ours(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId) -> Option<&mut Held> {
        self.held
            .get_mut(name)
            .filter(|held| held.client == *client && held.lease == lease)
    }

    fn hold(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId, lease_ms: u64) {
        let held = Held {
            client: Arc::clone(client),
            lease,
            holds: 1,
            ends: self.clock + Duration::from_millis(lease_ms),
        };
        self.held.insert(name.clone(), held);
    }

    fn line_up(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId, line: Line) {
        let waiting = self.lines.entry(name.clone()).or_default();
        if !waiting
            .iter()
            .any(|w| w.client == *client && w.lease == lease)
        {
            waiting.push_back(InLine {
                client: Arc::clone(client),
                lease,
                lease_ms: line.lease_ms,
            });
        }
    }

    fn leave_line(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId) {
        if let Some(waiting) = self.lines.get_mut(name) {
            waiting.retain(|w| w.client != *client || w.lease != lease);
            if waiting.is_empty() {
                self.lines.remove(name);
            }
        }
    }

    fn ears(&self, name: &Name) -> Vec<Arc<Ears>> {
        let listeners = self.listeners.get(name);
        listeners.map_or_else(Vec::new, |all| {
            all.iter().filter_map(Listener::upgrade).collect()
        })
    }

    pub(super) fn tell_all(&mut self, name: &Name) {
        if self.cut {
            return;
        }
        for ears in self.ears(name) {
            self.outbox.push((ears, name.clone(), WakeUp::TryAgain));
        }
    }

    pub(crate) fn acquire(&mut self, client: &Arc<str>, step: &Acquire) -> Acquired {
        let ends = self.clock + Duration::from_millis(step.lease_ms);
        if let Some(held) = self.ours(client, &step.name, step.lease) {
            held.ends = ends;
            return Acquired::Granted;
        }
        if let Some(held) = self.held.get(&step.name) {
            let ttl = Some(held.ends - self.clock);
            if let Some(line) = step.line {
                self.line_up(client, &step.name, step.lease, line);
            }
            return Acquired::Held { ttl };
        }
        if self.gone.contains_key(&(Arc::clone(client), step.lease)) {
            return Acquired::Abandoned;
        }
        self.hold(client, &step.name, step.lease, step.lease_ms);
        self.leave_line(client, &step.name, step.lease);
        Acquired::Granted
    }

    pub(crate) fn release(&mut self, client: &Arc<str>, step: &Release) -> Released {
        let name = &step.name;
        if let Some(ms) = step.tombstone_ms {
            let until = self.clock + Duration::from_millis(ms);
            self.gone.insert((Arc::clone(client), step.lease), until);
        }
        if self.ours(client, name, step.lease).is_none() {
            return match step.next {
                Some(next) if self.ours(client, name, next.lease).is_some() => Released::Kept,
                _ => Released::NotOurs,
            };
        }
        let others = self
            .ears(name)
            .len()
            .saturating_sub(usize::from(step.listening));
        if let Some(next) = step.next
            && next.keep
            && others == 0
            && !self.lines.contains_key(name)
        {
            self.hold(client, name, next.lease, next.lease_ms);
            return Released::Kept;
        }
        // The next one in line who can hear us gets it.
        self.held.remove(name);
        let mut granted = None;
        while let Some(first) = self.lines.get_mut(name).and_then(VecDeque::pop_front) {
            let ears = self.ears(name);
            let Some(ears) = ears.into_iter().find(|ears| ears.client == first.client) else {
                continue;
            };
            self.hold(&first.client, name, first.lease, first.lease_ms);
            if !self.cut {
                let wake_up = WakeUp::Granted(first.lease);
                self.outbox.push((ears, name.clone(), wake_up));
            }
            granted = Some(Duration::from_millis(first.lease_ms));
            break;
        }
        if self.lines.get(name).is_some_and(VecDeque::is_empty) {
            self.lines.remove(name);
        }
        if (granted.is_some() || others > 0)
            && let Some(next) = step.next
            && let Some(line) = next.line
        {
            self.line_up(client, name, next.lease, line);
        }
        if let Some(lease) = granted {
            return Released::Granted { lease };
        }
        self.tell_all(name);
        Released::Freed {
            others: others as u64,
        }
    }

    pub(crate) fn abandon(&mut self, client: &Arc<str>, step: &Abandon) {
        let until = self.clock + Duration::from_millis(step.tombstone_ms);
        self.gone.insert((Arc::clone(client), step.lease), until);
        self.leave_line(client, &step.name, step.lease);
        if self.ours(client, &step.name, step.lease).is_some() {
            self.held.remove(&step.name);
            self.tell_all(&step.name);
        }
    }

    pub(crate) fn renew(&mut self, client: &Arc<str>, renew: &Renew<'_>) -> Renewal {
        let ends = self.clock + Duration::from_millis(renew.lease_ms);
        match self.ours(client, renew.name, renew.lease) {
            Some(held) => {
                held.ends = ends;
                Renewal::Extended
            }
            None => Renewal::Lost,
        }
    }

    pub(crate) fn count(
        &mut self,
        client: &Arc<str>,
        name: &Name,
        lease: LeaseId,
        holds: u32,
    ) -> bool {
        let ours = self.ours(client, name, lease);
        ours.map(|held| held.holds = holds).is_some()
    }

    pub(crate) fn inspect(&self, name: &Name) -> Inspection {
        let held = self.held.get(name);
        Inspection {
            owners: held
                .map(|held| (format!("{}:{}", held.client, held.lease), held.holds.into()))
                .into_iter()
                .collect(),
            ttl: held.map(|held| held.ends - self.clock),
            listeners: self.ears(name).len() as u64,
            label: held.and_then(|held| self.labels.get(&held.client).cloned()),
        }
    }

    pub(crate) fn force_unlock(&mut self, name: &Name) -> bool {
        let freed = self.held.remove(name).is_some();
        if freed {
            self.tell_all(name);
        }
        freed
    }

    pub(crate) fn listen(&mut self, client: &Arc<str>, name: &Name, ears: &Arc<Ears>) {
        let listeners = self.listeners.entry(name.clone()).or_default();
        listeners.retain(|ears| ears.upgrade().is_some_and(|ears| ears.client != *client));
        listeners.push(Arc::downgrade(ears));
    }

    pub(crate) fn unlisten(&mut self, client: &Arc<str>, name: &Name) {
        if let Some(listeners) = self.listeners.get_mut(name) {
            listeners.retain(|ears| ears.upgrade().is_some_and(|ears| ears.client != *client));
            if listeners.is_empty() {
                self.listeners.remove(name);
            }
        }
    }
}
