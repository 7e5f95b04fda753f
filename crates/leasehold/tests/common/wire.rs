//! The commands to a server, word by word; and a network between a client and its world that misbehaves.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use leasehold::{Client, ClientBuilder, Guard, MemoryServer};
use leasehold_testkit::{Proxy, Server, wait_until_async};

use super::{SOON, World};

/// Everything clients send, as `MONITOR` shows it.
pub struct Monitor<'a> {
    server: &'a Server,
    lines: BufReader<TcpStream>,
    seen: Vec<Vec<String>>,
    looks: u32,
}

impl<'a> Monitor<'a> {
    pub fn start(server: &'a Server) -> Monitor<'a> {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut ok = [0; 5];
        stream.read_exact(&mut ok).unwrap();
        assert_eq!(&ok, b"+OK\r\n");
        Monitor {
            server,
            lines: BufReader::new(stream),
            seen: Vec::new(),
            looks: 0,
        }
    }

    /// The commands of clients until now, in words, in order.
    pub fn seen(&mut self) -> &[Vec<String>] {
        self.looks += 1;
        let mark = format!("end-of-look-{}", self.looks);
        self.server.cli(&["ECHO", &mark]);
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "MONITOR ended early");
            if line.contains(&mark) {
                return &self.seen;
            }
            let Some((head, words)) = line.trim_end().split_once("] ") else {
                continue;
            };
            if !head.ends_with(" lua") {
                let words = words.trim_matches('"').split("\" \"");
                self.seen.push(words.map(str::to_owned).collect());
            }
        }
    }

    /// The script calls until now that say `word`, in order.
    pub fn calls(&mut self, word: &str) -> Vec<Vec<String>> {
        let is_call =
            |sent: &&Vec<String>| sent[0] == "EVALSHA" && sent.iter().any(|w| w.contains(word));
        self.seen().iter().filter(is_call).cloned().collect()
    }
}

/// The server gets a request once more.
pub fn send_copy(server: &Server, request: &[String]) -> redis::Value {
    let words: Vec<&str> = request.iter().map(String::as_str).collect();
    server.cli(&words)
}

/// The places in the server's queue.
pub fn queue(server: &Server, name: &str) -> Vec<String> {
    let queue = format!("leasehold:{{{name}}}:queue");
    let places = server.cli(&["LRANGE", &queue, "0", "-1"]);
    redis::from_redis_value(places).expect("the queue is a list")
}

/// Until so many places are in the queue for `name`.
pub async fn until_queued(server: &Server, places: usize) {
    let what = format!("{places} stand in the queue");
    wait_until_async(SOON, &what, || queue(server, "name").len() == places).await;
}

/// How many script calls the server has answered.
pub fn script_calls(server: &Server) -> u64 {
    server.calls().get("evalsha").copied().unwrap_or(0)
}

/// Says once more that the name was given to a place: the message was late.
pub fn say_granted(server: &Server, name: &str, place: &str) {
    let (client, _) = place.split_once(':').expect("a place begins with an owner");
    let channel = format!("leasehold:{{{name}}}:grant:{client}");
    let heard: i64 = redis::from_redis_value(server.cli(&["PUBLISH", &channel, place])).unwrap();
    assert_eq!(heard, 1, "{client} listens");
}

/// The guard does not rely on more than the server gives it, by the word of another client.
pub async fn assert_belief(guard: &Guard, looker: &Client, when: &str) {
    let believed = guard.valid_until();
    let holder = looker.status(guard.name()).await.unwrap().holder().cloned();
    let now = Instant::now();
    match holder.filter(|holder| holder.owner == guard.owner()) {
        Some(holder) => {
            let end = now + holder.remaining.expect("a lease has an end");
            let over = believed.saturating_duration_since(end);
            assert!(over.is_zero(), "{when}: believed {over:?} too long");
        }
        None => assert!(
            !guard.is_valid(),
            "{when}: believed, but the name is another's"
        ),
    }
}

/// The way from a client to its world, with the faults that every world can show.
pub enum Network {
    Memory(MemoryServer),
    Proxy(Proxy),
}

impl Network {
    pub fn to(world: &World) -> Network {
        match world {
            World::Memory(server) => Network::Memory(server.clone()),
            World::Server(server) => Network::Proxy(Proxy::start(server.addr())),
        }
    }

    /// Settings for a client at the near end.
    pub fn builder(&self) -> ClientBuilder {
        match self {
            Network::Memory(server) => Client::builder().memory(server),
            Network::Proxy(proxy) => Client::builder().url(proxy.url()),
        }
    }

    pub async fn client(&self) -> Client {
        self.builder().connect().await.expect("the server is up")
    }

    /// The next requests are carried out, and their answers lost.
    pub fn lose_replies(&self, count: usize) {
        match self {
            Network::Memory(server) => server.drop_replies(count),
            Network::Proxy(proxy) => proxy.lose_replies(b"EVALSHA", count),
        }
    }

    pub fn delay(&self, each_way: Duration) {
        match self {
            Network::Memory(server) => server.delay(each_way),
            Network::Proxy(proxy) => proxy.delay(each_way),
        }
    }

    /// Nothing gets through, and new connections are refused.
    pub fn go_down(&self) {
        match self {
            Network::Memory(server) => server.cut(true),
            Network::Proxy(proxy) => {
                proxy.refuse(true);
                proxy.cut();
            }
        }
    }

    /// Takes back every fault.
    pub fn heal(&self) {
        match self {
            Network::Memory(server) => {
                server.drop_replies(0);
                server.delay(Duration::ZERO);
                server.cut(false);
            }
            Network::Proxy(proxy) => proxy.heal(),
        }
    }
}

/// The clock that all processes share.
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("it counts from the start of the machine");
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// The rules of the user in docs/keys.md, in their order.
pub fn documented_rules() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keys.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("user worker ").expect("the example");
    let (rules, _) = rest.split_once("```").expect("the end of the example");
    rules.split_whitespace().map(str::to_owned).collect()
}

/// The rules that docs/keys.md adds to those for `what`.
pub fn more_rules(what: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keys.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once(&format!("\nFor {what}")).expect("a word");
    let (_, rest) = rest.split_once("```text").expect("an example");
    let (rules, _) = rest.split_once("```").expect("the end of the example");
    rules.split_whitespace().map(str::to_owned).collect()
}
