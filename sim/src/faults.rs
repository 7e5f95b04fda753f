//! The faults of clients, connections and the server; and their end.

use std::{mem, sync::Arc, time::Duration};

use leasehold::{LockKind, sim::NoAnswer};

use crate::{
    config::{MS, SECOND},
    dice::Point,
    process::Life,
    shared::{LETTERS, NAMES, span},
    wire::{Freight, Message},
    world::{Event, World},
};

impl World {
    /// Trouble at the very moment at which something has reached a client or left it.
    pub fn react(&mut self, client: u8, server: u8, at: &'static str) {
        let faults = &self.config.faults;
        let (freeze, cut, deaf) = (faults.freeze, faults.cut, faults.cut_subscription);
        let freeze = if at == "in line" {
            freeze.max(faults.freeze_in_line)
        } else {
            freeze
        };
        if let Some(mut r) = self.chance(Point::React, client, freeze) {
            let time = self.config.span(&mut r);
            // A moment later, so that it has got in line, or believes in its hold.
            let after = if r.bool() {
                0
            } else {
                r.u64(0..=self.config.latency * 4)
            };
            self.at(self.now + after, Event::Freeze(client, time));
        }
        if at == "sends" || at == "hears" {
            if let Some(mut r) = self.chance(Point::React, client, cut) {
                let after = r.u64(0..=self.config.latency * 2);
                self.at(self.now + after, Event::Cut(client, server, false));
            }
        } else if let Some(mut r) = self.chance(Point::React, client, deaf) {
            let after = r.u64(0..=self.config.latency * 2);
            self.at(self.now + after, Event::Cut(client, server, true));
        }
    }

    /// SIGSTOP.
    pub fn freeze(&mut self, client: u8, time: u64, why: &'static str) {
        let healed = self.healed_at.is_some();
        let process = &mut self.processes[usize::from(client)];
        if process.life != Life::Runs || healed {
            return;
        }
        process.life = Life::Frozen;
        process.drive_at = u64::MAX;
        self.note(client, "fault: frozen", || {
            format!(
                "client {} is frozen for {} ({why})",
                LETTERS[usize::from(client)],
                span(time)
            )
        });
        self.at(self.now + time, Event::Thaw(client));
    }

    /// SIGCONT. Messages that have come meanwhile are read in the order of each connection, but one connection may be
    /// read long before the other.
    pub fn thaw(&mut self, client: u8) {
        let process = &mut self.processes[usize::from(client)];
        if process.life != Life::Frozen {
            return;
        }
        process.life = Life::Runs;
        process.last_stop = self.now;
        self.shared.lock().last_stop.insert(client, self.now);
        self.note(client, "fault: thawed", || {
            format!("client {} goes on", LETTERS[usize::from(client)])
        });
        let mut later = vec![0; 2 * self.paused.len()];
        if let Some(mut r) = self.chance(Point::Thaw, client, 0.7) {
            let which = r.usize(0..later.len());
            later[which] = match r.u32(0..3) {
                0 => self.config.latency,
                1 => self.config.latency * 10,
                _ => r.u64(0..self.config.lease),
            };
        }
        // Its connections have ended meanwhile: the handshake of the next ones comes before any request.
        for server in (0..).take(self.servers.len()) {
            self.epoch(client, server);
        }
        let now = self.now;
        let mut due = Vec::new();
        for (&id, message) in &mut self.messages {
            if message.client == client && message.due == u64::MAX {
                let (server, subscription) = (message.server(), message.is_subscription());
                let lane = usize::from(server) * 2 + usize::from(subscription);
                later[lane] += 1_000;
                message.due = now + later[lane];
                due.push((id, message.due, server, subscription));
            }
        }
        for (id, due, server, subscription) in due {
            let lane = self.processes[usize::from(client)].lane(server, subscription);
            lane.last_in = lane.last_in.max(due);
            self.at(due, Event::Message(id));
        }
        self.drive_soon(client);
    }

