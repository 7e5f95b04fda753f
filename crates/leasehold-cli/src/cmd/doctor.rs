//! `leasehold doctor`: whether a server may be trusted with locks.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use leasehold::{Client, Error, ErrorKind, Finding, Level, LockKind, Released, Shutdown, Status};
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use crate::{
    args::Doctor,
    exit::{Exit, Failure},
    kinds::{self, Kind},
    life,
    output::{self, human, visible},
    server::Address,
};

/// A finding, of the server or of the trial.
struct Found {
    level: Level,
    word: String,
    /// Empty: of all servers.
    server: String,
    what: String,
    leads_to: String,
    remedy: String,
    is_allowed: bool,
}

impl From<Finding> for Found {
    fn from(finding: Finding) -> Self {
        Found {
            level: finding.level,
            word: finding.word.to_owned(),
            server: finding.server,
            what: finding.what,
            leads_to: finding.leads_to,
            remedy: finding.remedy,
            is_allowed: false,
        }
    }
}

impl Found {
    fn new(level: Level, word: &str, what: String) -> Found {
        Found::fault(level, word, what, "", "")
    }

    fn fault(level: Level, word: &str, what: String, leads_to: &str, remedy: &str) -> Found {
        Found {
            level,
            word: word.to_owned(),
            server: String::new(),
            what,
            leads_to: leads_to.to_owned(),
            remedy: remedy.to_owned(),
            is_allowed: false,
        }
    }
}

