//! The network: how each request, reply and wake-up travels, and its faults.

use std::{mem, sync::Arc};

use leasehold::{
    LockKind,
    sim::{Hint, Kind, NoAnswer, Request},
};
use parking_lot::Mutex;

use crate::{
    config::{MS, SECOND},
    dice::Point,
    invariants::{answer, latch, permits, release, s2},
    keys::Trouble,
    process::{Lane, Life, Process},
    shared::{LETTERS, NAMES, number_of},
    wire::{Asked, Freight, Message, in_words},
    world::{Event, World},
};

impl Process {
    pub fn lane(&mut self, server: u8, subscription: bool) -> &mut Lane {
        &mut self.lanes[usize::from(server)][usize::from(subscription)]
    }
}

impl World {
    /// A request leaves its client.
    pub fn send(&mut self, server: u8, request: Request) {
        let client = number_of(&LETTERS, &request.client);
        let kind = request.kind;
        let about = request.about.iter();
        let about = about
            .map(|(name, lease)| (number_of(&NAMES, name), *lease))
            .collect::<Vec<_>>();
        let subscription = kind.is_subscription();
        let now = self.now;
        let number = self.number();
        let lane = *self.processes[usize::from(client)].lane(server, subscription);
        let mut shared = self.shared.lock();
        let to = self.of_server(server, " to ");
        shared.say(|| {
            let letter = LETTERS[usize::from(client)];
            format!(
                "client {letter}  sends [{number}]{to} {}",
                in_words(&request)
            )
        });
        shared.count(label(kind));
        drop(shared);
        // A quorum's servers are asked as often each.
        if server == 0 || self.config.nodes > 0 {
            self.watch
                .sent(client, now, &mut self.processes, &self.shared);
        }
        // A request to keep an entry says nothing about a grant.
        if !self.watch.granted.is_empty() && kind != Kind::Keep {
            let leases = about
                .iter()
                .map(|(_, lease)| *lease)
                .chain(next_of(&request));
            for lease in leases {
                self.watch.granted.remove(&(client, lease));
            }
        }
        let asked = Arc::new(Asked {
            number,
            sent: now,
            client,
            server,
            request: Mutex::new(request),
            kind,
            about,
        });
        match kind {
            Kind::Listen => {
                let wanted = (client, server, asked.about[0]);
                self.wanted.insert(wanted, Arc::clone(&asked));
            }
            Kind::Unlisten => {
                self.wanted.remove(&(client, server, asked.about[0]));
            }
            _ => {}
        }
        if lane.down_until > now {
            // Subscriptions are made again when the connection is back; commands are refused meanwhile.
            if !subscription {
                asked.request.lock().fail(NoAnswer::NotSent);
                self.shared.lock().last_refusal.insert(client, now);
                self.note(client, "fault: refused while cut", || {
                    format!("[{number}] is not sent")
                });
                self.drive_soon(client);
            }
            return;
        }
        let faults = self.config.faults.clone();
        // Only a command: a connection that loses a subscription is a connection that is cut.
        if !subscription
            && self
                .chance(Point::Request, client, faults.lost_request)
                .is_some()
        {
            self.note(client, "fault: request lost", || {
                format!("[{number}] is lost")
            });
            return;
        }
        let due = self.delay(
            Point::Request,
            client,
            faults.slow_request,
            "request",
            number,
        );
        let freight = Freight::Request {
            request: asked,
            stray: false,
        };
        self.dispatch(client, freight, due);
        self.react(client, server, "sends");
    }

    /// Which of a quorum, in a trace.
    pub fn of_server(&self, server: u8, before: &str) -> String {
        if self.is_quorum() || self.config.nodes > 0 {
            format!("{before}{server}")
        } else {
            String::new()
        }
    }

    pub fn chance(&mut self, point: Point, who: u8, probability: f64) -> Option<fastrand::Rng> {
        self.shared.lock().dice.chance(point, who, probability)
    }

    /// Something happens to a client: counted, told, and remembered.
    pub fn note(&mut self, client: u8, what: &'static str, line: impl FnOnce() -> String) {
        self.processes[usize::from(client)].last_fault = self.now;
        let mut shared = self.shared.lock();
        shared.count(what);
        shared.say(|| format!("          {}", line()));
    }

