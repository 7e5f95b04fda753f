//! The events of a cluster: slots move, at once or through a time in which they are open, and nodes are replaced while they stand still.

use std::time::Duration;

use fastrand::Rng;
use leasehold::sim::{Held, Kind, Snapshot};

use crate::{
    config::{MS, SECOND},
    dice::{Point, mix},
    invariants::nanos,
    process::Life,
    shared::{LETTERS, NAMES, number_of, span},
    wire::{Freight, Message},
    world::{Event, World},
};

impl World {
    pub fn plan_moves(&mut self) {
        let config = self.config.clone();
        for _ in 0..config.faults.failovers {
            let chance = self.shared.lock().dice.chance(Point::Plan, 8, 1.0);
            let Some(mut r) = chance else { continue };
            let time = r.u64(0..config.chaos);
            if config.nodes == 0 {
                self.at(time, Event::Succeeded);
                if config.durable {
                    let lags = r.u64(0..config.chaos);
                    self.at(lags, Event::Lags(true));
                    self.at(lags + config.span(&mut r), Event::Lags(false));
                }
                continue;
            }
            let node = r.u8(0..config.nodes);
            let stands_still = if r.bool() {
                config.span(&mut r)
            } else {
                r.u64(0..50 * MS)
            };
            self.at(time, Event::Replaced(node, stands_still));
        }
        for number in 0..config.faults.moves {
            let chance = self.shared.lock().dice.chance(Point::Plan, 7, 1.0);
            let Some(mut r) = chance else { continue };
            let time = r.u64(0..config.lease * 3 + 100 * MS).min(config.chaos);
            let (name, to) = (r.u8(0..config.names), r.u8(0..config.nodes));
            let takes = config.span(&mut r);
            match (number + r.u32(0..4)) % 4 {
                0 => self.at(time, Event::Replaced(to, takes)),
                1 => {
                    self.at(time, Event::Open(name, to, r.bool(), time + takes));
                    self.at(time + takes, Event::Move(name, to));
                }
                2 => {
                    // As `redis-cli --cluster reshard` does: some keys first, then all, then the slot.
                    let ends = time + takes;
                    self.at(time, Event::Open(name, to, false, ends));
                    self.at(time + takes / 2, Event::Open(name, to, true, ends));
                    self.at(time + takes, Event::Move(name, to));
                }
                _ => self.at(time, Event::Move(name, to)),
            }
        }
    }

    /// Until it `ends` no lock in the slot is taken or given back.
    pub fn opens(&mut self, name: u8, to: u8, is_there: bool, ends: u64) {
        let called = NAMES[usize::from(name)];
        let from = self.server().node_of(called);
        if self.healed_at.is_some() || from == to {
            return;
        }
        self.moving.insert(name, to);
        self.server().open_slot(called, to, is_there);
        self.disturb(ends);
        let how = if is_there {
            "all keys are there"
        } else {
            "some keys are there"
        };
        self.note(0, "fault: slot open", || {
            format!("the slot of {called} is being moved from {from} to {to}: {how}")
        });
    }

    /// Both nodes know of it, and the others hear of it a while later.
    pub fn moves(&mut self, name: u8, to: u8) {
        let called = NAMES[usize::from(name)];
        let from = self.server().node_of(called);
        if self.healed_at.is_some() && !self.moving.contains_key(&name) {
            return;
        }
        if from == to && self.healed_at.is_none() {
            return;
        }
        self.moving.remove(&name);
        let hints = self
            .server()
            .move_slot(called, to, |node| node == from || node == to);
        self.disturb(self.now);
        self.note(0, "fault: slot moved", || {
            format!("the slot of {called} has moved from {from} to {to}")
        });
        for hint in hints {
            self.send_hint(from, hint);
        }
        self.tell_later();
    }

    /// The rest of the cluster gives the slots of a node that says nothing to others.
    pub fn replaced(&mut self, node: u8, time: u64) {
        if self.healed_at.is_some() || self.config.nodes < 2 {
            return;
        }
        if self.config.lags {
            return self.promoted(node, time);
        }
        self.pause(node, time);
        for name in 0..self.config.names {
            let called = NAMES[usize::from(name)];
            if self.server().node_of(called) != node {
                continue;
            }
            self.moving.remove(&name);
            let to = (node + 1 + name % (self.config.nodes - 1)) % self.config.nodes;
            let hints = self.server().move_slot(called, to, |other| other != node);
            self.note(0, "fault: node replaced", || {
                format!(
                    "{to} takes the slot of {called} from {node}, which stands still for {}",
                    span(time)
                )
            });
            // It tells so when it goes on, and has heard of it.
            for hint in hints {
                self.ends.push((node, self.now + time, hint));
            }
        }
        self.at(self.now + time, Event::Hears(node));
    }