pub(crate) async fn run(args: &Doctor) -> Result<Exit, Failure> {
    let stopped = |kind| signal(kind).map_err(|error| Failure::internal("hear signals", &error));
    let (mut interrupt, mut terminate) = (
        stopped(SignalKind::interrupt())?,
        stopped(SignalKind::terminate())?,
    );
    // Both clients, so that a signal has them give back what they hold.
    let clients = Mutex::new(Vec::new());
    let stopped = tokio::select! {
        exit = examine(args, &clients) => return exit,
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    let clients = clients.into_inner().unwrap_or_default();
    // The waiter's first, or it would have the lock next.
    for client in clients.iter().rev() {
        let grace = Duration::ZERO;
        client.shutdown(Shutdown::ReleaseAll { grace }).await;
    }
    Ok(Exit::by_signal(stopped.as_raw_value()))
}

/// The clients of the command.
type Clients = Mutex<Vec<Client>>;

async fn connect(address: &Address, clients: &Clients) -> Result<Client, Failure> {
    let client = address.connect().await?;
    let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
    clients.push(client.clone());
    Ok(client)
}

async fn examine(args: &Doctor, clients: &Clients) -> Result<Exit, Failure> {
    let address = args.server.address()?;
    address.refuse_memory()?;
    let client = connect(&address, clients).await?;
    let mut all: Vec<Found> = client
        .examine()
        .await?
        .into_iter()
        .map(Found::from)
        .collect();
    all.extend(permissions(&address, clients, &client, args.name.as_deref()).await?);
    match look(&client).await {
        Ok(locks) => {
            all.push(endless(&locks));
            all.extend(waiters(&client, &locks).await);
        }
        Err(why) => all.push(why),
    }
    for found in &mut all {
        found.is_allowed = args.allow.contains(&found.word);
    }
    all.sort_by_key(|found| std::cmp::Reverse(found.level));
    let count = |level| {
        let open = all.iter().filter(|found| !found.is_allowed);
        open.filter(|found| found.level == level).count()
    };
    let (dangers, warnings) = (count(Level::Danger), count(Level::Warning));
    if args.json {
        output::answer(&json!({
            "findings": all.iter().map(document).collect::<Vec<_>>(),
            "dangers": dangers,
            "warnings": warnings,
        }))?;
    } else {
        output::print(&(picture(&all) + &verdict(&all, dangers, warnings)))?;
    }
    Ok(if dangers > 0 || args.strict && warnings > 0 {
        Exit::CheckFailed
    } else {
        Exit::Done
    })
}

/// A waiter that is woken has its lock sooner, or within so many round trips.
const WOKEN: Duration = Duration::from_secs(1);
const WOKEN_TRIPS: u32 = 10;

/// A waiter that is not woken finds the lock by polling, mostly sooner.
const PATIENCE: Duration = Duration::from_secs(10);

const PERMISSIONS: &str = "permissions";
const LOCKING: &str = "locking";

/// Whether all that a lock needs is permitted, by doing it.
async fn permissions(
    address: &Address,
    clients: &Clients,
    client: &Client,
    name: Option<&str>,
) -> Result<Vec<Found>, Failure> {
    let own;
    let name = if let Some(name) = name {
        name
    } else {
        own = format!("leasehold-doctor:{}", client.id());
        &own
    };
    let shown = visible(name);
    let turn = match connect(address, clients).await {
        Ok(other) => hand_over(client, &other, name).await,
        Err(failure) => {
            let remedy = "look at the server, and at the network";
            return Ok(vec![danger(LOCKING, failure.message, remedy)]);
        }
    };
    let turn = match turn {
        Ok(Some(turn)) => turn,
        Err(error) if error.kind() == ErrorKind::Invalid => return Err(error.into()),
        Ok(None) => return Err(is_in_use(&shown, "it is held")),
        Err(error) if error.to_string().contains("WRONGTYPE") => {
            return Err(is_in_use(&shown, &error.to_string()));
        }
        Err(error) => return Ok(vec![refused(&error)]),
    };
    let verdict = turn.verdict(&shown);
    // The name may still be held: another kind would be refused for that alone.
    if verdict.level == Level::Danger {
        return Ok(vec![verdict]);
    }
    let mut all = vec![verdict];
    all.extend(of_other_kinds(client, name).await);
    Ok(all)
}

fn danger(word: &str, what: String, remedy: &str) -> Found {
    Found::fault(Level::Danger, word, what, "a mutex does not work", remedy)
}

/// The finding in a refused request for the lock.
fn refused(error: &Error) -> Found {
    let error = error.to_string();
    if lacks_right(&error) {
        let remedy =
            "docs/keys.md lists all rights; or give --name a name that the server's user may touch";
        danger(PERMISSIONS, error, remedy)
    } else {
        danger(LOCKING, error, "do what these words say")
    }
}

/// The other kinds, as far as something is to be said of them.
async fn of_other_kinds(client: &Client, name: &str) -> Vec<Found> {
    let mut all = Vec::new();
    for (kind, tried) in other_kinds(client, name).await {
        let what = match tried {
            Ok(true) => continue,
            Ok(false) => format!("a {kind} could be locked, and not given back"),
            // A majority has none of that kind.
            Err(error) if error.kind() == ErrorKind::Invalid => continue,
            Err(error) if lacks_right(&error.to_string()) => format!("for a {kind}: {error}"),
            Err(error) => {
                all.push(refused(&error));
                break;
            }
        };
        let remedy = "if you use this kind: give the user its rules of docs/keys.md";
        let found = Found::fault(Level::NotAllowed, PERMISSIONS, what, "", remedy);
        all.push(found);
    }
    all
}

/// Whether the server's user lacks a right, say these words of a refusal.
fn lacks_right(error: &str) -> bool {
    error.contains("NOPERM") || error.contains("lacks a right")
}

/// `--name` names what is no free name.
fn is_in_use(shown: &str, why: &str) -> Failure {
    let message = format!("{shown} is in use: {why}; give --name a name that no program uses");
    Failure::new(Exit::Busy, message)
}

/// A hand-over from one client to another.
struct Turn {
    /// The server counted the waiter: it listens.
    is_counted: bool,
    /// From the release until the waiter had it, if it had.
    took: Option<Duration>,
    is_released: bool,
    /// A waiter that was woken has it within this time.
    soon: Duration,
}

impl Turn {
    fn verdict(&self, shown: &str) -> Found {
        let remedy = "mostly +publish, or the pattern of a channel, is missing in the rules of the server's user: see ACL LOG, \
            docs/keys.md, and -v";
        if !self.is_released {
            let what = format!("{shown} could be locked, and not given back");
            return danger(PERMISSIONS, what, remedy);
        }
        let Some(took) = self.took else {
            let waited = human(PATIENCE);
            let what =
                format!("a waiter for {shown} did not have it within {waited} of its release");
            return danger(PERMISSIONS, what, remedy);
        };
        let is_soon = took < self.soon;
        let took = format!("{:.1} ms", took.as_secs_f64() * 1000.0);
        if self.is_counted && is_soon {
            let did = format!("locked, waited, was woken in {took}, released, on {shown}");
            return Found::new(Level::Good, PERMISSIONS, did);
        }
        let what =
            format!("a waiter for {shown} was not woken, and had it {took} after its release");
        let leads_to = "waiters poll: hand-overs are slower, and cost the server more";
        let remedy = "mostly +subscribe, or the pattern of a channel, is missing: see ACL LOG, docs/keys.md, and -v; or the server \
            takes no more connections";
        Found::fault(Level::Warning, PERMISSIONS, what, leads_to, remedy)
    }
}

/// A client locks; another waits, is woken, and has it next. `None`: another owner has the name.
async fn hand_over(one: &Client, other: &Client, name: &str) -> Result<Option<Turn>, Error> {
    let (mutex, waits) = (one.mutex(name), other.mutex(name));
    let asked = Instant::now();
    let Some(held) = mutex.try_lock().await? else {
        return Ok(None);
    };
    let mut soon = WOKEN.max(asked.elapsed() * WOKEN_TRIPS);
    let waits = tokio::spawn(async move { waits.try_lock_for(PATIENCE).await });
    let begun = Instant::now();
    let mut is_counted = false;
    while !is_counted && begun.elapsed() < soon {
        sleep(Duration::from_millis(5)).await;
        let asked = Instant::now();
        is_counted = one.status(name).await?.waiting_clients > 0;
        soon = soon.max(asked.elapsed() * WOKEN_TRIPS);
    }
    let freed = Instant::now();
    let mut is_released = held.release().await? == Released::Freed;
    let next = waits.await.expect("the waiter does not panic")?;
    let took = next.as_ref().map(|_| freed.elapsed());
    if let Some(next) = next {
        is_released &= next.release().await? == Released::Freed;
    }
    Ok(Some(Turn {
        is_counted,
        took,
        is_released,
        soon,
    }))
}

/// Takes a lock, and gives it back: whether that was done.
macro_rules! once {
    ($try_lock:expr) => {
        async {
            Ok(match $try_lock.await? {
                Some(guard) => guard.release().await? == Released::Freed,
                // In use by now, as of two that try the same name.
                None => true,
            })
        }
        .await
    };
}

/// The kinds that need more keys and commands than a mutex, up to the first that stays held.
async fn other_kinds(client: &Client, name: &str) -> Vec<(&'static str, Result<bool, Error>)> {
    let (fair, plain, rw) = (
        client.fair_mutex(name),
        client.plain_mutex(name),
        client.rw_lock(name),
    );
    let mut tried = vec![("plain mutex", once!(plain.try_lock()))];
    for kind in ["fair mutex", "reader", "writer"] {
        if matches!(tried.last(), Some((_, Ok(false)))) {
            break;
        }
        let done = match kind {
            "fair mutex" => once!(fair.try_lock()),
            "reader" => once!(rw.try_read()),
            _ => once!(rw.try_write()),
        };
        tried.push((kind, done));
    }
    tried
}

/// So many names are listed.
const LISTED: usize = 3;

/// The keys of a large server are not all looked at.
const LOOKS_FOR: Duration = Duration::from_secs(10);

const ENDLESS: &str = "endless";

/// The locks of the server, as far as they matter here.
struct Locks {
    many: usize,
    /// Names of locks without an end: a holder that crashed keeps them.
    endless: BTreeSet<String>,
    /// Locks in whose queues a client stands.
    queued: Vec<Status>,
    looked_at: String,
    /// Why the keys of a node of a cluster were not looked at.
    missing: Option<Error>,
}

/// Looks at the keys; else what is to be said of that.
async fn look(client: &Client) -> Result<Locks, Found> {
    let mut find = client.find("*");
    let mut locks = Locks {
        many: 0,
        endless: BTreeSet::new(),
        queued: Vec::new(),
        looked_at: "all keys were looked at".to_owned(),
        missing: None,
    };
    let (begun, mut has_answered) = (Instant::now(), false);
    loop {
        let before = find.progress();
        if begun.elapsed() > LOOKS_FOR {
            locks.looked_at = format!(
                "{:.0} % of the keys were looked at",
                100.0 * find.progress()
            );
            break;
        }
        let page = match find.next().await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            // Of a node: the others may answer.
            Err(error) if find.progress() > before => {
                locks.missing = Some(error);
                continue;
            }
            Err(error) => return Err(not_listed(&error)),
        };
        has_answered = true;
        for lock in page {
            locks.many += 1;
            // The permits of a semaphore without leases have none by design.
            let has_leases = !matches!(lock.kind, LockKind::Semaphore | LockKind::Latch);
            if has_leases && lock.holders.iter().any(|holder| holder.remaining.is_none()) {
                locks.endless.insert(lock.name.clone());
            }
            if !lock.queue.is_empty() && locks.queued.len() < QUEUES {
                locks.queued.push(lock);
            }
        }
    }
    match &locks.missing {
        Some(error) if !has_answered => Err(not_listed(error)),
        _ => Ok(locks),
    }
}

