//! Does what the schedule says, and takes it back.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use leasehold_testkit::{Lane, Proxy, Server, Way};

use super::{
    children::Worker,
    schedule::{Fault, Plan, Target},
    servers::Servers,
};

/// Where faults happen.
pub(crate) struct Field {
    pub(crate) servers: Servers,
    /// `None` while it is killed.
    pub(crate) workers: Vec<Option<Worker>>,
}

impl Field {
    /// Begins a fault. A killed worker is handed out, to be read to its end.
    pub(crate) fn begin(&mut self, plan: &Plan) -> io::Result<Option<Worker>> {
        match plan.target {
            Target::Server(at) => self.begin_on_server(at, plan)?,
            Target::Group => self.servers.group().map_or(Ok(()), |it| it.begin(plan))?,
            Target::Pair(pair) => self
                .servers
                .nodes()
                .map_or(Ok(()), |it| it.begin(pair, plan))?,
            Target::Slots => self
                .servers
                .nodes()
                .map_or(Ok(()), |it| it.begin_move(plan))?,
            Target::Way(pair) => {
                // The replica has the same way: nothing is taken out of what its primary tells it.
                let draw = plan.draw & !64;
                let plan = &Plan {
                    draw,
                    ..plan.clone()
                };
                self.on_ways(pair, |proxy| begin_on_network(proxy, plan));
            }
            Target::Network(index) => self.begin_on_networks(index, plan)?,
            Target::Process(index) if plan.fault == Fault::KillWorker => {
                self.servers.has_process(index, None);
                let killed = self.workers[index].take();
                return Ok(killed.map(|mut worker| {
                    worker.kill();
                    worker
                }));
            }
            Target::Process(index) => {
                if let Some(worker) = &self.workers[index] {
                    worker.stop();
                }
                if plan.fault == Fault::WakeUpsAfterStop {
                    for proxy in self.servers.proxies(index) {
                        proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient));
                    }
                }
            }
        }
        Ok(None)
    }

    fn begin_on_networks(&mut self, index: usize, plan: &Plan) -> io::Result<()> {
        let pid = self.workers[index].as_ref().map(Worker::pid);
        if let Some(group) = self.servers.group() {
            return pid.map_or(Ok(()), |pid| group.cut(pid, plan.fault));
        }
        let proxies = self.servers.proxies(index);
        for at in plan.ways_to(proxies.len()) {
            begin_on_network(&proxies[at], plan);
        }
        Ok(())
    }

    /// Acts on the proxies that lead from all workers to both nodes of a pair.
    fn on_ways(&mut self, pair: usize, act: impl Fn(&Proxy)) {
        if let Some(nodes) = self.servers.nodes() {
            nodes.proxies(pair).for_each(act);
        }
    }

    fn begin_on_server(&mut self, at: usize, plan: &Plan) -> io::Result<()> {
        let millis = plan.lasts.as_millis();
        // The primary may be dead.
        let Some(addr) = self.servers.at(at).map(Server::addr) else {
            return Ok(());
        };
        match plan.fault {
            Fault::StopServer | Fault::RestartServer | Fault::RestartEmpty => {
                self.servers.begin(at, plan.fault);
            }
            Fault::PauseClients => drop(say(addr, &format!("CLIENT PAUSE {millis} ALL"))?),
            Fault::PauseWrites => drop(say(addr, &format!("CLIENT PAUSE {millis} WRITE"))?),
            // The answer comes after the sleep.
            Fault::DebugSleep => shout(addr, &format!("DEBUG SLEEP {}", plan.lasts.as_secs_f64()))?,
            Fault::FlushScripts => drop(say(addr, "SCRIPT FLUSH")?),
            Fault::KillNormal => drop(say(addr, "CLIENT KILL TYPE normal SKIPME yes")?),
            Fault::KillPubsub => drop(say(addr, "CLIENT KILL TYPE pubsub SKIPME yes")?),
            other => unreachable!("{} is no fault of the server", other.name()),
        }
        Ok(())
    }

    /// The second stage of a fault that has one: all but the wake-ups goes on. More than once for each fault.
    pub(crate) fn second_stage(&mut self, plan: &Plan) {
        match (plan.target, plan.fault) {
            (Target::Network(index), Fault::WakeUpsLast) => {
                let proxies = self.servers.proxies(index);
                for proxy in proxies {
                    proxy.heal_lane(Lane::Commands);
                }
            }
            (Target::Way(pair), Fault::WakeUpsLast) => {
                self.on_ways(pair, |proxy| proxy.heal_lane(Lane::Commands));
            }
            (Target::Process(index), Fault::WakeUpsAfterStop) => self.goes_on(index),
            (Target::Pair(pair), _) => {
                if let Some(nodes) = self.servers.nodes() {
                    nodes.second_stage(pair, plan);
                }
            }
            (Target::Group, _) => {
                if let Some(group) = self.servers.group() {
                    group.second_stage(plan);
                }
            }
            _ => {}
        }
    }

    fn goes_on(&self, index: usize) {
        if let Some(worker) = &self.workers[index] {
            worker.go_on();
        }
    }

    /// Ends a fault; that of a killed worker ends when the caller has started another.
    pub(crate) fn end(&mut self, plan: &Plan) {
        match (plan.target, plan.fault) {
            (Target::Server(at), fault) => self.servers.end(at, fault),
            (Target::Group, _) => {
                if let Some(group) = self.servers.group() {
                    group.end(plan);
                }
            }
            (Target::Pair(pair), _) => {
                if let Some(nodes) = self.servers.nodes() {
                    nodes.end(pair, plan);
                }
            }
            (Target::Slots, _) => {
                if let Some(nodes) = self.servers.nodes() {
                    nodes.end_move();
                }
            }
            (Target::Way(pair), _) => self.on_ways(pair, Proxy::heal),
            (Target::Network(index), _) => self.heal(index),
            (Target::Process(index), fault) => {
                self.goes_on(index);
                if fault == Fault::WakeUpsAfterStop {
                    for proxy in self.servers.proxies(index) {
                        proxy.heal_lane(Lane::Subscriptions);
                    }
                }
            }
        }
    }

    fn heal(&self, index: usize) {
        self.servers.proxies(index).iter().for_each(|it| it.heal());
    }

    /// No faults any more.
    pub(crate) fn heal_all(&mut self) {
        for index in 0..self.workers.len() {
            self.heal(index);
        }
        self.servers.settle();
    }
}