    /// When a message arrives, if its connection lets it.
    fn delay(
        &mut self,
        point: Point,
        client: u8,
        slow: f64,
        what: &'static str,
        number: u64,
    ) -> u64 {
        let jitter = {
            let mut shared = self.shared.lock();
            shared
                .dice
                .harmless(point, client)
                .u64(0..=self.config.latency)
        };
        let usual = self.now + self.config.latency / 2 + jitter;
        let Some(mut r) = self.chance(point, client, slow) else {
            return usual;
        };
        let late = self.config.span(&mut r);
        let label = match what {
            "request" => "fault: request slow",
            "reply" => "fault: reply slow",
            _ => "fault: wake-up slow",
        };
        self.note(client, label, || {
            format!("the {what} [{number}] takes {}", crate::shared::span(late))
        });
        usual + late
    }

    /// Puts a message on its way. A connection keeps its order.
    pub fn dispatch(&mut self, client: u8, freight: Freight, due: u64) {
        let id = self.number();
        let mut message = Message {
            client,
            freight,
            due,
            generation: 0,
        };
        let stray = matches!(message.freight, Freight::Request { stray: true, .. });
        if !stray {
            let (to_client, subscription) = (message.is_to_client(), message.is_subscription());
            let lane = self.processes[usize::from(client)].lane(message.server(), subscription);
            let last = if to_client {
                &mut lane.last_in
            } else {
                &mut lane.last_out
            };
            message.due = due.max(*last + 1);
            *last = message.due;
            message.generation = lane.generation;
        }
        let due = message.due;
        self.messages.insert(id, message);
        self.at(due, Event::Message(id));
    }

    /// A message arrives.
    pub fn arrive(&mut self, id: u64) {
        let Some(server) = self.messages.get(&id).map(Message::server) else {
            return;
        };
        let (at, of_lane) = (usize::from(server), self.of_lane(server));
        let Some(message) = self.messages.get_mut(&id) else {
            return;
        };
        let client = message.client;
        if self.servers[of_lane].is_gone {
            self.messages.remove(&id);
            return;
        }
        if !message.is_to_client() && self.paused[at] > self.now {
            // In the order of sending, also if it stood still more than once: a server reads each connection in its order.
            message.due = self.paused[at] + id % MS;
            let due = message.due;
            self.at(due, Event::Message(id));
            return;
        }
        if message.is_to_client() {
            match self.processes[usize::from(client)].life {
                // It stays where it is until the client runs again: see `thaw`.
                Life::Frozen => {
                    message.due = u64::MAX;
                    return;
                }
                Life::Dead | Life::Unborn => {
                    self.messages.remove(&id);
                    return;
                }
                Life::Runs => {}
            }
        }
        if let Some(due) = self.is_ahead_of(id) {
            self.messages.get_mut(&id).expect("looked at above").due = due + 1;
            self.at(due + 1, Event::Message(id));
            return;
        }
        let Some(message) = self.messages.remove(&id) else {
            return;
        };
        match message.freight {
            // Of a semaphore without leases the server knows its answers for a minute: a later copy counts anew (docs/rules.md).
            Freight::Request {
                request,
                stray: true,
            } if self.config.kind == LockKind::Semaphore
                && self.now > request.sent + 50 * SECOND => {}
            Freight::Request { request, stray } => self.execute(&request, stray),
            Freight::Reply { request, answer } => self.reply(&request, answer),
            Freight::Hint { hint, server } => self.hint(client, server, hint),
        }
    }

    /// When a message arrives that was sent earlier on the same connection, and waits for a server that stands still: a
    /// connection keeps its order.
    fn is_ahead_of(&self, id: u64) -> Option<u64> {
        let this = self.messages.get(&id)?;
        let is_stray = |m: &Message| matches!(m.freight, Freight::Request { stray: true, .. });
        if is_stray(this) {
            return None;
        }
        let way = |m: &Message| {
            let ends = (m.client, m.server(), m.is_to_client(), m.is_subscription());
            (ends, m.generation)
        };
        let earlier = self.messages.range(..id).map(|(_, message)| message);
        let earlier = earlier.filter(|m| m.due != u64::MAX && !is_stray(m) && way(m) == way(this));
        earlier.map(|m| m.due).max()
    }

