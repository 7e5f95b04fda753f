//! The scripts of the read-write lock, called one by one by clients that a test plays itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    net::TcpStream,
};

use leasehold_testkit::Server;
use redis::{Connection, RedisError, Script, Value};

macro_rules! script {
    ($($part:literal),+) => {
        concat!($(include_str!(concat!("../../src/backend/redis/scripts/", $part, ".lua"))),+)
    };
}

/// The scripts' names, how many keys they have, and their texts as `kinds/rw_lock.rs` puts them together.
pub const SCRIPTS: [(&str, usize, &str); 6] = [
    (
        "acquire",
        4,
        script!(
            "refuse",
            "waiting",
            "rw_lock/holders",
            "rw_lock/take",
            "rw_lock/queue",
            "rw_lock/hand_over",
            "rw_lock/acquire"
        ),
    ),
    (
        "release",
        4,
        script!(
            "refuse",
            "waiting",
            "rw_lock/holders",
            "rw_lock/take",
            "rw_lock/queue",
            "rw_lock/hand_over",
            "rw_lock/release"
        ),
    ),
    (
        "downgrade",
        4,
        script!(
            "refuse",
            "waiting",
            "rw_lock/holders",
            "rw_lock/take",
            "rw_lock/queue",
            "rw_lock/hand_over",
            "rw_lock/downgrade"
        ),
    ),
    ("renew", 2, script!("rw_lock/renew")),
    (
        "extend",
        2,
        script!(
            "refuse",
            "rw_lock/holders",
            "rw_lock/take",
            "rw_lock/extend"
        ),
    ),
    (
        "count",
        3,
        script!(
            "refuse",
            "waiting",
            "rw_lock/holders",
            "rw_lock/queue",
            "rw_lock/count"
        ),
    ),
];
pub const ACQUIRE: usize = 0;
pub const RELEASE: usize = 1;
pub const DOWNGRADE: usize = 2;
pub const RENEW: usize = 3;
pub const EXTEND: usize = 4;
pub const COUNT: usize = 5;

/// The hash, the queue, and how long each key lasts.
const LOOK: &str = "local ends = {}
    for _, key in ipairs(redis.call('KEYS', '*')) do
      ends[#ends + 1] = key
      ends[#ends + 1] = redis.call('PTTL', key)
    end
    return { redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1), ends }";

/// Or what is wrong.
pub type Checked<T = ()> = Result<T, String>;

pub type Look = (Vec<(String, String)>, Vec<String>, BTreeMap<String, i64>);

/// A client's subscriptions.
pub struct Inbox(BufReader<TcpStream>);

impl Inbox {
    fn of(server: &Server) -> Inbox {
        Inbox(BufReader::new(TcpStream::connect(server.addr()).unwrap()))
    }

    /// Sends a command, if it is not empty, and hands out the messages that have come until it was carried out.
    pub fn say(&mut self, command: &str) -> Vec<String> {
        let sent = format!("{command}\r\nPING the-end\r\n");
        self.0.get_mut().write_all(sent.as_bytes()).unwrap();
        let mut lines: Vec<String> = Vec::new();
        while lines.last().is_none_or(|line| line != "the-end") {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "it was closed");
            lines.push(line.trim_end().to_owned());
        }
        // The word, a length, the channel, a length, the text.
        let messages = lines.windows(5).filter(|lines| lines[0] == "message");
        messages.map(|lines| lines[4].clone()).collect()
    }
}

fn is_denial(error: &RedisError) -> bool {
    // In the words of both flavors.
    let text = error.to_string();
    text.contains("can't run this command") || text.contains("no permissions")
}

/// Connections to a server: one for all requests, whose right to PUBLISH comes and goes, and an inbox for each client.
pub struct Played {
    root: Connection,
    worker: Connection,
    pub inboxes: [Inbox; 3],
    scripts: Vec<Script>,
    look: Script,
    /// What the episode is about.
    pub name: String,
    /// All requests until now, for late copies: the script and its arguments.
    pub sent: Vec<(usize, Vec<String>)>,
    /// Owners that were released with a tombstone, by the server's answer.
    pub buried: BTreeSet<String>,
    /// How many requests were refused, since the worker has not the right to PUBLISH.
    pub refused: u64,
    may_publish: bool,
    pub log: String,
}