pub(crate) fn begin_on_network(proxy: &Proxy, plan: &Plan) {
    let ways = [None, Some(Way::ToServer), Some(Way::ToClient)];
    let way = ways[plan.draw as usize % ways.len()];
    // Any command, or a step of the lock.
    let needle: &[u8] = if plan.draw & 64 == 0 { b"EVALSHA" } else { b"" };
    let times = 1 + plan.draw as usize / 128 % 3;
    match plan.fault {
        Fault::Cut => proxy.cut(),
        Fault::CutSubscriptions => proxy.cut_lane(Lane::Subscriptions),
        Fault::CutCommands => proxy.cut_lane(Lane::Commands),
        Fault::StallRequests => proxy.stall(Some(Way::ToServer)),
        Fault::StallReplies => proxy.stall(Some(Way::ToClient)),
        Fault::StallBoth => proxy.stall(None),
        Fault::StallSubscriptions => proxy.stall_lane(Lane::Subscriptions, None),
        Fault::StallWakeUps => proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient)),
        Fault::WakeUpsLast => {
            proxy.stall_lane(Lane::Commands, None);
            proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient));
        }
        Fault::StallCommandReplies => proxy.stall_lane(Lane::Commands, Some(Way::ToClient)),
        Fault::StallCommandRequests => proxy.stall_lane(Lane::Commands, Some(Way::ToServer)),
        Fault::BlackHole => proxy.black_hole(way),
        Fault::LoseRequests => proxy.lose_requests(needle, times),
        Fault::LoseReplies => proxy.lose_replies(needle, times),
        Fault::CutReply => proxy.cut_reply_after(u64::from(plan.draw % 64)),
        Fault::Delay => proxy.delay(Duration::from_millis(u64::from(5 + plan.draw % 150))),
        Fault::Refuse => {
            proxy.refuse(true);
            proxy.cut();
        }
        other => unreachable!("{} is no fault of the network", other.name()),
    }
}

/// Sends one command on a connection of its own, past all proxies.
fn shout(addr: SocketAddr, command: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.write_all(format!("{command}\r\n").as_bytes())
}

/// As [`shout`], and waits for the first line of the reply.
pub(crate) fn say(addr: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    Ok(reply)
}