    /// The server carries a request out.
    fn execute(&mut self, asked: &Arc<Asked>, stray: bool) {
        let (client, number) = (asked.client, asked.number);
        let before = s2::look(self, asked);
        let count = latch::before(self, asked);
        let free = permits::before(self, asked);
        self.trouble(asked, true);
        let at = self.of_lane(asked.server);
        let (answer, hints) = asked.request.lock().execute(&self.servers[at].keys);
        self.trouble(asked, false);
        let mut seen = mem::take(&mut self.seen);
        seen.transition(self, asked, &answer);
        self.seen = seen;
        {
            let mut shared = self.shared.lock();
            let copy = if stray { ", a stray copy" } else { "" };
            let which = self.of_server(asked.server, " ");
            shared.say(|| {
                format!(
                    "server{which}    [{number}] from {}{copy}: {:?}",
                    LETTERS[usize::from(client)],
                    answer.text
                )
            });
            if stray {
                shared.count("seen: stray copy carried out");
            } else if !asked.request.lock().is_awaited() && asked.kind != Kind::Unlisten {
                shared.count("seen: carried out after its sender gave up");
            }
        }
        self.watch.executed(asked, &answer, &self.shared);
        // A server without its data has no tombstones either.
        if self.now - asked.sent > self.config.tombstone()
            || asked.sent < self.servers[at].forgot_at
        {
            let next = next_of(&asked.request.lock());
            let leases = asked.about.iter().map(|(_, lease)| *lease).chain(next);
            self.watch
                .outlived
                .extend(leases.map(|lease| (client, lease)));
        }
        if stray && asked.kind == Kind::Acquire {
            self.watch.brings_back(asked, &before);
        }
        release::came_late(self, asked, stray);
        answer::executed(self, asked, &format!("{:?}", answer.text));
        latch::executed(self, asked, count);
        permits::executed(self, asked, free);
        s2::check(self, asked, before);
        for hint in hints {
            self.send_hint(asked.server, hint);
        }
        if stray && asked.kind == Kind::Acquire {
            // The answer to a copy reaches no client: a grant in it is heard of when the waiter asks again.
            let leases = asked.about.iter().map(|(_, lease)| (client, *lease));
            self.watch.unheard.extend(leases);
        }
        if stray || asked.kind == Kind::Unlisten {
            return;
        }
        let faults = self.config.faults.clone();
        let mut lost = faults.lost_reply;
        if asked.kind == Kind::Release {
            lost = lost.max(faults.lost_release);
        }
        if self.chance(Point::Reply, client, lost).is_some() {
            self.note(client, "fault: reply lost", || {
                format!("the reply to [{number}] is lost")
            });
            self.maybe_double(asked);
            return;
        }
        let due = self.delay(Point::Reply, client, faults.slow_reply, "reply", number);
        let request = Arc::clone(asked);
        self.dispatch(client, Freight::Reply { request, answer }, due);
        if self.config.may_duplicate {
            self.maybe_double(asked);
        }
    }

    /// Draws what the server refuses while it carries this request out.
    fn trouble(&mut self, asked: &Asked, begins: bool) {
        if !self.config.trouble {
            return;
        }
        let chance = begins
            .then(|| self.chance(Point::Double, asked.client, 0.05))
            .flatten();
        let is_full =
            (self.full_from..self.full_until).contains(&self.now) && self.healed_at.is_none();
        let trouble = match chance {
            Some(mut r) if !is_full && !asked.kind.is_subscription() => {
                Trouble::Refuses(r.u32(0..12))
            }
            _ if begins && is_full => Trouble::Full,
            _ => Trouble::None,
        };
        if trouble != Trouble::None {
            self.note(asked.client, "fault: command refused", || {
                format!("the server: {trouble:?}")
            });
        }
        self.keys.lock().set_trouble(trouble);
    }

    /// A copy may be carried out at any time: of a request without an answer, and of any request in a world that says so.
    pub fn maybe_double(&mut self, asked: &Arc<Asked>) {
        let (client, number) = (asked.client, asked.number);
        if asked.kind.is_subscription() {
            return;
        }
        let probability = self.config.faults.double;
        if let Some(mut r) = self.chance(Point::Double, client, probability) {
            let due = self.now + self.config.lateness(&mut r);
            self.note(client, "fault: doubled", || {
                format!("a copy of [{number}] is under way")
            });
            let request = Arc::clone(asked);
            self.dispatch(
                client,
                Freight::Request {
                    request,
                    stray: true,
                },
                due,
            );
        }
    }