fn not_listed(error: &Error) -> Found {
    let error = error.to_string();
    let remedy = if error.contains("NOPERM") {
        "to list locks, give the user the rules of docs/keys.md"
    } else {
        ""
    };
    Found::fault(Level::NotAllowed, ENDLESS, error, "", remedy)
}

/// The first of these names.
fn listed(names: &BTreeSet<String>) -> String {
    let first: Vec<_> = names
        .iter()
        .take(LISTED)
        .map(|name| visible(name))
        .collect();
    first.join(", ") + &output::others(names.len() - first.len())
}

/// The locks that no crash frees.
fn endless(locks: &Locks) -> Found {
    let looked_at = &locks.looked_at;
    if let Some(error) = &locks.missing
        && locks.endless.is_empty()
    {
        return not_listed(error);
    }
    if locks.endless.is_empty() {
        let what = match locks.many {
            0 => format!("no lock is held; {looked_at}"),
            many => format!("{}, each with an end; {looked_at}", plural(many, "lock")),
        };
        return Found::new(Level::Good, ENDLESS, what);
    }
    let what = format!(
        "locks without an end: {}; {looked_at}",
        listed(&locks.endless)
    );
    let leads_to = "no crash of their holders frees them";
    let remedy =
        "see who has it: leasehold status NAME; if it is dead: leasehold unlock --force NAME";
    Found::fault(Level::Warning, ENDLESS, what, leads_to, remedy)
}

