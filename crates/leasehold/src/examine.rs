//! Whether servers may be trusted with locks, by what they say of themselves: each rule here reads the answers, and asks nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use crate::{
    backend::{
        Failure,
        report::{Answers, ClockOffset, SentinelReport, SentinelView, ServerReport, field},
    },
    durations::about,
};

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// It could not be looked at: mostly the server's user may not ask. It is no fault.
    NotAllowed,
    /// As it should be.
    Good,
    /// Locks work, but may be lost, late or refused in a case that the finding names.
    Warning,
    /// Two may hold a lock at once, or locks do not work.
    Danger,
}

/// A fact about a server that matters to its locks. Made by [`Client::examine`](crate::Client::examine).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// The server that it is about, by the address that was given.
    pub server: String,
    /// The word that stands for this kind of finding, in programs: `eviction`, `memory`, `persistence`, `server`, `replicas`, `latency`, `slow`,
    /// `clients`, `timeout`, `cluster`, `sentinels`, `tls`, `clock`, `reach`.
    pub word: &'static str,
    /// The fact, with its figures.
    pub what: String,
    /// Its consequence; empty if it is as it should be.
    pub leads_to: String,
    /// The remedy; empty if it is as it should be.
    pub remedy: String,
}

/// A server that is fuller than this, in percent, is soon full.
const FULL: u64 = 90;

/// A replica that has said nothing for so many seconds is behind.
const REPLICA_LATE: u64 = 10;

/// A round trip above this makes each lock slow.
const SLOW_TRIP: Duration = Duration::from_millis(50);

/// A command that took longer kept all clients waiting for a moment that matters.
const SLOW_COMMAND: Duration = Duration::from_millis(100);

/// Slow commands of before are of no interest.
const LATELY: Duration = Duration::from_secs(3600);

/// Clocks that differ by more are not in step.
const IN_STEP: Duration = Duration::from_secs(1);

/// The slots of a cluster.
const SLOTS: u64 = 16_384;

/// Judges a server, the worst finding first.
pub(crate) fn findings(report: &ServerReport) -> Vec<Finding> {
    let of = Of(&report.server);
    let mut all = of_server(&of, report);
    all.extend(sentinels(&of, &report.sentinels));
    all.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    all
}

fn of_server(of: &Of<'_>, report: &ServerReport) -> Vec<Finding> {
    let answers = match &report.answers {
        Ok(answers) => answers,
        Err(failure) => {
            let what = format!("it does not answer: {}", failure.cause());
            if report.votes.is_some() {
                let leads_to =
                    "the others decide without it; if a majority is gone, no lock can be taken";
                return vec![of.warning(
                    "reach",
                    what,
                    leads_to,
                    "start it, or correct its address",
                )];
            }
            let leads_to = "locks there are refused, or wait until it answers";
            return vec![of.danger("reach", what, leads_to, "start it, or correct its address")];
        }
    };
    let mut all = vec![
        server(of, answers),
        eviction(of, answers),
        persistence(of, answers, report.votes),
        latency(of, answers),
        slow(of, answers),
    ];
    all.extend(memory(of, answers));
    all.extend(replicas(of, answers));
    all.extend(clients(of, answers));
    all.extend(timeout(of, answers));
    all.extend(cluster(of, answers));
    all.extend(encryption(of, answers));
    if answers.clock.is_none() {
        all.push(of.not_allowed("clock", "TIME"));
    }
    if let Some(failure) = &answers.broke_off {
        let what = format!(
            "it answers some questions, and then not: {}",
            failure.cause()
        );
        let leads_to = "a request of a lock may fail or be late as well";
        all.push(of.warning(
            "reach",
            what,
            leads_to,
            "look at its log, and at the network",
        ));
        // The questions that were left are no lack of rights.
        all.retain(|it| it.level != Level::NotAllowed || answers.info.is_none());
    }
    all
}

/// Makes the findings of a server.
struct Of<'a>(&'a str);

impl Of<'_> {
    fn finding(&self, level: Level, word: &'static str, what: impl Into<String>) -> Finding {
        Finding {
            level,
            server: self.0.to_owned(),
            word,
            what: what.into(),
            leads_to: String::new(),
            remedy: String::new(),
        }
    }

    fn good(&self, word: &'static str, what: impl Into<String>) -> Finding {
        self.finding(Level::Good, word, what)
    }

    fn not_allowed(&self, word: &'static str, command: &str) -> Finding {
        let rule = command.to_lowercase().replace(" +", "+").replace(' ', "|");
        let rule = rule.replace('+', " +");
        let remedy = format!("add +{rule} to the rules of the server's user");
        Finding {
            remedy,
            ..self.finding(
                Level::NotAllowed,
                word,
                format!("not permitted ({})", command.replace(" +", ", ")),
            )
        }
    }

    fn warning(
        &self,
        word: &'static str,
        what: impl Into<String>,
        leads_to: &str,
        remedy: &str,
    ) -> Finding {
        Finding {
            leads_to: leads_to.to_owned(),
            remedy: remedy.to_owned(),
            ..self.finding(Level::Warning, word, what)
        }
    }

    fn danger(
        &self,
        word: &'static str,
        what: impl Into<String>,
        leads_to: &str,
        remedy: &str,
    ) -> Finding {
        Finding {
            level: Level::Danger,
            ..self.warning(word, what, leads_to, remedy)
        }
    }
}

