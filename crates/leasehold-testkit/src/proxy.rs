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

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{SetOnce, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::wait::wait_until;

/// How long a control waits for the proxy's own thread to have done what it was told.
const OBEY_DEADLINE: Duration = Duration::from_secs(10);

/// A direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// What the client sends.
    ToServer,
    /// What the server answers.
    ToClient,
}

/// Some of the connections through the proxy, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Those on which the client has subscribed to a channel.
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
        let thread = std::thread::Builder::new()
            .name("leasehold-testkit-proxy".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || run(listener, &shared, stopped)
            })
            .expect("a thread for the proxy");
        Proxy {
            addr,
            shared,
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

    /// Swallows what is sent `way`, or both ways, from now on: the network between is gone, and
    /// nobody is told. Connections stay open, their ends hear nothing of each other's closing, and
    /// new connections are accepted and swallowed too.
    ///
    /// A connection that has lost something this way is reset by [`heal`](Proxy::heal), because TCP
    /// never goes on after a gap. For a network that only pauses, see [`stall`](Proxy::stall).
    pub fn black_hole(&self, way: Option<Way>) {
        self.shared
            .faults
            .send_modify(|faults| faults.set(way, |flow| flow.swallow = true));
    }

    /// Holds back what is sent `way`, or both ways, until [`heal`](Proxy::heal) lets it go on, in
    /// order. Nothing is lost.
    pub fn stall(&self, way: Option<Way>) {
        self.shared
            .faults
            .send_modify(|faults| faults.set(way, |flow| flow.hold = true));
    }

    /// [`stall`](Proxy::stall) for the connections of one lane, whichever they are by then: a
    /// connection changes its lane with its first `SUBSCRIBE`.
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
    /// When the client sees the connection closed, the command has run. What was pipelined behind
    /// it on that connection never reaches the server. `needle` is compared as bytes, `EVALSHA` is
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

/// What the network does at the moment.
#[derive(Debug, Default)]
struct Faults {
    refuse: bool,
    to_server: Flow,
    to_client: Flow,
    held_lanes: Vec<(Lane, Option<Way>)>,
    delay: Duration,
    cut_reply_after: Option<u64>,
    traps: Vec<Trap>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Flow {
    swallow: bool,
    hold: bool,
}

/// Loses one part of the commands that contain a needle.
#[derive(Debug)]
struct Trap {
    needle: Vec<u8>,
    times: usize,
    part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Request,
    Reply,
}

/// What may happen to the parcel whose turn it is.
enum Passage {
    Open,
    Swallowed,
    HeldUntil(Option<Instant>),
}

impl Faults {
    fn set(&mut self, way: Option<Way>, change: impl Fn(&mut Flow)) {
        if way != Some(Way::ToClient) {
            change(&mut self.to_server);
        }
        if way != Some(Way::ToServer) {
            change(&mut self.to_client);
        }
    }

    fn flow(&self, way: Way) -> Flow {
        match way {
            Way::ToServer => self.to_server,
            Way::ToClient => self.to_client,
        }
    }

    fn arm(&mut self, needle: &[u8], times: usize, part: Part) {
        self.traps.push(Trap {
            needle: needle.to_vec(),
            times,
            part,
        });
    }

    /// The part to lose of `command`, if a trap waits for it. The trap counts it.
    fn spring(&mut self, command: &[u8]) -> Option<Part> {
        let trap = self
            .traps
            .iter_mut()
            .find(|trap| trap.times > 0 && contains(command, &trap.needle))?;
        trap.times -= 1;
        Some(trap.part)
    }

    fn passage(&self, way: Way, arrived: Instant, link: &Link) -> Passage {
        let flow = self.flow(way);
        let due = arrived + self.delay;
        let lane_held = |&(lane, held): &(Lane, Option<Way>)| {
            held.is_none_or(|held| held == way) && lane.has(link)
        };
        if flow.swallow {
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

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    needle.is_empty()
        || haystack
            .windows(needle.len())
            .any(|window| window == needle)
}

/// What the controls and the proxy's thread both see.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    faults: watch::Sender<Faults>,
    /// Open connections by their number. Locked after `faults`, if both.
    links: Mutex<HashMap<u64, Arc<Link>>>,
    accepted: AtomicU64,
    struck: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Shared {
    fn new(upstream: SocketAddr) -> Shared {
        Shared {
            upstream,
            faults: watch::Sender::new(Faults::default()),
            links: Mutex::default(),
            accepted: AtomicU64::new(0),
            struck: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
        }
    }

    fn links(&self) -> MutexGuard<'_, HashMap<u64, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a counter says once the delivery under way has counted itself. A client can see a byte
    /// before that.
    fn read(&self, counter: &AtomicU64) -> u64 {
        let _deliveries = self.faults.borrow();
        counter.load(Ordering::SeqCst)
    }

    /// Tells the connections for which `matches` holds to reset, and says which these are.
    fn reset(&self, matches: impl Fn(&Link) -> bool) -> Vec<u64> {
        let links = self.links();
        let closing = links.iter().filter(|(_, link)| matches(link));
        closing
            .map(|(id, link)| {
                link.finish(End::Reset);
                *id
            })
            .collect()
    }

    fn wait_until_closed(&self, closing: &[u64]) {
        wait_until(
            OBEY_DEADLINE,
            "the proxy has closed the connections",
            || {
                let links = self.links();
                !closing.iter().any(|id| links.contains_key(id))
            },
        );
    }
}

/// One connection from a client through the proxy to the server.
#[derive(Debug, Default)]
struct Link {
    /// Something was swallowed, so nothing may follow it.
    gap: AtomicBool,
    /// The client hears nothing more but the end.
    muted: AtomicBool,
    /// The client has sent a `SUBSCRIBE`.
    subscribed: AtomicBool,
    end: SetOnce<End>,
}

/// How a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Everything sent so far arrives, then the end.
    Orderly,
    /// `ECONNRESET`.
    Reset,
}

impl Link {
    /// The first word on how to end is the last.
    fn finish(&self, end: End) {
        let _ = self.end.set(end);
    }
}

/// Something that was read on one side and is to be delivered on the other.
struct Parcel {
    arrived: Instant,
    /// None is the end of the stream.
    bytes: Option<Vec<u8>>,
}

impl Parcel {
    /// Clients write this short command in one piece, so it is not looked for across parcels.
    fn subscribes(&self) -> bool {
        let bytes = self.bytes.as_deref().unwrap_or_default();
        contains(bytes, b"\r\nSUBSCRIBE\r\n")
    }
}

fn run(listener: std::net::TcpListener, shared: &Arc<Shared>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .expect("a runtime for the proxy");
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).expect("a listener for the proxy");
        tokio::select! {
            // An error says that the sender was dropped, which is how it says stop.
            _ = stopped => {}
            () = accept(&listener, shared) => {}
        }
    });
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                eprintln!("leasehold-testkit: the proxy could not accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        if shared.faults.borrow().refuse {
            let _ = client.set_zero_linger();
            continue;
        }
        let _ = client.set_nodelay(true);
        let link = Arc::new(Link::default());
        let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
        shared.links().insert(id, Arc::clone(&link));
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            carry(client, &shared, &link).await;
            // After the sockets are closed, which is what a control waits for.
            shared.links().remove(&id);
        });
    }
}