/// So many queues are looked at: each look lists the connections of a server.
const QUEUES: usize = 64;

/// The entries in these queues whose clients are not connected, by lock and owner.
async fn dead_in(client: &Client, queued: &[Status]) -> BTreeSet<(String, String)> {
    let mut dead = BTreeSet::new();
    for lock in queued {
        // A queue that is gone by now has no entry to speak of.
        let Ok((_, now)) = kinds::look(client, Kind::of(lock.kind), &lock.name).await else {
            continue;
        };
        let entries = now.queue.into_iter();
        let gone = entries.filter(|entry| entry.connected == Some(false));
        dead.extend(gone.map(|entry| (lock.name.clone(), entry.owner)));
    }
    dead
}

/// The waiters whose clients have ended.
async fn waiters(client: &Client, locks: &Locks) -> Option<Found> {
    let before = dead_in(client, &locks.queued).await;
    if before.is_empty() {
        return None;
    }
    // A client that lives is connected again by then.
    sleep(life::GONE_FOR).await;
    let now = dead_in(client, &locks.queued).await;
    let dead: BTreeSet<_> = before.intersection(&now).collect();
    let names: BTreeSet<String> = dead.iter().map(|(name, _)| name.clone()).collect();
    (!dead.is_empty()).then(|| {
        let what = format!(
            "{} in the queue of {}, whose client has ended",
            plural(dead.len(), "waiter"),
            listed(&names)
        );
        let leads_to =
            "a release passes over it; but one that waited to write keeps new readers out for up to 10 s";
        let remedy = "nothing: it goes with the next release, or with the queue; if it comes again, see why these processes die";
        Found::fault(Level::Warning, "waiters", what, leads_to, remedy)
    })
}