/// Which server it is, and whether it is one to lock on.
fn server(of: &Of<'_>, answers: &Answers) -> Finding {
    if answers.info.is_none() {
        return of.not_allowed("server", "INFO");
    }
    let version = match answers.field("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", answers.field("redis_version").unwrap_or("?")),
    };
    let mode = match answers.field("cluster_enabled") {
        Some("1") => "a node of a cluster",
        _ => "not in a cluster",
    };
    // Every version of Redis and of Valkey says `slave` here.
    if answers.field("role") == Some("slave") {
        let primary = ["master_host", "master_port"].map(|name| answers.field(name).unwrap_or("?"));
        let what = format!("{version} · a replica of {}", primary.join(":"));
        let leads_to = "it takes no locks, or forgets them when it follows its primary again: two holders at once";
        return of.danger("server", what, leads_to, "connect to the primary");
    }
    let replicas = match answers.number("connected_slaves") {
        None | Some(0) => "no replicas".to_owned(),
        Some(1) => "1 replica".to_owned(),
        Some(many) => format!("{many} replicas"),
    };
    of.good(
        "server",
        format!("{version} · primary, {replicas} · {mode}"),
    )
}

/// Whether it deletes keys to make room.
fn eviction(of: &Of<'_>, answers: &Answers) -> Finding {
    let Some(policy) = answers.field("maxmemory_policy") else {
        return of.not_allowed("eviction", "INFO");
    };
    match answers.number("maxmemory") {
        // The keys of locks have an end, so the policies for such keys find them, too.
        Some(most) if most > 0 && policy != "noeviction" => {
            let used = used(answers).map_or(String::new(), |used| format!(", and {used}"));
            of.danger(
                "eviction",
                format!("maxmemory-policy is {policy}{used}"),
                "the key of a lock can be evicted while it is held: two holders at once",
                "CONFIG SET maxmemory-policy noeviction, or a server of its own for locks",
            )
        }
        Some(0) => of.good("eviction", "no limit of memory, so no key is evicted"),
        _ => of.good("eviction", "maxmemory-policy noeviction"),
    }
}

/// How much of its memory is used, in words.
fn used(answers: &Answers) -> Option<String> {
    let (used, most) = (answers.number("used_memory")?, answers.number("maxmemory")?);
    let percent = used.saturating_mul(100).checked_div(most)?;
    let most = answers.field("maxmemory_human").unwrap_or("its memory");
    Some(format!("{percent} % of {most} is used"))
}

/// Whether it is soon full, and refuses to write.
fn memory(of: &Of<'_>, answers: &Answers) -> Option<Finding> {
    let (used_now, most) = (answers.number("used_memory")?, answers.number("maxmemory")?);
    let refuses = answers.field("maxmemory_policy") == Some("noeviction");
    (refuses && most > 0 && used_now.saturating_mul(100) >= most.saturating_mul(FULL)).then(|| {
        of.warning(
            "memory",
            used(answers).unwrap_or_default(),
            "a full server refuses new locks, until memory is free again",
            "raise maxmemory, or move other data elsewhere",
        )
    })
}

