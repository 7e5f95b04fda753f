//! `leasehold status`: the holders of a name, since when, for how long, and how many wait.

use std::time::SystemTime;

use leasehold::{Access, Holder, LockKind, QueuedClient, ServerVote, Status};
use serde_json::{Value, json};

use crate::{
    args,
    exit::{Exit, Failure},
    kinds::{self, has_no_permits},
    life::Life,
    output::{self, human, millis, visible},
};

pub(crate) async fn run(args: &args::Status) -> Result<Exit, Failure> {
    let client = args.server.address()?.connect().await?;
    let (_, status) = kinds::look(&client, args.kind, &args.name).await?;
    if !args.quiet && is_pattern(&args.name) && is_free(&status) {
        output::say(&output::remark(&format!(
            "status takes one name, and no lock has this one; `leasehold ls '{}'` lists the locks whose names match",
            args.name
        )));
    }
    if args.quiet {
        return Ok(match status.holder() {
            Some(_) => Exit::Done,
            None => Exit::Free,
        });
    }
    if args.json {
        output::answer(&document(&status))?;
    } else {
        let mut text = picture(&status, SystemTime::now());
        if args.kind.is_none() && kinds::is_bare_number(&status) {
            text.push_str(
                "  or         another kind with a number: --kind semaphore, --kind latch\n",
            );
        }
        output::print(&text)?;
    }
    Ok(Exit::Done)
}

/// Whether a name may be meant as many.
fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

fn is_free(status: &Status) -> bool {
    status.holders.is_empty() && !kinds::is_bare_number(status)
}

/// The status as `--json` prints it; durations in milliseconds, instants in milliseconds since 1970.
pub(crate) fn document(status: &Status) -> Value {
    json!({
        "name": status.name,
        "kind": status.kind.as_str(),
        "held": status.holder().is_some(),
        "holder": status.holder().map(|it| holder(status, it)),
        "holders": status.holders.iter().map(|it| holder(status, it)).collect::<Vec<_>>(),
        "available": status.available,
        "count": status.count,
        "token": status.token,
        "waiting_clients": status.waiting_clients,
        "queue": status.queue.iter().map(waiter).collect::<Vec<_>>(),
        "server": status.server,
        "votes": status.votes.iter().map(|it| vote(status, it)).collect::<Vec<_>>(),
        "replica": status.replica,
    })
}

/// The word of one server of several.
fn vote(status: &Status, vote: &ServerVote) -> Value {
    json!({
        "server": vote.server,
        "holder": vote.holder.as_ref().map(|it| holder(status, it)),
        "trouble": vote.trouble,
        "quarantine_ms": vote.quarantine.map(millis),
    })
}

fn waiter(waiter: &QueuedClient) -> Value {
    json!({
        "owner": waiter.owner,
        "client": waiter.client,
        "label": waiter.label,
        "thread": waiter.thread,
        "access": access(waiter.access),
        "since_ms": since_ms(waiter.since),
        "connected": waiter.connected,
    })
}

fn since_ms(since: Option<SystemTime>) -> Option<u64> {
    let since = since?.duration_since(SystemTime::UNIX_EPOCH);
    since.ok().map(millis)
}

fn holder(status: &Status, holder: &Holder) -> Value {
    json!({
        "owner": kinds::owner(status, holder),
        "client": Some(&holder.client).filter(|client| !client.is_empty()),
        "label": holder.label,
        "connected": holder.connected,
        "state": Life::of(holder).word(),
        "idle_ms": holder.idle.map(millis),
        "thread": holder.thread,
        "access": access(holder.access),
        "holds": holder.holds,
        "since_ms": since_ms(holder.since),
        "remaining_ms": holder.remaining.map(millis),
    })
}

/// How a holder shares the lock, as every answer calls it.
pub(crate) fn access(access: Access) -> Value {
    match access {
        Access::Shared => json!("shared"),
        Access::Permits(count) => json!({ "permits": count }),
        _ => json!("exclusive"),
    }
}