/// The mark of a level, and how it is shown.
fn mark(found: &Found) -> (char, Style) {
    let color = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
    match found.level {
        _ if found.is_allowed => ('○', Style::new().dimmed()),
        Level::Danger => ('✗', color(AnsiColor::Red).bold()),
        Level::Warning => ('!', color(AnsiColor::Yellow).bold()),
        Level::Good => ('✓', color(AnsiColor::Green)),
        _ => ('?', Style::new().dimmed()),
    }
}

/// Where what is found begins, behind its mark and its word.
const INDENT: &str = "                ";

fn picture(all: &[Found]) -> String {
    let servers: BTreeSet<_> = all.iter().map(|found| &found.server).collect();
    // The trial is of no single one.
    let many = servers.iter().filter(|server| !server.is_empty()).count() > 1;
    let mut text = String::new();
    for found in all {
        let (mark, style) = mark(found);
        let server = match &found.server {
            server if many && !server.is_empty() => format!("{}: ", visible(server)),
            _ => String::new(),
        };
        let allowed = if found.is_allowed { " (accepted)" } else { "" };
        let _ = writeln!(
            text,
            "{style}{mark}{style:#} {:<13} {server}{}{allowed}",
            found.word,
            visible(&found.what)
        );
        if found.is_allowed {
            continue;
        }
        if !found.leads_to.is_empty() {
            let _ = writeln!(text, "{INDENT}{}", found.leads_to);
        }
        if !found.remedy.is_empty() {
            let _ = writeln!(text, "{INDENT}→ {}", found.remedy);
        }
    }
    text
}

fn plural(count: usize, word: &str) -> String {
    match count {
        0 => format!("no {word}"),
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}

fn verdict(all: &[Found], dangers: usize, warnings: usize) -> String {
    let mut words: Vec<&str> = Vec::new();
    for found in all
        .iter()
        .filter(|it| it.level >= Level::Warning && !it.is_allowed)
    {
        if !words.contains(&found.word.as_str()) {
            words.push(&found.word);
        }
    }
    let accept = match words.len() {
        0 => String::new(),
        1 => format!("; to accept it: --allow {}", words[0]),
        _ => format!("; to accept them: --allow {}", words.join(" --allow ")),
    };
    format!(
        "{}, {}{accept}\n",
        plural(dangers, "danger"),
        plural(warnings, "warning")
    )
}

fn document(found: &Found) -> Value {
    let level = match found.level {
        Level::Danger => "danger",
        Level::Warning => "warning",
        Level::Good => "good",
        _ => "not allowed",
    };
    json!({
        "level": level,
        "word": found.word,
        "server": (!found.server.is_empty()).then_some(&found.server),
        "what": found.what,
        "leads_to": found.leads_to,
        "remedy": found.remedy,
        "allowed": found.is_allowed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_has_its_mark_its_effect_and_its_remedy() {
        let danger = Found::fault(
            Level::Danger,
            "eviction",
            "allkeys-lru".to_owned(),
            "two holders",
            "noeviction",
        );
        let accepted = Found {
            is_allowed: true,
            ..Found::new(Level::Warning, "persistence", "none\u{1b}".to_owned())
        };
        let all = [danger, accepted];
        let shown = anstream::adapter::strip_str(&picture(&all)).to_string();
        assert_eq!(
            shown,
            "✗ eviction      allkeys-lru\n                two holders\n                → noeviction\n\
             ○ persistence   none\\u{1b} (accepted)\n"
        );
        assert_eq!(
            verdict(&all, 1, 0),
            "1 danger, no warning; to accept it: --allow eviction\n"
        );
        let mut both = all;
        both[1].is_allowed = false;
        assert_eq!(
            verdict(&both, 1, 1),
            "1 danger, 1 warning; to accept them: --allow eviction --allow persistence\n"
        );
        both[1].is_allowed = true;
        assert_eq!(verdict(&both[1..], 0, 0), "no danger, no warning\n");
    }
}