    /// A replica takes the place of a node that stands still, and may lack what that one did last.
    fn promoted(&mut self, node: u8, time: u64) {
        let replicas = self.server().replicas();
        let runs = |it: &&u8| self.paused[usize::from(**it)] <= self.now;
        let Some(&by) = replicas
            .iter()
            .find(runs)
            .filter(|_| !replicas.contains(&node))
        else {
            return;
        };
        self.pause(node, time);
        self.server().depose(node, by);
        let before = self.server().snapshot();
        let (lag, mut r) = self.lag();
        for name in 0..self.config.names {
            let called = NAMES[usize::from(name)];
            if self.server().node_of(called) == node {
                self.rewind(called, lag);
            }
        }
        let hints = self.server().replace_node(node, by, |it| it == by);
        self.compare(&before);
        self.note(0, "fault: node replaced", || {
            format!(
                "{by} takes the place of {node}, which stands still for {}",
                span(time)
            )
        });
        // It tells so when it goes on, and has heard of it.
        for hint in hints {
            self.ends.push((node, self.now + time, hint));
        }
        // Until it hears of that, it answers what lies in its sockets.
        let hears = r.u64(MS..=200 * MS);
        self.at(self.now + time + hears, Event::Hears(node));
        self.tell_later();
    }

    /// By how much a replica lags.
    fn lag(&self) -> (u64, Rng) {
        let mut r = Rng::with_seed(mix(self.config.seed, self.now ^ 0x01A6));
        let lag = match r.u32(0..4) {
            0 => 0,
            1 | 2 => r.u64(0..=20 * MS),
            _ => r.u64(0..=SECOND),
        };
        (lag, r)
    }

    /// A replica takes the place of the one server, whose connections end.
    pub fn succeeded(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        let before = self.server().snapshot();
        let (lag, _) = self.lag();
        self.note(0, "fault: server replaced", || {
            "a replica takes the place of the server".to_owned()
        });
        self.server().depose(0, 0);
        for name in 0..self.config.names {
            self.rewind(NAMES[usize::from(name)], lag);
        }
        self.compare(&before);
        for client in 0..self.config.clients {
            self.leave_before(client);
            self.meets_another(client, 0);
        }
        // No connection carries a copy to another server. Something between that sends twice may.
        if !self.config.may_duplicate {
            self.messages
                .retain(|_, it| !matches!(it.freight, Freight::Request { stray: true, .. }));
        }
    }

    /// The replica acknowledges each write, or lags.
    pub fn replica_lags(&mut self, lags: bool) {
        if self.healed_at.is_some() && lags {
            return;
        }
        self.keys.lock().lag(lags);
        self.note(0, "fault: replica lags", || {
            let how = if lags { "lags" } else { "has all again" };
            format!("the replica {how}")
        });
    }

    /// Some requests of a client lie at the server whose place another takes, and are answered there.
    fn leave_before(&mut self, client: u8) {
        if self.processes[usize::from(client)].life == Life::Unborn {
            return;
        }
        let Some(mut r) = self.chance(Point::Cut, client, 0.5) else {
            return;
        };
        let lies_there = |message: &Message| {
            let is_there = matches!(&message.freight, Freight::Request { stray: false, request }
                if matches!(request.kind, Kind::Acquire | Kind::Renew | Kind::Confirm | Kind::Extend | Kind::Count | Kind::Downgrade | Kind::Release));
            is_there && message.client == client
        };
        let lying = self.messages.iter().filter(|(_, it)| lies_there(it));
        let lying: Vec<u64> = lying.map(|(id, _)| *id).collect();
        for id in lying {
            let message = self.messages.remove(&id).map(|message| message.freight);
            if let Some(Freight::Request { request, .. }) = message {
                let late = self.config.span(&mut r);
                self.at(self.now + late, Event::Before(request.number));
                self.left_before.insert(request.number, request);
            }
        }
        let is_unread = |message: &Message| {
            let is_grant =
                matches!(&message.freight, Freight::Hint { hint, .. } if hint.granted.is_some());
            is_grant && message.client == client
        };
        let unread = self.messages.iter().filter(|(_, it)| is_unread(it));
        let unread: Vec<u64> = unread.map(|(id, _)| *id).collect();
        for id in unread {
            let message = self.messages.remove(&id).map(|message| message.freight);
            if let Some(Freight::Hint { hint, server }) = message {
                let late = self.config.span(&mut r);
                self.at(self.now + late, Event::GrantBefore(id));
                self.unread_before.insert(id, (client, server, hint));
            }
        }
    }

    /// A client that knows of the next server reads what the server of before has told it.
    pub fn granted_before(&mut self, number: u64) {
        let Some((client, server, _)) = self.unread_before.get(&number) else {
            return;
        };
        let (client, server) = (*client, *server);
        let process = &mut self.processes[usize::from(client)];
        // As in `answered_before`.
        if process.life == Life::Frozen || process.lane(0, false).meets_another {
            return self.at(self.now + SECOND / 4, Event::GrantBefore(number));
        }
        let is_dead = process.life == Life::Dead;
        if let Some((_, _, hint)) = self.unread_before.remove(&number)
            && !is_dead
        {
            self.note(client, "seen: granted by message before", || {
                let letter = LETTERS[usize::from(client)];
                format!("client {letter} reads a grant of the server before")
            });
            self.hear(client, server, hint);
        }
    }