pub(super) fn picture(status: &Status, now: SystemTime) -> String {
    use std::fmt::Write;

    let bold = anstyle::Style::new().bold();
    let mut text = format!("{bold}{}{bold:#}", visible(&status.name));
    let mut row = |key: &str, value: &str| {
        let _ = write!(text, "\n  {key:<11}{value}");
    };
    if !status.holders.is_empty() || status.available.is_some() || status.count.is_some() {
        row("kind", status.kind.as_str());
    }
    match status.count {
        Some(0) => row("open", "the count is zero, or not set"),
        Some(count) => row("count", &count.to_string()),
        None if status.holders.is_empty() && !has_no_permits(status) => {
            row("free", no_holder(status));
        }
        None => {}
    }
    for holder in &status.holders {
        let client = match holder.client.as_str() {
            _ if kinds::may_be_data(status) => kinds::NO_LOCKS_VALUE.to_owned(),
            _ if kinds::is_of_another_library(status, holder) => {
                match kinds::owner(status, holder) {
                    Some(token) => format!("another library, token {}", visible(token)),
                    None => "another library".to_owned(),
                }
            }
            _ if matches!(holder.access, Access::Permits(_)) && !holder.owner.contains(':') => {
                format!("permit {}", visible(&holder.owner))
            }
            client => format!("client {}", visible(client)),
        };
        let does = verb(holder, status.kind == LockKind::RwLock);
        match kinds::who(holder.label.as_deref(), holder.thread) {
            Some(who) => row(does, &format!("{who}  ({client})")),
            None => row(does, &client),
        }
        if let Access::Permits(count) = holder.access
            && count > 1
        {
            row("permits", &count.to_string());
        }
        if let Some(since) = holder.since {
            let ago = now.duration_since(since).unwrap_or_default();
            row(
                "since",
                &format!("{} ago at most, {}", human(ago), at(since)),
            );
        }
        // For `unlock --if-owner`.
        if !kinds::may_be_data(status)
            && let Some(owner) = kinds::owner(status, holder)
        {
            row("owner", &visible(owner));
        }
        row("lease", &Life::of(holder).told(holder.remaining));
        if holder.holds > 1 {
            let times = match holder.access {
                Access::Shared => format!("by {} readers of this process", holder.holds),
                _ => format!("{} times by the same owner", holder.holds),
            };
            row("entered", &times);
        }
    }
    if let Some(available) = status.available {
        row("permits", &permits(status, available));
    }
    if let Some(token) = status.token {
        row(
            "token",
            &format!("{token} is the last that was given or reserved"),
        );
    }
    row("waiting", &waiting(status));
    for (before, waiter) in status.queue.iter().enumerate() {
        row(
            if before == 0 { "next" } else { "then" },
            &in_queue(waiter, now),
        );
    }
    for vote in &status.votes {
        row("vote", &of_server(status, vote));
    }
    if status.replica {
        row(
            "server",
            &format!(
                "{}, a replica: it may not know yet what its primary does",
                visible(&status.server)
            ),
        );
    } else if status.votes.is_empty() {
        row("server", &visible(&status.server));
    }
    text.push('\n');
    text
}

/// The answer of one server of several.
fn of_server(status: &Status, vote: &ServerVote) -> String {
    let server = visible(&vote.server);
    let says = match (&vote.trouble, &vote.holder) {
        (Some(trouble), _) => format!("no answer: {}", visible(trouble)),
        (None, None) => "free".to_owned(),
        (None, Some(there)) => {
            let is_the = status.holder().is_some_and(|it| it.owner == there.owner);
            let left = there
                .remaining
                .map_or(String::new(), |left| format!(", ends in {}", human(left)));
            if is_the {
                format!("for the holder{left}")
            } else {
                let owner = kinds::owner(status, there);
                let owner = owner.map_or(kinds::NO_LOCKS_VALUE.to_owned(), visible);
                format!("for another, {owner}{left}")
            }
        }
    };
    match vote.quarantine {
        Some(left) => format!(
            "{server}  {says}; restarted, its vote counts in {}",
            human(left)
        ),
        None => format!("{server}  {says}"),
    }
}

/// A semaphore without leases knows those of this library only.
fn no_holder(status: &Status) -> &'static str {
    match status.available {
        Some(_) => "no holder of a permit is known",
        None => "nobody holds it",
    }
}

/// How a holder shares the lock; a mutex is always just held.
fn verb(holder: &Holder, exactly: bool) -> &'static str {
    match holder.access {
        Access::Shared => "read by",
        Access::Exclusive if exactly => "written by",
        _ => "held by",
    }
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A waiter: its label, else its thread, else its client.
fn in_queue(waiter: &QueuedClient, now: SystemTime) -> String {
    let who = kinds::who(waiter.label.as_deref(), waiter.thread);
    let who = who.unwrap_or_else(|| format!("client {}", visible(&waiter.client)));
    let wants = match waiter.access {
        Access::Shared => ", to read",
        _ => "",
    };
    let since = waiter
        .since
        .and_then(|since| now.duration_since(since).ok());
    let since = since.map_or(String::new(), |since| format!(", for {}", human(since)));
    let connected = match waiter.connected {
        Some(false) => ", not connected",
        _ => "",
    };
    format!("{who}{wants}{since}{connected}")
}

fn permits(status: &Status, free: i64) -> String {
    match free {
        _ if has_no_permits(status) => {
            "there are none: no client has set how many, or one has set 0".to_owned()
        }
        ..0 => format!("none is free, and {} too many are out", free.unsigned_abs()),
        0 => "none is free".to_owned(),
        1 => "1 is free".to_owned(),
        n => format!("{n} are free"),
    }
}

fn waiting(status: &Status) -> String {
    let clients = match (status.waiting_clients, status.queue.len()) {
        // Some of them have died, or wait in one process.
        (heard, queued) if u64::try_from(queued).unwrap_or(u64::MAX) > heard => {
            format!("{queued} in the queue")
        }
        (0, _) => "nobody".to_owned(),
        (1, _) => "1 client".to_owned(),
        (n, _) => format!("{n} clients"),
    };
    match status.kind {
        LockKind::SpinMutex => format!("{clients}; those of a spin mutex are not seen"),
        LockKind::PlainMutex => format!("{clients}; those of other libraries are not seen"),
        _ => clients,
    }
}