    pub fn reply(&mut self, asked: &Arc<Asked>, answer: leasehold::sim::Answer) {
        let client = asked.client;
        let now = self.now;
        {
            let mut shared = self.shared.lock();
            if asked.request.lock().is_awaited() {
                let names = asked.about.iter().map(|(name, _)| ((client, *name), now));
                shared.last_answer.extend(names);
            }
            let letter = LETTERS[usize::from(client)];
            shared.say(|| {
                format!(
                    "client {letter}  hears of [{}]: {:?}",
                    asked.number, answer.text
                )
            });
            if !asked.request.lock().is_awaited() {
                shared.count("seen: answer after its asker gave up");
            }
        }
        if asked.kind == Kind::Listen && format!("{:?}", answer.text).starts_with("Err(") {
            // Refused, and so not asked for again after a gap.
            let wanted = (client, asked.server, asked.about[0]);
            self.wanted.remove(&wanted);
        }
        let held = self.watch.heard(asked, &answer);
        answer.deliver();
        self.drive_soon(client);
        self.react(client, asked.server, if held { "in line" } else { "hears" });
    }

    pub fn send_hint(&mut self, server: u8, hint: Hint) {
        let client = number_of(&LETTERS, &hint.client);
        let lane = *self.processes[usize::from(client)].lane(server, true);
        let faults = self.config.faults.clone();
        // An end of a subscription comes on a connection as all else does: it is lost only with that.
        let lost = !hint.ends && self.chance(Point::Hint, client, faults.lost_hint).is_some();
        if lost || lane.down_until > self.now {
            if let Some(lease) = hint.granted {
                self.watch.unheard.insert((client, lease));
            }
            self.note(client, "fault: wake-up lost", || {
                format!("the wake-up for {} is lost", LETTERS[usize::from(client)])
            });
            return;
        }
        let number = hint.granted.unwrap_or(0);
        let due = self.delay(Point::Hint, client, faults.slow_hint, "wake-up", number);
        self.dispatch(client, Freight::Hint { hint, server }, due);
    }

    fn hint(&mut self, client: u8, server: u8, hint: Hint) {
        {
            let mut shared = self.shared.lock();
            let letter = LETTERS[usize::from(client)];
            shared.say(|| match hint.granted {
                Some(lease) => format!(
                    "client {letter}  is woken: {} was given to #{lease}",
                    hint.name
                ),
                None if hint.ends => {
                    format!("client {letter}  hears no more of {} there", hint.name)
                }
                None => format!("client {letter}  is woken: {} may be free", hint.name),
            });
            if let Some(lease) = hint.granted {
                let held = self.servers[self.of_lane(server)].holders(&hint.name);
                let still = held.iter().any(|held| held.lease == lease);
                shared.count(if still {
                    "seen: grant heard"
                } else {
                    "seen: grant heard late"
                });
            }
        }
        if hint.ends {
            // The connection has forgotten it, and does not ask for it again after a gap.
            let name = number_of(&NAMES, &hint.name);
            self.wanted
                .retain(|(who, at, (about, _)), _| (*who, *at, *about) != (client, server, name));
        }
        self.watch.woken(client, &hint, self.now);
        self.hear(client, server, hint);
    }

    /// The client reads it.
    pub fn hear(&mut self, client: u8, server: u8, hint: Hint) {
        let process = &self.processes[usize::from(client)];
        let inside = process.runtime.enter();
        fastrand::seed(crate::dice::mix(self.config.seed, self.now));
        hint.deliver();
        drop(inside);
        self.drive_soon(client);
        self.react(client, server, "woken");
    }
}

/// The lease id under which the client of a release goes on. The hooks do not name it, its words do.
fn next_of(request: &Request) -> Option<u64> {
    let words = format!("{:?}", request.what());
    let (_, next) = words.split_once("next: Some(")?;
    let (_, lease) = next.split_once("LeaseId(")?;
    lease.split_once(')')?.0.parse().ok()
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Acquire => "sent: acquire",
        Kind::Release => "sent: release",
        Kind::Extend => "sent: extend",
        Kind::Renew => "sent: renew",
        Kind::Keep => "sent: keep",
        Kind::Count => "sent: count",
        Kind::Inspect => "sent: inspect",
        Kind::ForceUnlock => "sent: force_unlock",
        Kind::Listen => "sent: listen",
        Kind::Unlisten => "sent: unlisten",
        Kind::Permits => "sent: permits",
        Kind::Write | Kind::Read => "sent: data under a fence",
        Kind::Downgrade => "sent: downgrade",
        Kind::Table => "sent: slots",
        Kind::Confirm => "sent: confirm",
    }
}