/// Judges whether the server forgets locks when it restarts.
fn persistence(of: &Of<'_>, answers: &Answers, votes: Option<bool>) -> Finding {
    let Some(aof) = answers.field("aof_enabled") else {
        return of.not_allowed("persistence", "INFO");
    };
    let fsync = answers.settings.get("appendfsync").map(String::as_str);
    let is_safe = aof == "1" && fsync == Some("always");
    match votes {
        Some(true) if aof == "1" && fsync.is_none() => {
            return of.not_allowed("persistence", "CONFIG GET");
        }
        Some(true) if !is_safe => {
            let what =
                "it may forget what it has answered, and persistent_servers says that it does not";
            let leads_to = "after a restart it votes twice: two may hold a lock";
            let remedy = "appendonly yes with appendfsync always; or leave persistent_servers out";
            return of.danger("persistence", what, leads_to, remedy);
        }
        Some(false) => {
            let what = "not needed: after a restart it has no vote for the longest lease";
            return of.good("persistence", what);
        }
        _ => {}
    }
    let fails = |name: &&&str| answers.field(name) == Some("err");
    if let Some(name) = ["aof_last_write_status", "rdb_last_bgsave_status"]
        .iter()
        .find(fails)
    {
        let leads_to = "it may refuse to write, and a restart forgets leases: two may hold a lock";
        let remedy = "look at its log; mostly its disk is full";
        return of.warning(
            "persistence",
            format!("it cannot write to its disk ({name})"),
            leads_to,
            remedy,
        );
    }
    let forgets = "a restart forgets leases: two may hold a lock until the first one learns it";
    let remedy =
        "appendonly yes with appendfsync always; or refuse stale writers by fencing tokens";
    match (aof, fsync, answers.settings.get("save").map(String::as_str)) {
        ("1", Some("always"), _) => of.good("persistence", "AOF, written before each answer"),
        ("1", None, _) => of.good("persistence", "AOF; its appendfsync is not known"),
        ("1", Some("no"), _) => of.warning("persistence", "AOF, appendfsync no", forgets, remedy),
        ("1", Some(fsync), _) => {
            // No fault: else nearly all servers had it. A crash of the process alone forgets nothing.
            let what = format!(
                "AOF, appendfsync {fsync}: a crash of its machine forgets what is not on disk"
            );
            of.good("persistence", what)
        }
        (_, _, Some("")) => of.warning("persistence", "neither AOF nor RDB", forgets, remedy),
        (_, _, Some(save)) => {
            let what = format!("RDB alone (save {save})");
            of.warning("persistence", what, forgets, remedy)
        }
        (_, _, None) => of.warning("persistence", "no AOF", forgets, remedy),
    }
}

/// How long a round trip takes.
fn latency(of: &Of<'_>, answers: &Answers) -> Finding {
    let mut trips = answers.trips.clone();
    trips.sort_unstable();
    let [.., worst] = trips[..] else {
        return of.not_allowed("latency", "PING");
    };
    let p50 = trips[trips.len() / 2];
    let what = format!(
        "round trip p50 {}, p99 {}, worst {}",
        millis(p50),
        millis(trips[trips.len() * 99 / 100]),
        millis(worst)
    );
    if p50 < SLOW_TRIP {
        return of.good("latency", what);
    }
    let leads_to = format!("to lock and to unlock takes {} each, at least", millis(p50));
    let remedy = "run the service nearer to its server; keep leases at twenty round trips or more";
    of.warning("latency", what, &leads_to, remedy)
}

/// In milliseconds with one decimal: round trips are seldom whole ones.
fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

fn whole_millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// Whether other commands have kept it from answering.
fn slow(of: &Of<'_>, answers: &Answers) -> Finding {
    let Some(slow) = &answers.slow else {
        return of.not_allowed("slow", "SLOWLOG GET");
    };
    let from = answers.settings.get("slowlog-log-slower-than");
    let is_off = |micros: &String| {
        micros
            .parse()
            .is_ok_and(|micros: i64| !(0..=100_000).contains(&micros))
    };
    if from.is_some_and(is_off) {
        let what = "the slow log is off, or for slower commands only (slowlog-log-slower-than)";
        return of.finding(Level::NotAllowed, "slow", what);
    }
    let lately = slow.iter().filter(|(ago, _)| *ago < LATELY);
    let long: Vec<_> = lately.filter(|(_, took)| *took >= SLOW_COMMAND).collect();
    let Some(longest) = long.iter().map(|(_, took)| *took).max() else {
        let what = format!(
            "the newest entries of the slow log have no command over {} of the last hour",
            whole_millis(SLOW_COMMAND)
        );
        return of.good("slow", what);
    };
    of.warning(
        "slow",
        format!(
            "commands over {1} in the last hour: {0}, the longest {2}",
            long.len(),
            whole_millis(SLOW_COMMAND),
            whole_millis(longest)
        ),
        "the server answers no client meanwhile, so renewals are late",
        "find them with SLOWLOG GET; a server of its own for locks has none",
    )
}

/// Replicas that a failover should not choose.
fn replicas(of: &Of<'_>, answers: &Answers) -> Vec<Finding> {
    let many = answers.number("connected_slaves").unwrap_or(0);
    let lines = (0..many).map_while(|i| answers.field(&format!("slave{i}")));
    let late = lines.filter_map(|line| {
        let value = |name: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(field, value)| (field == name).then_some(value))
        };
        let (state, lag) = (value("state")?, value("lag")?);
        let is_late = state != "online" || lag.parse().is_ok_and(|lag: u64| lag > REPLICA_LATE);
        let address = format!("{}:{}", value("ip")?, value("port")?);
        is_late.then(|| format!("the replica {address} is {state}, and was heard {lag} s ago"))
    });
    let leads_to =
        "if it takes the primary's place, it has not got the latest locks: two holders at once";
    let remedy = "wait until it has caught up; or Durability::Replicas in the clients";
    late.map(|what| of.warning("replicas", what, leads_to, remedy))
        .collect()
}