/// Carries one connection to its end, and closes both sides.
async fn carry(client: TcpStream, shared: &Shared, link: &Link) {
    let (client, server) = (SetOnce::new_with(Some(client)), SetOnce::new());
    let (to_server, for_server) = mpsc::unbounded_channel();
    let (to_client, for_client) = mpsc::unbounded_channel();
    let both_ways = async {
        tokio::join!(
            connect(&server, shared, link),
            take(&client, to_server),
            take(&server, to_client),
            deliver(Way::ToServer, for_server, &server, shared, link),
            deliver(Way::ToClient, for_client, &client, shared, link),
        );
    };
    let end = tokio::select! {
        end = link.end.wait() => *end,
        () = both_ways => End::Orderly,
    };
    if end == End::Reset {
        for socket in [client.get(), server.get()].into_iter().flatten() {
            let _ = socket.set_zero_linger();
        }
    }
}

/// Connects to the server as soon as the way there is open.
async fn connect(server: &SetOnce<TcpStream>, shared: &Shared, link: &Link) {
    let mut faults = shared.faults.subscribe();
    let open =
        |way: Way| move |faults: &Faults| !faults.flow(way).swallow && !faults.flow(way).hold;
    // The faults live as long as the proxy, so waiting for them cannot fail.
    let _ = faults.wait_for(open(Way::ToServer)).await;
    if let Ok(socket) = TcpStream::connect(shared.upstream).await {
        let _ = socket.set_nodelay(true);
        let _ = server.set(socket);
    } else {
        let _ = faults.wait_for(open(Way::ToClient)).await;
        link.finish(End::Reset);
    }
}

/// Reads all that comes from one side into the queue for the other.
async fn take(from: &SetOnce<TcpStream>, queue: mpsc::UnboundedSender<Parcel>) {
    let from = from.wait().await;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match from.readable().await {
            Ok(()) => from.try_read(&mut buffer),
            Err(error) => Err(error),
        };
        let bytes = match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            // A reset ends the stream, too.
            Ok(0) | Err(_) => None,
            Ok(count) => Some(buffer[..count].to_vec()),
        };
        let ended = bytes.is_none();
        let unwanted = queue
            .send(Parcel {
                arrived: Instant::now(),
                bytes,
            })
            .is_err();
        if ended || unwanted {
            return;
        }
    }
}