    /// The server whose place another has taken goes on, and answers.
    pub fn answered_before(&mut self, number: u64) {
        let Some(asked) = self.left_before.get(&number).cloned() else {
            return;
        };
        let process = &mut self.processes[usize::from(asked.client)];
        if process.life == Life::Dead || !asked.request.lock().is_awaited() {
            self.left_before.remove(&number);
            return;
        }
        // A client that knows of no successor believes what it is told, as the docs say: that is no breach, and not played.
        if process.life == Life::Frozen || process.lane(0, false).meets_another {
            // A frozen client may be so for long, and a world ends after so many events.
            return self.at(self.now + SECOND / 4, Event::Before(number));
        }
        self.left_before.remove(&number);
        if asked.kind == Kind::Release {
            // The client gives it back once more where the successor may have it, and says meanwhile what it was told.
            let ids = asked.about.iter().map(|(_, lease)| (asked.client, *lease));
            self.watch.outlived.extend(ids.clone());
            self.watch.rewound.extend(ids);
        }
        let answer = asked.request.lock().execute_before(self.server());
        self.note(asked.client, "seen: answered by the server before", || {
            format!("the server before answers [{number}]: {:?}", answer.text)
        });
        self.reply(&asked, answer);
    }

    fn rewind(&mut self, called: &str, lag: u64) {
        if lag == 0 {
            return;
        }
        let tag = format!("{{{called}}}");
        let is_of = |key: &[u8]| {
            key == called.as_bytes() || key.windows(tag.len()).any(|part| part == tag.as_bytes())
        };
        let to = Duration::from_nanos(self.now.saturating_sub(lag));
        self.keys.lock().rewind(to, is_of);
        self.server().keys_changed();
        self.note(0, "fault: replica lagged", || {
            format!(
                "it lacks what happened to {called} in the last {}",
                span(lag)
            )
        });
    }

    /// Tells the watch what the slots have lost with their node, and what they have again.
    fn compare(&mut self, before: &Snapshot) {
        let after = self.server().snapshot();
        let id = |held: &Held| (number_of(&LETTERS, &held.client), held.lease);
        for held in &before.held {
            let now = after
                .held
                .iter()
                .find(|it| it.name == held.name && id(it) == id(held));
            let is_same = now.is_some_and(|now| (now.ends, now.holds) == (held.ends, held.holds));
            if !is_same {
                // A write that the replica has acknowledged outlives the server.
                if !self.config.durable {
                    self.watch.forgive(held);
                }
                self.watch.taken(held);
            }
        }
        for held in &after.held {
            let name = usize::from(number_of(&NAMES, &held.name));
            let until = &mut self.watch.granted_until[name];
            *until = (*until).max(nanos(held));
            if !before
                .held
                .iter()
                .any(|it| it.name == held.name && id(it) == id(held))
            {
                self.watch.outlived.insert(id(held));
                self.watch.rewound.insert(id(held));
            }
        }
        for (_, client, lease) in &after.queued {
            if !before
                .queued
                .iter()
                .any(|(_, its, id)| (its, id) == (client, lease))
            {
                let client = number_of(&LETTERS, client);
                self.watch.outlived.insert((client, *lease));
            }
        }
        // A request sent before meets no tombstone.
        self.servers[0].forgot_at = self.now;
    }

    /// A node hears of what has changed, or does once it goes on.
    pub fn node_hears_or_stands(&mut self, node: u8) {
        let until = self.paused[usize::from(node)];
        if until > self.now {
            self.at(until + MS, Event::Hears(node));
        } else {
            self.node_hears(node);
        }
    }

    /// A node that goes on tells whom it does not serve any more.
    pub fn node_hears(&mut self, node: u8) {
        self.server().node_hears(node);
        let now = self.now;
        let (due, rest) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|(at, time, _)| *at == node && *time <= now);
        self.ends = rest;
        let due: Vec<_> = due;
        for (_, _, hint) in due {
            self.send_hint(node, hint);
        }
    }

    /// Faults end: what was being moved has moved, and all know.
    pub fn end_moves(&mut self) {
        for (name, to) in self.moving.clone() {
            self.moves(name, to);
        }
        for (_, time, _) in &mut self.ends {
            *time = (*time).min(self.now);
        }
        for node in 0..self.config.nodes {
            self.node_hears(node);
        }
    }

    fn tell_later(&mut self) {
        let mut r = Rng::with_seed(mix(self.config.seed, self.now ^ 0x7A11));
        for node in 0..self.config.nodes {
            let later = r.u64(0..SECOND);
            self.at(self.now + later, Event::Hears(node));
        }
    }

    fn disturb(&mut self, until: u64) {
        for process in &mut self.processes {
            process.last_fault = process.last_fault.max(until);
        }
    }
}