/// Whether it can take more connections.
fn clients(of: &Of<'_>, answers: &Answers) -> Option<Finding> {
    let now = answers.number("connected_clients")?;
    let most = answers.number("maxclients")?;
    (now.saturating_mul(100) >= most.saturating_mul(FULL)).then(|| {
        let what = format!("{now} of {most} connections are taken");
        let leads_to = "new clients are refused, and those that reconnect may lose their leases";
        of.warning(
            "clients",
            what,
            leads_to,
            "raise maxclients, or close idle connections",
        )
    })
}

/// Whether it hangs up on idle clients.
fn timeout(of: &Of<'_>, answers: &Answers) -> Option<Finding> {
    if answers.settings.is_empty() {
        return Some(of.not_allowed("timeout", "CONFIG GET"));
    }
    let seconds: u64 = answers.settings.get("timeout")?.parse().ok()?;
    (1..60).contains(&seconds).then(|| {
        let what = format!("it closes connections that are idle for {seconds} s (timeout)");
        let leads_to =
            "an idle client connects anew for its next lock, which takes some round trips";
        of.warning("timeout", what, leads_to, "CONFIG SET timeout 0")
    })
}

/// Whether the cluster serves all names.
fn cluster(of: &Of<'_>, answers: &Answers) -> Vec<Finding> {
    let Some((state, nodes)) = &answers.cluster else {
        let is_node = answers.field("cluster_enabled") == Some("1");
        let unknown = is_node.then(|| of.not_allowed("cluster", "CLUSTER INFO +CLUSTER NODES"));
        return unknown.into_iter().collect();
    };
    let served = field(state, "cluster_slots_ok").and_then(|slots| slots.parse().ok());
    // A node that is suspected by this one alone serves its slots.
    let suspected = field(state, "cluster_slots_pfail").and_then(|slots| slots.parse().ok());
    let served: u64 = served.unwrap_or(SLOTS) + suspected.unwrap_or(0);
    let stands = field(state, "cluster_state").unwrap_or("?");
    let mut all = Vec::new();
    if stands != "ok" || served < SLOTS {
        all.push(of.danger(
            "cluster",
            format!("its state is {stands}: {served} of {SLOTS} slots are served"),
            "locks whose names are in the others are refused, and those that are held there may be lost",
            "start the node that has them, or give them to another",
        ));
    }
    for line in nodes.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [_, address, flags, ..] = words[..] else {
            continue;
        };
        let address = address.split(['@', ',']).next().unwrap_or(address);
        if flags.split(',').any(|flag| flag == "fail") {
            let what = format!("the node {address} does not answer the others");
            // Behind the eighth word stand the slots that it has.
            let leads_to = if words.len() > 8 {
                "names in its slots are refused until a replica has its place"
            } else {
                "it cannot take the place of another node"
            };
            all.push(of.warning("cluster", what, leads_to, "start it"));
        }
        // `[93-<-id]` and `[93->-id]`: only a node itself says so, of its own slots.
        let open = words.iter().filter(|word| word.starts_with('[')).count();
        if open > 0 {
            let what = format!("{address}: slots that are open between two nodes: {open}");
            let leads_to = "locks whose names are there wait, or are found slower, while keys move";
            let remedy = "nothing while slots are being moved; else finish the move: redis-cli --cluster fix";
            all.push(of.warning("cluster", what, leads_to, remedy));
        }
    }
    if all.is_empty() {
        all.push(of.good("cluster", format!("all {SLOTS} slots are served")));
    }
    all
}

/// Whether others can read and change what is said on the way.
fn encryption(of: &Of<'_>, answers: &Answers) -> Option<Finding> {
    let ip = answers.in_the_clear?;
    let what = format!("nothing is encrypted on the way to {ip}, which is no private address");
    let leads_to = "if that way leads through networks of others, the password and all names can be read there, and locks taken and freed by others";
    let remedy = "rediss:// (or rediss-sentinel, rediss-cluster, redlocks)";
    Some(of.warning("tls", what, leads_to, remedy))
}