    /// A connection breaks. Messages under way are lost, or arrive much later without a receiver.
    pub fn cut(&mut self, client: u8, server: u8, subscription: bool) {
        if self.servers[self.of_lane(server)].is_gone {
            return;
        }
        if self.healed_at.is_some() || self.processes[usize::from(client)].life == Life::Unborn {
            return;
        }
        let down = self.chance(Point::Cut, client, 1.0).map_or(MS, |mut r| {
            if r.bool() {
                r.u64(0..20 * MS)
            } else {
                self.config.span(&mut r)
            }
        });
        let which = if subscription {
            "connection for wake-ups"
        } else {
            "connection"
        };
        let letter = LETTERS[usize::from(client)];
        let to = self.of_server(server, " to ");
        self.note(
            client,
            if subscription {
                "fault: cut wake-ups"
            } else {
                "fault: cut"
            },
            || {
                format!(
                    "the {which} of client {letter}{to} is cut for {}",
                    span(down)
                )
            },
        );
        let now = self.now;
        let process = &mut self.processes[usize::from(client)];
        let lane = process.lane(server, subscription);
        lane.generation += 1;
        lane.down_until = now + down;
        (lane.last_in, lane.last_out) = (0, 0);
        let generation = lane.generation;
        let cut: Vec<u64> = self
            .messages
            .iter()
            .filter(|(_, m)| m.client == client && m.server() == server)
            .filter(|(_, m)| m.is_subscription() == subscription)
            .filter(|(_, m)| !matches!(m.freight, Freight::Request { stray: true, .. }))
            .map(|(&id, _)| id)
            .collect();
        for id in cut {
            let Some(message) = self.messages.remove(&id) else {
                continue;
            };
            self.strand(message);
        }
        if subscription {
            let listener = self.listener(client, server);
            let server_of_it = &self.servers[self.of_lane(server)].keys;
            server_of_it.disconnect(&listener);
            self.at(now + down, Event::Listen(client, server, generation));
        } else {
            let mut known = self.outbox.known.lock();
            let known = known.entry((server, letter.to_owned())).or_default();
            known.down_until = now + down;
        }
        self.drive_soon(client);
    }

    /// The fate of a message whose connection is gone.
    fn strand(&mut self, message: Message) {
        let client = message.client;
        match message.freight {
            Freight::Request { request, .. } => {
                if request.kind.is_subscription() {
                    return;
                }
                request.request.lock().fail(NoAnswer::Ambiguous);
                let number = request.number;
                if let Some(mut r) = self.chance(Point::Cut, client, 0.5) {
                    let due = self.now + self.config.lateness(&mut r);
                    self.note(client, "fault: stranded", || {
                        format!("[{number}] arrives late, for nobody")
                    });
                    let request = Arc::clone(&request);
                    self.dispatch(
                        client,
                        Freight::Request {
                            request,
                            stray: true,
                        },
                        due,
                    );
                } else {
                    self.maybe_double(&request);
                }
            }
            Freight::Reply { request, .. } => {
                request.request.lock().fail(NoAnswer::Ambiguous);
                self.maybe_double(&request);
            }
            Freight::Hint { .. } => {}
        }
    }

    /// The connection for wake-ups is back: everything is subscribed again, and all listeners are told to look.
    pub fn listen_again(&mut self, client: u8, server: u8, generation: u32) {
        let process = &mut self.processes[usize::from(client)];
        let is_dead = process.life == Life::Dead;
        let lane = process.lane(server, true);
        if lane.generation != generation || is_dead {
            return;
        }
        lane.down_until = self.now;
        let wanted: Vec<_> = self
            .wanted
            .iter()
            .filter(|((who, of, _), _)| (*who, *of) == (client, server))
            .map(|(_, asked)| Arc::clone(asked))
            .collect();
        for asked in wanted {
            let name = NAMES[usize::from(asked.about[0].0)];
            // The order of the server: subscribed first, then told.
            let keys = self.servers[self.of_lane(server)].keys.clone();
            let (answer, told) = asked.request.lock().execute(&keys);
            let due = self.now + self.config.latency;
            let request = Arc::clone(&asked);
            self.dispatch(client, Freight::Reply { request, answer }, due);
            let hints = keys.after_gap(&self.listener(client, server));
            let hints = hints
                .into_iter()
                .chain(told.into_iter().filter(|hint| hint.ends));
            for hint in hints.filter(|hint| &*hint.name == name) {
                self.dispatch(client, Freight::Hint { hint, server }, due);
            }
        }
    }