/// Hands out what is queued for one side, when and as far as the faults allow.
async fn deliver(
    way: Way,
    mut queue: mpsc::UnboundedReceiver<Parcel>,
    to: &SetOnce<TcpStream>,
    shared: &Shared,
    link: &Link,
) {
    let mut changes = shared.faults.subscribe();
    let mut requests = Requests::default();
    while let Some(parcel) = queue.recv().await {
        if way == Way::ToServer && parcel.subscribes() {
            link.subscribed.store(true, Ordering::SeqCst);
        }
        let mut pending = Pending::new(parcel);
        loop {
            changes.mark_unchanged();
            let mut next = Next::Wait(None);
            shared.faults.send_if_modified(|faults| {
                next = pending.step(way, faults, to.get(), &mut requests, shared, link);
                // Whoever waits, waits for the controls.
                false
            });
            match next {
                Next::Done => break,
                Next::Stop => return,
                Next::Again => {}
                Next::Writable => {
                    if to.wait().await.writable().await.is_err() {
                        return;
                    }
                }
                Next::Connected => {
                    tokio::select! {
                        _ = to.wait() => {}
                        _ = changes.changed() => {}
                    }
                }
                Next::Wait(due) => {
                    let due = async {
                        match due {
                            Some(due) => tokio::time::sleep_until(due).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = due => {}
                        _ = changes.changed() => {}
                    }
                }
            }
        }
    }
}

/// What is to do after a step of a delivery.
enum Next {
    /// With the next parcel.
    Done,
    /// Nothing more this way.
    Stop,
    /// The next step.
    Again,
    /// The next step, once the socket takes bytes.
    Writable,
    /// The next step, once there is a socket or other faults.
    Connected,
    /// The next step, at that time or once there are other faults.
    Wait(Option<Instant>),
}

/// The parcel whose turn it is.
struct Pending {
    arrived: Instant,
    bytes: Option<Vec<u8>>,
    written: usize,
    /// Whether its requests were looked at, which happens once.
    inspected: bool,
    /// Stop behind these bytes, having lost this part of a command.
    trapped: Option<(usize, Part)>,
}

impl Pending {
    fn new(parcel: Parcel) -> Pending {
        Pending {
            arrived: parcel.arrived,
            bytes: parcel.bytes,
            written: 0,
            inspected: false,
            trapped: None,
        }
    }

    /// Does what can be done at once. Runs while the faults are locked.
    fn step(
        &mut self,
        way: Way,
        faults: &mut Faults,
        socket: Option<&TcpStream>,
        requests: &mut Requests,
        shared: &Shared,
        link: &Link,
    ) -> Next {
        if link.end.get().is_some() {
            return Next::Stop;
        }
        match faults.passage(way, self.arrived, link) {
            Passage::Open => {}
            Passage::HeldUntil(due) => return Next::Wait(due),
            Passage::Swallowed => {
                link.gap.store(true, Ordering::SeqCst);
                return Next::Done;
            }
        }
        let Some(socket) = socket else {
            return Next::Connected;
        };
        match way {
            Way::ToServer => self.step_to_server(faults, socket, requests, shared, link),
            Way::ToClient => self.step_to_client(faults, socket, shared, link),
        }
    }

    fn step_to_server(
        &mut self,
        faults: &mut Faults,
        socket: &TcpStream,
        requests: &mut Requests,
        shared: &Shared,
        link: &Link,
    ) -> Next {
        let Some(bytes) = &self.bytes else {
            // The server learns that the client is gone, and will close in turn.
            let _ = shutdown(socket, Shutdown::Write);
            return Next::Stop;
        };
        if !self.inspected {
            self.inspected = true;
            self.trapped =
                requests
                    .find(bytes, |command| faults.spring(command))
                    .map(|(range, part)| match part {
                        Part::Request => (range.start, part),
                        Part::Reply => (range.end, part),
                    });
            if let Some((_, Part::Reply)) = self.trapped {
                link.muted.store(true, Ordering::SeqCst);
            }
        }
        let stop = self.trapped.map_or(bytes.len(), |(stop, _)| stop);
        if self.written < stop {
            let wrote = socket.try_write(&bytes[self.written..stop]);
            return self.wrote(wrote, &shared.to_server);
        }
        match self.trapped {
            None => Next::Done,
            Some((_, Part::Request)) => {
                shared.struck.fetch_add(1, Ordering::SeqCst);
                link.finish(End::Orderly);
                Next::Stop
            }
            Some((_, Part::Reply)) => {
                // The server closes once it has run what it was sent, and not before.
                let _ = shutdown(socket, Shutdown::Write);
                Next::Stop
            }
        }
    }

    fn step_to_client(
        &mut self,
        faults: &mut Faults,
        socket: &TcpStream,
        shared: &Shared,
        link: &Link,
    ) -> Next {
        let muted = link.muted.load(Ordering::SeqCst);
        let Some(bytes) = &self.bytes else {
            if muted {
                shared.struck.fetch_add(1, Ordering::SeqCst);
            }
            link.finish(End::Orderly);
            return Next::Stop;
        };
        if muted || self.written == bytes.len() {
            return Next::Done;
        }
        let rest = &bytes[self.written..];
        let Some(allowed) = faults.cut_reply_after else {
            let wrote = socket.try_write(rest);
            return self.wrote(wrote, &shared.to_client);
        };
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
        let wrote = if allowed == 0 {
            Ok(0)
        } else {
            socket.try_write(&rest[..rest.len().min(allowed)])
        };
        let left = allowed - wrote.as_ref().map_or(0, |count| *count);
        faults.cut_reply_after = (left > 0).then_some(left as u64);
        let next = self.wrote(wrote, &shared.to_client);
        if left > 0 {
            return next;
        }
        shared.struck.fetch_add(1, Ordering::SeqCst);
        link.finish(End::Orderly);
        Next::Stop
    }

    fn wrote(&mut self, wrote: io::Result<usize>, counter: &AtomicU64) -> Next {
        match wrote {
            Ok(count) => {
                self.written += count;
                counter.fetch_add(count as u64, Ordering::SeqCst);
                Next::Again
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Writable,
            // That side is gone; what is read from it says so to the other one.
            Err(_) => Next::Stop,
        }
    }
}

/// Finds the commands in what a client sends.
#[derive(Default)]
struct Requests {
    /// The command that is not complete yet.
    pending: Vec<u8>,
}

impl Requests {
    /// Looks at the commands that `bytes` completes, in order, until `look` makes something of one,
    /// and says which of `bytes` belong to that one.
    fn find<T>(
        &mut self,
        bytes: &[u8],
        mut look: impl FnMut(&[u8]) -> Option<T>,
    ) -> Option<(Range<usize>, T)> {
        let earlier = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = command_length(&self.pending[start..]) {
            let end = start + length;
            if let Some(made) = look(&self.pending[start..end]) {
                return Some((start.saturating_sub(earlier)..end - earlier, made));
            }
            start = end;
        }
        self.pending.drain(..start);
        None
    }
}

/// The length of the first command, `None` while it is not complete. What is not RESP is one line.
fn command_length(bytes: &[u8]) -> Option<usize> {
    let line_end =
        |from: usize| Some(from + bytes.get(from..)?.iter().position(|&byte| byte == b'\n')? + 1);
    let number = |from: usize, to: usize| {
        let digits = bytes.get(from + 1..to)?.trim_ascii_end();
        std::str::from_utf8(digits).ok()?.parse::<usize>().ok()
    };
    let mut end = line_end(0)?;
    if bytes[0] != b'*' {
        return Some(end);
    }
    for _ in 0..number(0, end).unwrap_or(0) {
        let header = end;
        end = line_end(header)?;
        end += number(header, end)? + 2;
    }
    (end <= bytes.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

    #[test]
    fn a_command_ends_where_resp_says() {
        for short in 0..GET.len() {
            assert_eq!(command_length(&GET[..short]), None, "{short} bytes");
        }
        assert_eq!(command_length(GET), Some(GET.len()));
        assert_eq!(command_length(&[GET, GET].concat()), Some(GET.len()));
        assert_eq!(command_length(b"PING\r\nPING\r\n"), Some(6));
    }

    #[test]
    fn a_subscriber_is_known_by_its_first_subscribe() {
        let parcel = |bytes: &[u8]| Parcel {
            arrived: Instant::now(),
            bytes: Some(bytes.to_vec()),
        };
        assert!(parcel(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n").subscribes());
        assert!(!parcel(b"*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\na\r\n").subscribes());
        assert!(!parcel(GET).subscribes());
    }

    #[test]
    fn a_command_is_found_across_reads() {
        let stream = [GET, b"*1\r\n$4\r\nPING\r\n", GET].concat();
        let (ping, end) = (GET.len(), GET.len() + 14);
        for split in 0..=stream.len() {
            let mut requests = Requests::default();
            let (one, two) = stream.split_at(split);
            let look = |command: &[u8]| contains(command, b"PING").then_some(());
            let found = requests
                .find(one, look)
                .map(|(range, ())| range)
                .or_else(|| {
                    let (range, ()) = requests.find(two, look)?;
                    Some(range.start + split..range.end + split)
                });
            assert_eq!(
                found,
                Some(ping.max(if split < end { split.min(end) } else { ping })..end),
                "split at {split}"
            );
        }
    }
}
