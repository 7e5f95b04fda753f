//! A TCP proxy that does to a connection what networks do.
//!
//! ```text
//! client ── take ─→ queue ── deliver ─→ server        one task per connection,
//!        ←─ deliver ── queue ←─ take ──               two queues in it
//! ```
//!
//! Faults are decided when bytes are delivered, while the list of faults is locked: once a control
//! has returned, no byte passes that it forbids.
//!
//! The proxy runs on a thread and a runtime of its own, so it works the same for a blocking test, a
//! current-thread runtime and a paused clock.

mod carry;
mod faults;
mod links;
mod pending;
mod requests;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use self::carry::run;
use self::faults::{Faults, Part};
use self::links::{Link, Shared};
use crate::wait::wait_until;

/// How long a control waits for the proxy's own thread to have done what it was told.
const OBEY_DEADLINE: Duration = Duration::from_secs(10);

/// A direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Some of the connections through the proxy, by their use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Connections on which the client has subscribed to a channel.
    Subscriptions,
    /// All others.
    Commands,
}

impl Lane {
    fn has(self, link: &Link) -> bool {
        link.subscribed.load(Ordering::SeqCst) == (self == Lane::Subscriptions)
    }
}

/// A TCP proxy on a free loopback port, in front of one server.
///
/// Faults add up until [`heal`](Proxy::heal) takes all of them back. Dropping the proxy closes
/// everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    handed: mpsc::UnboundedSender<std::net::TcpStream>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, which need not be up yet.
    pub fn start(upstream: SocketAddr) -> Proxy {
        let listener =
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
        listener
            .set_nonblocking(true)
            .expect("a socket that does not block");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared::new(upstream));
        let (stop, stopped) = oneshot::channel();
        let (handed, taken) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name("leasehold-testkit-proxy".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || run(listener, taken, &shared, stopped)
            })
            .expect("a thread for the proxy");
        Proxy {
            addr,
            shared,
            handed,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:PORT/`
    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// Carries a connection that the caller has accepted, as one that came to [`addr`](Proxy::addr): so several proxies can stand
    /// behind one address.
    pub fn carry(&self, client: std::net::TcpStream) {
        // It fails only for a proxy whose thread has ended; the connection then ends, too.
        let _ = self.handed.send(client);
    }

    /// Closes all connections on both sides, with a reset, and returns once they are closed. New
    /// ones are accepted again.
    pub fn cut(&self) {
        let closing = self.shared.reset(|_| true);
        self.shared.wait_until_closed(&closing);
    }

    /// [`cut`](Proxy::cut) for the connections of one lane.
    pub fn cut_lane(&self, lane: Lane) {
        let closing = self.shared.reset(|link| lane.has(link));
        self.shared.wait_until_closed(&closing);
    }

    /// Accepts new connections only to close them at once. Open ones stay.
    pub fn refuse(&self, on: bool) {
        self.shared.faults.send_modify(|faults| faults.refuse = on);
    }

    /// Swallows all bytes sent `way`, or both ways, from now on: the network between is gone, and
    /// neither end is told. Connections stay open, their ends hear nothing of each other's closing, and
    /// new connections are accepted and swallowed too.
    ///
    /// A connection that has lost something this way is reset by [`heal`](Proxy::heal), because TCP
    /// never goes on after a gap. For a network that only pauses, see [`stall`](Proxy::stall).
    pub fn black_hole(&self, way: Option<Way>) {
        self.shared
            .faults
            .send_modify(|faults| faults.set(way, |flow| flow.swallow = true));
    }

    /// Carries nothing more on the connections that are open now, or on those of one lane, and closes none: as a load balancer that has
    /// lost track of them. They take what is sent. New connections work. [`heal`](Proxy::heal) resets those that have lost something.
    pub fn hang(&self, lane: Option<Lane>) {
        // Under the lock, so that none of them says another word.
        self.shared.faults.send_modify(|_| {
            let links = self.shared.links();
            for link in links.values() {
                if lane.is_none_or(|lane| lane.has(link)) {
                    link.hung.store(true, Ordering::SeqCst);
                }
            }
        });
    }

    /// Holds back what is sent `way`, or both ways, until [`heal`](Proxy::heal) lets it go on, in
    /// order. Nothing is lost.
    pub fn stall(&self, way: Option<Way>) {
        self.shared
            .faults
            .send_modify(|faults| faults.set(way, |flow| flow.hold = true));
    }

    /// [`stall`](Proxy::stall) for the connections of one lane, whichever they are by then: a
    /// connection changes its lane with its first `SUBSCRIBE` or `SSUBSCRIBE`.
    pub fn stall_lane(&self, lane: Lane, way: Option<Way>) {
        self.shared
            .faults
            .send_modify(|faults| faults.held_lanes.push((lane, way)));
    }

    /// Takes back each [`stall_lane`](Proxy::stall_lane) of this lane.
    pub fn heal_lane(&self, lane: Lane) {
        self.shared
            .faults
            .send_modify(|faults| faults.held_lanes.retain(|(held, _)| *held != lane));
    }

    /// Makes everything arrive `delay` later, each way, in order. Bytes on their way do not hold up
    /// those behind them.
    pub fn delay(&self, delay: Duration) {
        self.shared
            .faults
            .send_modify(|faults| faults.delay = delay);
    }

    /// Lets `bytes` more bytes through to clients, all connections together, then closes the
    /// connection whose reply crossed that line. Happens once.
    ///
    /// With 0, the next reply closes its connection and nothing of it arrives.
    pub fn cut_reply_after(&self, bytes: u64) {
        self.shared
            .faults
            .send_modify(|faults| faults.cut_reply_after = Some(bytes));
    }

    /// Lets the server run the next `times` commands that contain `needle`, and loses their
    /// replies: once the server is done with the command, its connection is closed without another
    /// byte to the client. An empty needle is in every command.
    ///
    /// When the client sees the connection closed, the command has run. Commands pipelined
    /// behind it on that connection never reach the server. `needle` is compared as bytes, `EVALSHA` is
    /// not `evalsha`.
    pub fn lose_replies(&self, needle: &[u8], times: usize) {
        self.shared
            .faults
            .send_modify(|faults| faults.arm(needle, times, Part::Reply));
    }

    /// Closes the connection in place of the next `times` commands that contain `needle`: the
    /// server runs what came before, but not those.
    pub fn lose_requests(&self, needle: &[u8], times: usize) {
        self.shared
            .faults
            .send_modify(|faults| faults.arm(needle, times, Part::Request));
    }

    /// How often [`cut_reply_after`](Proxy::cut_reply_after), [`lose_replies`](Proxy::lose_replies)
    /// and [`lose_requests`](Proxy::lose_requests) have struck.
    pub fn struck(&self) -> u64 {
        self.shared.read(&self.shared.struck)
    }

    /// Takes back every fault. Connections that lost bytes in a black hole are reset, and closed
    /// when this returns.
    pub fn heal(&self) {
        let mut closing = Vec::new();
        self.shared.faults.send_modify(|faults| {
            // Under the lock, so that none of them says another word.
            closing = self.shared.reset(|link| link.gap.load(Ordering::SeqCst));
            *faults = Faults::default();
        });
        self.shared.wait_until_closed(&closing);
    }

    /// How many connections are open, on either side.
    pub fn connections(&self) -> usize {
        self.shared.links().len()
    }

    /// How many connections were accepted since the start, the refused ones not counted.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Blocks until exactly `count` connections are open.
    ///
    /// On a current-thread runtime, where the test itself must open them, wait for
    /// [`connections`](Proxy::connections) with [`wait_until_async`](crate::wait_until_async).
    ///
    /// # Panics
    /// When `timeout` has passed first.
    #[track_caller]
    pub fn wait_for_connections(&self, count: usize, timeout: Duration) {
        wait_until(timeout, &format!("{count} connections are open"), || {
            self.connections() == count
        });
    }

    /// How many bytes were delivered to the server.
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.read(&self.shared.to_server)
    }

    /// How many bytes were delivered to clients.
    pub fn bytes_to_client(&self) -> u64 {
        self.shared.read(&self.shared.to_client)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has said on stderr why it panicked, and we may be panicking already.
            let _ = thread.join();
        }
    }
}