    /// SIGKILL, or the machine is gone. Requests that it has sent may still arrive.
    pub fn die(&mut self, client: u8) {
        // A client must be left to wait.
        let alive = self
            .processes
            .iter()
            .filter(|p| p.life != Life::Dead)
            .count();
        let process = &mut self.processes[usize::from(client)];
        if alive < 2 || process.life == Life::Dead || self.healed_at.is_some() {
            return;
        }
        process.life = Life::Dead;
        process.drive_at = u64::MAX;
        let letter = LETTERS[usize::from(client)];
        let closed = self.now.is_multiple_of(2);
        process.haunts = !closed;
        self.note(client, "fault: death", || {
            let how = if closed {
                "its connections are closed"
            } else {
                "nobody notices"
            };
            format!("client {letter} dies, and {how}")
        });
        if closed {
            for lane in (0..).take(self.paused.len()) {
                let listener = self.listener(client, lane);
                self.servers[self.of_lane(lane)].keys.disconnect(&listener);
            }
        }
        let mut shared = self.shared.lock();
        shared.doing.retain(|(who, _), _| *who != client);
        shared.waits.retain(|_, wait| wait.client != client);
        shared.latch_waits.retain(|(who, _), _| *who != client);
        shared.taking.retain(|(who, _), _| *who != client);
    }

    pub fn pause(&mut self, server: u8, time: u64) {
        if self.healed_at.is_some() {
            return;
        }
        // A request that comes later than a minute after it was sent may count twice there (docs/rules.md, S1): two pauses, and a client's
        // half a minute of sending, are shorter.
        let time = if self.config.kind == LockKind::Semaphore {
            time.min(14 * SECOND)
        } else {
            time
        };
        let paused = &mut self.paused[usize::from(server)];
        *paused = (*paused).max(self.now + time);
        let which = self.of_server(server, " ");
        for client in 0..self.config.clients {
            self.processes[usize::from(client)].last_fault = self.now + time;
        }
        self.note(0, "fault: server paused", || {
            format!("the server{which} stands still for {}", span(time))
        });
    }

    /// A client of another library takes a name, if it is free, and gives it back before its lease ends or not.
    pub fn visit(&mut self, name: u8, time: u64) {
        // It is gone when the faults end, as they are.
        let time = time.min(self.config.chaos.saturating_sub(self.now));
        let lease = Duration::from_nanos(time);
        let called = NAMES[usize::from(name)];
        if self.healed_at.is_some() || lease.is_zero() {
            return;
        }
        // A single server of a quorum, so that its vote is missing.
        let at = usize::try_from(time).unwrap_or(0) % self.servers.len();
        if !self.servers[at].keys.visit(called, Some(lease)) {
            return;
        }
        if time.is_multiple_of(2) {
            self.at(self.now + time / 2, Event::Leave(name));
        }
        self.note(0, "another library holds", || {
            format!("another library takes {called} for {}", span(time))
        });
    }

    pub fn visitor_leaves(&mut self, name: u8) {
        let called = NAMES[usize::from(name)];
        let mut left = false;
        for server in &self.servers {
            left |= server.keys.visit(called, None);
        }
        if left {
            self.note(0, "another library leaves", || {
                format!("another library gives {called} back")
            });
        }
    }

    pub fn restart(&mut self, server: u8, with_data: bool) {
        if self.healed_at.is_some() || self.servers[usize::from(server)].is_gone {
            return;
        }
        // Of permits without leases nobody would learn of it.
        let with_data = with_data || self.config.kind == LockKind::Semaphore;
        let which = self.of_server(server, " ");
        self.note(0, "fault: server restarted", || {
            let data = if with_data { "with" } else { "without" };
            format!("the server{which} restarts {data} its data")
        });
        if !with_data {
            for held in self.servers[usize::from(server)].forget(self.now) {
                // A majority has not forgotten, nor may this one vote now (QB6).
                if !self.is_quorum() {
                    self.watch.forgive(&held);
                }
                self.watch.taken(&held);
            }
        }
        for client in 0..self.config.clients {
            if with_data {
                self.cut(client, server, false);
                self.cut(client, server, true);
            } else {
                self.meets_another(client, server);
            }
            if self.is_quorum() {
                let process = &self.processes[usize::from(client)];
                let mut known = self.outbox.known.lock();
                let key = (server, process.letter().to_owned());
                known.entry(key).or_default().restarted = process.reading(self.now);
            }
        }
    }