/// Whether the sentinels are at one.
fn sentinels(of: &Of<'_>, all: &[SentinelReport]) -> Vec<Finding> {
    let (mut found, mut views) = (Vec::new(), Vec::new());
    let word = "sentinels";
    for SentinelReport { address, answer } in all {
        match answer {
            Ok(Some(view)) => views.push((address.as_str(), view)),
            Ok(None) => found.push(of.warning(
                word,
                format!("the sentinel {address} does not know this group"),
                "it has no vote in a failover, and clients that ask it alone find no primary",
                "SENTINEL MONITOR there; or leave it out of the address",
            )),
            Err(Failure::Rejected(cause)) => found.push(Finding {
                remedy: "correct the login of the sentinels in the address, or the rights of its user there".to_owned(),
                ..of.finding(Level::NotAllowed, word, cause.to_string())
            }),
            Err(failure) => found.push(of.warning(
                word,
                format!("cannot be asked from here: {}", failure.cause()),
                "clients on this machine do without it; if the other sentinels do not reach it either, it has no vote in a failover",
                "look at the way there, and correct its address; if it is down, start it; if it is gone for good, SENTINEL RESET at the others, one at a \
                 time",
            )),
        }
    }
    let primaries = grouped(&views, |view| view.primary.clone());
    if primaries.len() > 1 && may_be_one(&primaries) {
        found.push(of.warning(
            word,
            format!("the sentinels name the primary differently: {}", listed(&primaries)),
            "nothing, if all of these are one server, which cannot be seen from here; else two may hold a lock",
            "set resolve-hostnames and announce-hostnames alike at all sentinels",
        ));
    } else if primaries.len() > 1 {
        found.push(of.danger(
            word,
            format!("the sentinels name different primaries: {}", listed(&primaries)),
            "clients that ask different ones lock at different servers: two may hold a lock",
            "find out which primary is right; at the sentinels that name another SENTINEL REMOVE, then SENTINEL MONITOR",
        ));
    }
    // Not the replicas: a sentinel remembers one that is gone until it is reset, and no harm comes of that.
    let known = grouped(&views, |view| format!("{} sentinels", view.sentinels));
    if known.len() > 1 {
        found.push(of.warning(
            word,
            format!("the sentinels do not know the same group: {}", listed(&known)),
            "a failover may lack votes",
            "they tell each other within seconds; else look at the network between them. A sentinel that is gone for good is forgotten by SENTINEL RESET",
        ));
    }
    let anew: Vec<_> = views.iter().filter(|(_, view)| view.epoch == 0).collect();
    if !anew.is_empty() && anew.len() < views.len() {
        let names: Vec<_> = anew.iter().map(|(address, _)| *address).collect();
        found.push(of.warning(
            word,
            format!("set anew, and since then without a word from the others: {}", names.join(", ")),
            "it announces no failover; if most are set anew to another primary, clients move there: two may hold a lock until then",
            "they tell each other within seconds; else look at the network between them",
        ));
    }
    found
}

/// Whether these may be names of one server: no two differ by more than a host's name in place of its IP address.
fn may_be_one(primaries: &BTreeMap<String, BTreeSet<&str>>) -> bool {
    let read = |primary: &str| {
        let (host, port) = primary.rsplit_once(':').unwrap_or((primary, ""));
        let host = host.trim_matches(['[', ']']).to_lowercase();
        (port.to_owned(), host.parse::<IpAddr>().map_err(|_| host))
    };
    let all: BTreeSet<_> = primaries.keys().map(|primary| read(primary)).collect();
    let ports: BTreeSet<_> = all.iter().map(|(port, _)| port).collect();
    let ips = all.iter().filter(|(_, host)| host.is_ok()).count();
    ports.len() == 1 && ips <= 1 && all.len() - ips <= 1
}

/// The sentinels that say the same, by what they say.
fn grouped<'a>(
    views: &[(&'a str, &SentinelView)],
    says: impl Fn(&SentinelView) -> String,
) -> BTreeMap<String, BTreeSet<&'a str>> {
    let mut groups = BTreeMap::<_, BTreeSet<_>>::new();
    for (address, view) in views {
        groups.entry(says(view)).or_default().insert(*address);
    }
    groups
}