impl Played {
    pub fn on(server: &Server) -> Played {
        server.cli(&["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all"]);
        let mut worker = server.connection();
        let auth = redis::cmd("AUTH").arg("worker").arg("pw").clone();
        auth.exec(&mut worker).unwrap();
        // Whose turn it is, where others race for the name as well, goes by the clock. Here each request brings a number for it.
        let clock = "call('TIME')[2] %";
        assert!(SCRIPTS[RELEASE].2.contains(clock));
        let scripts =
            SCRIPTS.map(|(_, _, text)| Script::new(&text.replace(clock, "ARGV[#ARGV] %")));
        Played {
            root: server.connection(),
            worker,
            inboxes: [(); 3].map(|()| Inbox::of(server)),
            scripts: scripts.into(),
            look: Script::new(LOOK),
            name: String::new(),
            sent: Vec::new(),
            buried: BTreeSet::new(),
            refused: 0,
            may_publish: true,
            log: String::new(),
        }
    }

    /// From here on another name: nothing is on the server, and no client listens.
    pub fn begin(&mut self, name: String) {
        redis::cmd("FLUSHALL").exec(&mut self.root).unwrap();
        for inbox in &mut self.inboxes {
            inbox.say("UNSUBSCRIBE");
        }
        self.may_publish(true);
        self.name = name;
        self.sent.clear();
        self.buried.clear();
        self.log.clear();
    }

    fn ours(&self, suffix: &str) -> String {
        format!("leasehold:{{{}}}:{suffix}", self.name)
    }

    /// Where all that wait listen, and what the names of the clients' inboxes begin with.
    pub fn channels(&self) -> (String, String) {
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        (channel, self.ours("grant:"))
    }

    pub fn may_publish(&mut self, may: bool) {
        let right = if may { "+publish" } else { "-publish" };
        let words = ["SETUSER", "worker", right];
        redis::cmd("ACL").arg(&words).exec(&mut self.root).unwrap();
        let _ = writeln!(self.log, "{right}");
        self.may_publish = may;
    }

    /// A new request, with its number for whose turn it is. The reply is empty if it was refused.
    pub fn call(&mut self, script: usize, mut args: Vec<String>, turn: u32) -> Checked<Vec<i64>> {
        args.push(turn.to_string());
        self.sent.push((script, args));
        self.send(self.sent.len() - 1, "")
    }

    pub fn send_copy(&mut self, request: usize) -> Checked {
        self.send(request, "late copy of ").map(drop)
    }

    fn send(&mut self, request: usize, note: &str) -> Checked<Vec<i64>> {
        let (script, args) = &self.sent[request];
        let (label, keys, _) = SCRIPTS[*script];
        let mut call = self.scripts[*script].prepare_invoke();
        let timeouts = format!("{{{}}}:", self.name);
        let (queue, gone) = (self.ours("queue"), self.ours("gone:"));
        for key in &[&self.name, &timeouts, &queue, &gone][..keys] {
            call.key(*key);
        }
        for arg in args {
            call.arg(arg);
        }
        let reply = call.invoke::<Value>(&mut self.worker);
        let _ = write!(self.log, "{note}{label} {}: ", args.join(" "));
        let numbers: Vec<i64> = match reply {
            Ok(Value::Int(number)) => vec![number],
            Ok(numbers) => redis::from_redis_value(numbers).unwrap(),
            Err(error) if !self.may_publish && is_denial(&error) => {
                self.log += "refused\n";
                self.refused += 1;
                return Ok(Vec::new());
            }
            Err(error) => return Err(format!("{error}")),
        };
        // In steps of 10 s: some milliseconds are not the same the next time.
        let shown = numbers.iter().map(|n| {
            if *n < 1_000 {
                *n
            } else {
                (n + 5_000) / 10_000 * 10_000
            }
        });
        let _ = writeln!(self.log, "{:?}", shown.collect::<Vec<_>>());
        if *script == RELEASE && args[3] != "0" {
            self.buried.insert(args[0].clone());
        }
        Ok(numbers)
    }

    /// Puts a place into the queue, at its end.
    pub fn plant(&mut self, place: &str, keep_ms: &str) {
        let queue = self.ours("queue");
        let mut both = redis::pipe();
        both.rpush(&queue, place)
            .cmd("PEXPIRE")
            .arg(&queue)
            .arg(keep_ms);
        both.exec(&mut self.root).unwrap();
        let _ = writeln!(self.log, "(puts in the place {place})");
    }

    pub fn look(&mut self) -> Look {
        let mut look = self.look.key(&self.name);
        look.key(self.ours("queue")).invoke(&mut self.root).unwrap()
    }
}