    /// A client's connections end, and the next find another server there, or the same without its data.
    pub fn meets_another(&mut self, client: u8, server: u8) {
        self.cut(client, server, false);
        self.cut(client, server, true);
        let process = &mut self.processes[usize::from(client)];
        let commands = process.lane(server, false);
        commands.meets_another = true;
        let up = commands.down_until;
        self.at(up, Event::Epoch(client, server));
    }

    /// A client is connected again, and finds that the server has forgotten.
    pub fn epoch(&mut self, client: u8, server: u8) {
        if self.servers[usize::from(server)].is_gone {
            return;
        }
        let process = &mut self.processes[usize::from(client)];
        let later = match process.life {
            Life::Unborn | Life::Dead => return,
            Life::Frozen => self.now + 10 * MS,
            Life::Runs => process.lane(server, false).down_until,
        };
        if later > self.now {
            return self.at(later, Event::Epoch(client, server));
        }
        if !mem::take(&mut process.lane(server, false).meets_another) {
            return;
        }
        let letter = LETTERS[usize::from(client)];
        self.note(client, "seen: epoch", || {
            format!("{letter} finds that the server has forgotten, or is another")
        });
        let inside = self.processes[usize::from(client)].runtime.enter();
        fastrand::seed(crate::dice::mix(self.config.seed, self.now));
        self.servers[usize::from(server)].keys.tell_restart(letter);
        drop(inside);
        self.drive_soon(client);
    }

    /// A server is dead for good, if a majority is left.
    pub fn gone(&mut self, server: u8) {
        if self.healed_at.is_some() || self.living().count() <= self.need() {
            return;
        }
        for client in 0..self.config.clients {
            self.cut(client, server, false);
            self.cut(client, server, true);
            for subscription in [false, true] {
                let process = &mut self.processes[usize::from(client)];
                process.lane(server, subscription).down_until = u64::MAX;
            }
            let letter = LETTERS[usize::from(client)].to_owned();
            let mut known = self.outbox.known.lock();
            known.entry((server, letter)).or_default().down_until = u64::MAX;
        }
        self.servers[usize::from(server)].is_gone = true;
        self.note(0, "fault: server gone for good", || {
            format!("the server {server} is gone for good")
        });
    }

    /// Faults end. Messages still under way arrive soon.
    pub fn heal(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        self.healed_at = Some(self.now);
        {
            let mut shared = self.shared.lock();
            shared.say(|| "all is well from here on".to_owned());
            shared.healed = true;
            shared.dice.quiet = true;
        }
        self.paused.fill(self.now);
        self.keys.lock().lag(false);
        self.end_moves();
        for known in self.outbox.known.lock().values_mut() {
            known.down_until = match known.down_until {
                u64::MAX => u64::MAX, // gone for good
                _ => 0,
            };
        }
        let soon = self.now + 50 * MS;
        let mut early = Vec::new();
        for (&id, message) in &mut self.messages {
            if message.due != u64::MAX && message.due > soon {
                message.due = soon;
                early.push(id);
            }
        }
        for id in early {
            self.at(soon, Event::Message(id));
        }
        for client in 0..self.config.clients {
            let process = &mut self.processes[usize::from(client)];
            let mut down = Vec::new();
            for (server, lanes) in (0..).zip(&mut process.lanes) {
                for lane in lanes.iter_mut() {
                    // Later messages must not overtake those moved above.
                    (lane.last_in, lane.last_out) = (soon, soon);
                }
                if self.config.nodes == 0 && self.servers[usize::from(server)].is_gone {
                    continue;
                }
                let [commands, subscription] = lanes;
                commands.down_until = self.now;
                if mem::replace(&mut subscription.down_until, self.now) > self.now {
                    down.push((server, subscription.generation));
                }
            }
            // Before anything is sent on the connections that are there again.
            for server in 0..u8::try_from(process.lanes.len()).expect("a few") {
                if self.processes[usize::from(client)]
                    .lane(server, false)
                    .meets_another
                {
                    self.epoch(client, server);
                }
            }
            let process = &mut self.processes[usize::from(client)];
            let life = process.life;
            process.healed.notify_waiters();
            if life == Life::Frozen {
                self.at(self.now, Event::Thaw(client));
            }
            for (server, generation) in down {
                self.at(self.now, Event::Listen(client, server, generation));
            }
            self.drive_soon(client);
        }
        self.at(self.now + SECOND / 4, Event::Look);
    }
}