fn listed(groups: &BTreeMap<String, BTreeSet<&str>>) -> String {
    let lines = groups.iter().map(|(says, of)| {
        let of: Vec<_> = of.iter().copied().collect();
        format!("{says} ({})", of.join(", "))
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// Whether the clocks of these servers, and this machine's, are in step. Where the servers are, and this machine is not, it is said once.
pub(crate) fn clocks(reports: &[ServerReport]) -> Option<Finding> {
    let clocks = reports.iter().filter_map(|report| {
        let clock = report.answers.as_ref().ok()?.clock?;
        Some((report.server.as_str(), clock))
    });
    let clocks: Vec<_> = clocks.collect();
    let (server, ahead) = clocks.iter().max_by_key(|(_, clock)| clock.ahead_us)?;
    let (other, behind) = clocks.iter().min_by_key(|(_, clock)| clock.ahead_us)?;
    let of = Of(server);
    let differs = |us: i64, error_us: i64| {
        let by = Duration::from_micros(us.unsigned_abs());
        let error = Duration::from_micros(error_us.unsigned_abs());
        (by > IN_STEP + error).then(|| about(by))
    };
    let apart = ahead.ahead_us.saturating_sub(behind.ahead_us);
    if let Some(by) = differs(apart, ahead.error_us.saturating_add(behind.error_us)) {
        let what = format!("its clock is {by} ahead of that of {other}");
        let leads_to = "leases do not depend on it, but a clock that is set right by a jump lets two hold a lock for as long";
        return Some(of.warning("clock", what, leads_to, STEERED));
    }
    // The one that is known best.
    let (_, ClockOffset { ahead_us, error_us }) =
        clocks.iter().min_by_key(|(_, clock)| clock.error_us)?;
    let by = differs(*ahead_us, *error_us)?;
    let side = if *ahead_us > 0 { "ahead of" } else { "behind" };
    let what = format!("its clock is {by} {side} this machine's");
    let leads_to = "times since when a lock is held are wrong by as much; leases do not depend on it, but a clock that is set right by a jump lets two hold a \
        lock for as long";
    Some(of.warning("clock", what, leads_to, STEERED))
}

const STEERED: &str = "have each clock steered slowly (chrony, or ntpd without steps)";

#[cfg(test)]
mod tests {
    use super::*;

    /// A primary as it should be.
    const GOOD: &str = "redis_version:7.2.4\nrole:master\nconnected_slaves:0\nmaxmemory:0\nmaxmemory_policy:noeviction\n\
        used_memory:1000\naof_enabled:1\nconnected_clients:3\nmaxclients:10000\ncluster_enabled:0\n";

    fn answers(replaced: &[(&str, &str)]) -> Answers {
        let mut info = GOOD.to_owned();
        for (before, after) in replaced {
            assert!(info.contains(before), "{before}");
            info = info.replace(before, after);
        }
        Answers {
            info: Some(info),
            settings: [("appendfsync", "always"), ("save", ""), ("timeout", "0")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            slow: Some(Vec::new()),
            trips: vec![Duration::from_micros(200); 50],
            clock: Some(ClockOffset {
                ahead_us: 0,
                error_us: 100,
            }),
            in_the_clear: None,
            cluster: None,
            broke_off: None,
        }
    }

    /// The words of what is not good, with a mark for the dangers.
    fn faults(answers: Answers) -> Vec<String> {
        let report = ServerReport {
            server: "s".to_owned(),
            votes: None,
            sentinels: Vec::new(),
            answers: Ok(answers),
        };
        let all = findings(&report).into_iter();
        let faults = all.filter_map(|it| match it.level {
            Level::Good => None,
            Level::NotAllowed => Some(format!("{} ?", it.word)),
            Level::Warning => Some(it.word.to_owned()),
            Level::Danger => Some(format!("{} !", it.word)),
        });
        faults.collect()
    }

    #[test]
    fn a_server_as_it_should_be_has_no_fault() {
        assert_eq!(faults(answers(&[])), [""; 0]);
    }

    #[test]
    fn each_fault_is_found_and_its_neighbour_is_not() {
        let limited = ("maxmemory:0", "maxmemory:2000");
        for (replaced, found) in [
            (&[("noeviction", "allkeys-lru")][..], &[][..]), // never full
            (&[limited, ("noeviction", "allkeys-lru")], &["eviction !"]),
            (&[limited, ("noeviction", "volatile-ttl")], &["eviction !"]),
            (&[limited], &[]),
            (
                &[limited, ("used_memory:1000", "used_memory:1800")],
                &["memory"],
            ),
            (&[limited, ("used_memory:1000", "used_memory:1799")], &[]),
            (&[("aof_enabled:1", "aof_enabled:0")], &["persistence"]),
            (
                &[("aof_enabled:1", "aof_enabled:1\naof_last_write_status:err")],
                &["persistence"],
            ),
            (
                &[("cluster_enabled:0", "cluster_enabled:1")],
                &["cluster ?"],
            ),
            (&[("role:master", "role:slave")], &["server !"]),
            (
                &[("connected_clients:3", "connected_clients:9000")],
                &["clients"],
            ),
            (&[("connected_clients:3", "connected_clients:8999")], &[]),
            (
                &[(
                    "connected_slaves:0",
                    "connected_slaves:1\nslave0:ip=1.1.1.1,port=1,state=online,offset=1,lag=1",
                )],
                &[],
            ),
            (
                &[(
                    "connected_slaves:0",
                    "connected_slaves:1\nslave0:ip=1.1.1.1,port=1,state=online,offset=1,lag=11",
                )],
                &["replicas"],
            ),
            (
                &[(
                    "connected_slaves:0",
                    "connected_slaves:1\nslave0:ip=1.1.1.1,port=1,state=send_bulk,offset=1,lag=0",
                )],
                &["replicas"],
            ),
        ] {
            assert_eq!(faults(answers(replaced)), found, "{replaced:?}");
        }
    }

    #[test]
    fn what_no_section_of_info_shows_is_judged_as_well() {
        let seconds = Duration::from_secs;
        let with = |change: &dyn Fn(&mut Answers)| {
            let mut changed = answers(&[]);
            change(&mut changed);
            faults(changed)
        };
        let set = |name: &str, value: &str| {
            let (name, value) = (name.to_owned(), value.to_owned());
            move |it: &mut Answers| drop(it.settings.insert(name.clone(), value.clone()))
        };
        assert_eq!(with(&set("appendfsync", "everysec")), [""; 0]);
        assert_eq!(with(&set("appendfsync", "no")), ["persistence"]);
        assert_eq!(with(&set("slowlog-log-slower-than", "-1")), ["slow ?"]);
        assert_eq!(with(&set("slowlog-log-slower-than", "100000")), [""; 0]);
        assert_eq!(with(&set("timeout", "59")), ["timeout"]);
        assert_eq!(with(&set("timeout", "60")), [""; 0]);
        assert_eq!(with(&|it| it.settings.clear()), ["timeout ?"]);
        assert_eq!(with(&|it| it.slow = None), ["slow ?"]);
        let slow = |ago, took| move |it: &mut Answers| it.slow = Some(vec![(ago, took)]);
        assert_eq!(with(&slow(seconds(3599), SLOW_COMMAND)), ["slow"]);
        assert_eq!(with(&slow(seconds(3600), SLOW_COMMAND)), [""; 0]);
        assert_eq!(with(&|it| it.trips = vec![SLOW_TRIP]), ["latency"]);
        assert_eq!(
            with(&|it| it.trips.push(seconds(1))),
            [""; 0],
            "a single one"
        );
        assert_eq!(with(&|it| it.clock = None), ["clock ?"]);
        assert_eq!(
            with(&|it| it.in_the_clear = Some([8, 8, 8, 8].into())),
            ["tls"]
        );
        let without_rights = with(&|it| it.info = None);
        assert_eq!(without_rights, ["server ?", "eviction ?", "persistence ?"]);
    }

    #[test]
    fn a_server_of_a_majority_may_forget_unless_it_is_said_not_to() {
        let level = |votes, aof: &str| {
            let mut changed = answers(&[("aof_enabled:1", aof)]);
            changed.settings.clear();
            let report = ServerReport {
                server: "s".to_owned(),
                votes,
                sentinels: Vec::new(),
                answers: Ok(changed),
            };
            let all = findings(&report);
            let found = all.iter().find(|it| it.word == "persistence");
            found.expect("it is always looked at").level
        };
        assert_eq!(level(Some(false), "aof_enabled:0"), Level::Good);
        assert_eq!(level(Some(true), "aof_enabled:0"), Level::Danger);
        let unknown = level(Some(true), "aof_enabled:1");
        assert_eq!(unknown, Level::NotAllowed, "how often it is written");
        assert_eq!(level(None, "aof_enabled:0"), Level::Warning);
    }

    #[test]
    fn a_cluster_that_does_not_serve_all_names_says_which_node_is_to_blame() {
        let with = |state: &str, nodes: &str| {
            let mut changed = answers(&[]);
            changed.cluster = Some((state.to_owned(), nodes.to_owned()));
            faults(changed)
        };
        let ok = "cluster_state:ok\r\ncluster_slots_ok:16384\r\n";
        let me = "id1 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383";
        assert_eq!(with(ok, me), [""; 0]);
        assert_eq!(with(ok, &format!("{me} [5->-id2]")), ["cluster"]);
        let dead = format!("{me}\nid2 127.0.0.1:3@4 master,fail - 0 0 2 connected 5");
        assert_eq!(with(ok, &dead), ["cluster"]);
        let suspected = format!("{me}\nid2 127.0.0.1:3@4 master,fail? - 0 0 2 connected 5");
        assert_eq!(with(ok, &suspected), [""; 0]);
        let doubt = "cluster_state:ok\ncluster_slots_ok:16000\ncluster_slots_pfail:384\n";
        assert_eq!(with(doubt, &suspected), [""; 0]);
        let missing = "cluster_state:fail\r\ncluster_slots_ok:16383\r\n";
        assert_eq!(with(missing, me), ["cluster !"]);
    }

    #[test]
    fn clocks_out_of_step_are_told_of_the_server_or_of_this_machine() {
        let told = |given: &[(i64, i64)]| {
            let reports = given.iter().enumerate().map(|(at, clock)| {
                let (ahead_us, error_us) = (clock.0 * 1000, clock.1 * 1000);
                let mut answers = answers(&[]);
                answers.clock = Some(ClockOffset { ahead_us, error_us });
                ServerReport {
                    server: at.to_string(),
                    votes: None,
                    sentinels: Vec::new(),
                    answers: Ok(answers),
                }
            });
            let found = clocks(&reports.collect::<Vec<_>>());
            found.map(|it| format!("{}: {}", it.server, it.what))
        };
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[(1_000, 1)]), None);
        assert_eq!(told(&[(-1_090, 100)]), None, "within its error");
        let ahead = "0: its clock is 2s ahead of this machine's";
        assert_eq!(told(&[(2_000, 1)]).as_deref(), Some(ahead));
        let behind = "0: its clock is 3s behind this machine's";
        assert_eq!(told(&[(-3_000, 1)]).as_deref(), Some(behind));
        let apart = "1: its clock is 5s ahead of that of 2";
        let three = [(0, 1), (4_000, 1), (-1_000, 1)];
        assert_eq!(told(&three).as_deref(), Some(apart));
        let both = told(&[(9_000, 1), (9_100, 2)]);
        assert!(both.is_some_and(|it| it.contains("this machine's")));
    }

    #[test]
    fn sentinels_that_are_not_at_one_are_named() {
        let view = |primary: &str, epoch, sentinels| {
            Ok(Some(SentinelView {
                primary: primary.to_owned(),
                epoch,
                sentinels,
            }))
        };
        let told = |answers: Vec<Result<Option<SentinelView>, _>>| {
            let all = answers.into_iter().zip(["s1", "s2", "s3"]);
            let all = all.map(|(answer, address)| SentinelReport {
                address: address.to_owned(),
                answer,
            });
            let found = sentinels(&Of("s"), &all.collect::<Vec<_>>());
            let found = found.into_iter().map(|it| (it.level, it.what));
            found.collect::<Vec<_>>()
        };
        let good = || view("a:1", 2, 3);
        assert_eq!(told(vec![good(), good(), good()]), []);
        let fresh = || view("a:1", 0, 3);
        assert_eq!(told(vec![fresh(), fresh(), fresh()]), [], "no failover yet");
        let differ = "the sentinels name different primaries: a:1 (s1, s3); b:1 (s2)";
        let found = told(vec![good(), view("b:1", 2, 3), good()]);
        assert_eq!(found, [(Level::Danger, differ.to_owned())]);
        let group =
            "the sentinels do not know the same group: 2 sentinels (s3); 3 sentinels (s1, s2)";
        let found = told(vec![good(), good(), view("a:1", 2, 2)]);
        assert_eq!(found, [(Level::Warning, group.to_owned())]);
        let anew = "set anew, and since then without a word from the others: s2";
        let found = told(vec![good(), fresh(), good()]);
        assert_eq!(found, [(Level::Warning, anew.to_owned())]);
        let silent = Failure::NotSent(std::sync::Arc::new(std::fmt::Error));
        let found = told(vec![good(), Ok(None), Err(silent)]);
        let found: Vec<_> = found.iter().map(|(_, what)| &**what).collect();
        assert!(
            found[0].contains("s2 does not know this group"),
            "{found:?}"
        );
        let cause = std::fmt::Error;
        assert_eq!(found[1], format!("cannot be asked from here: {cause}"));
        assert_eq!(found.len(), 2);
        // A wrong password is nothing that the group lacks.
        let refused = Failure::Rejected(std::sync::Arc::new(cause));
        let found = told(vec![good(), good(), Err(refused)]);
        assert_eq!(found, [(Level::NotAllowed, cause.to_string())]);
    }

    #[test]
    fn two_names_of_one_primary_are_no_danger() {
        let level = |primaries: &[&str]| {
            let all = primaries.iter().map(|primary| SentinelReport {
                address: "s".to_owned(),
                answer: Ok(Some(SentinelView {
                    primary: (*primary).to_owned(),
                    epoch: 1,
                    sentinels: 3,
                })),
            });
            let found = sentinels(&Of("s"), &all.collect::<Vec<_>>());
            found.first().map(|it| it.level)
        };
        for (primaries, expected) in [
            (&["a:1", "a:1"][..], None),
            (&["localhost:1", "127.0.0.1:1"], Some(Level::Warning)),
            (&["[::1]:1", "localhost:1", "::1:1"], Some(Level::Warning)),
            (&["Redis-1:1", "redis-1:1"], Some(Level::Warning)),
            (&["localhost:1", "127.0.0.1:2"], Some(Level::Danger)),
            (&["10.0.0.1:1", "10.0.0.2:1"], Some(Level::Danger)),
            (&["a:1", "10.0.0.1:1", "10.0.0.2:1"], Some(Level::Danger)),
            (&["a:1", "b:1"], Some(Level::Danger)),
        ] {
            assert_eq!(level(primaries), expected, "{primaries:?}");
        }
    }
}
