//! `leasehold status`: the holders of a name, since when, for how long, and how many wait.

use std::time::{Duration, SystemTime};

use leasehold::{Access, Client, Error, ErrorKind, Holder, LockKind, Status};
use serde_json::{Value, json};

use crate::{
    args::{self, Kind},
    exit::{Exit, Failure},
    output::{self, human, millis, visible},
};

pub(crate) async fn run(args: &args::Status) -> Result<Exit, Failure> {
    let client = Client::connect(&args.server.url()).await?;
    let status = of(&client, args.kind, &args.name).await?;
    if args.json {
        output::answer(&document(&status));
    } else {
        anstream::print!("{}", picture(&status, SystemTime::now()));
    }
    Ok(Exit::Done)
}

/// The status of a lock of this kind, or of the kind that the server has under the name.
pub(crate) async fn of(client: &Client, kind: Option<Kind>, name: &str) -> Result<Status, Error> {
    let Some(kind) = kind else {
        let mut answer = of_kind(client, Kind::Mutex, name).await;
        if answer.is_ok() {
            // Both kinds of mutex are at one key; only a fenced one has a token beside it.
            let fenced = of_kind(client, Kind::Fenced, name).await;
            return fenced
                .or(answer.clone())
                .and_then(|fenced| match fenced.token {
                    Some(_) => Ok(fenced),
                    None => answer,
                });
        }
        // A semaphore last: the lock of another library may be a number, too, and the plain mutex tells them apart.
        for other in [Kind::Fenced, Kind::Rw, Kind::Plain, Kind::Semaphore] {
            if !answer.as_ref().is_err_and(is_of_another_kind) {
                break;
            }
            answer = of_kind(client, other, name).await;
        }
        return answer;
    };
    of_kind(client, kind, name).await
}

fn is_of_another_kind(error: &Error) -> bool {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    error.kind() == ErrorKind::Rejected && cause.is_some_and(|cause| cause.contains("WRONGTYPE"))
}

async fn of_kind(client: &Client, kind: Kind, name: &str) -> Result<Status, Error> {
    match kind {
        Kind::Mutex => client.mutex(name).status().await,
        Kind::Fenced => client.fenced_mutex(name).status().await,
        Kind::Rw => client.rw_lock(name).status().await,
        Kind::Semaphore => client.leased_semaphore(name).status().await,
        Kind::Plain => client.plain_mutex(name).status().await,
    }
}

/// The status as `--json` prints it; durations in milliseconds, instants in milliseconds since 1970.
pub(crate) fn document(status: &Status) -> Value {
    json!({
        "name": status.name,
        "kind": status.kind.as_str(),
        "held": status.holder().is_some(),
        "holder": status.holder().map(holder),
        "holders": status.holders.iter().map(holder).collect::<Vec<_>>(),
        "available": status.available,
        "token": status.token,
        "waiting_clients": status.waiting_clients,
    })
}

fn holder(holder: &Holder) -> Value {
    let since = holder
        .since
        .and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
    json!({
        "owner": holder.owner,
        "client": holder.client,
        "label": holder.label,
        "access": match holder.access {
            Access::Shared => json!("shared"),
            Access::Permits(count) => json!({ "permits": count }),
            _ => json!("exclusive"),
        },
        "holds": holder.holds,
        "since_ms": since.map(millis),
        "remaining_ms": holder.remaining.map(millis),
    })
}

fn picture(status: &Status, now: SystemTime) -> String {
    use std::fmt::Write;

    let bold = anstyle::Style::new().bold();
    let mut text = format!("{bold}{}{bold:#}", visible(&status.name));
    let mut row = |key: &str, value: &str| {
        let _ = write!(text, "\n  {key:<11}{value}");
    };
    if status.holders.is_empty() {
        row("free", "nobody holds it");
    }
    for holder in &status.holders {
        let client = match holder.client.as_str() {
            "" if status.kind == LockKind::PlainMutex => {
                format!("another library, token {}", visible(&holder.owner))
            }
            "" => format!("permit {}", visible(&holder.owner)),
            client => format!("client {}", visible(client)),
        };
        let does = access(holder, status.kind == LockKind::RwLock);
        match &holder.label {
            Some(label) => row(does, &format!("{}  ({client})", visible(label))),
            None => row(does, &client),
        }
        if let Access::Permits(count) = holder.access
            && count > 1
        {
            row("permits", &count.to_string());
        }
        if let Some(since) = holder.since {
            let ago = now.duration_since(since).unwrap_or_default();
            row("since", &format!("{} ago, {}", human(ago), at(since)));
        }
        row("lease", &lease(holder.remaining));
        if holder.holds > 1 {
            let times = match holder.access {
                Access::Shared => format!("by {} readers of this process", holder.holds),
                _ => format!("{} times by the same owner", holder.holds),
            };
            row("entered", &times);
        }
    }
    if let Some(available) = status.available {
        row("permits", &format!("{available} are free"));
    }
    if let Some(token) = status.token {
        row(
            "token",
            &format!("{token} is the last that was given or reserved"),
        );
    }
    row("waiting", &waiting(status.waiting_clients));
    text.push('\n');
    text
}

/// How a holder shares the lock; a mutex is always just held.
fn access(holder: &Holder, exactly: bool) -> &'static str {
    match holder.access {
        Access::Shared => "read by",
        Access::Exclusive if exactly => "written by",
        _ => "held by",
    }
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn lease(remaining: Option<Duration>) -> String {
    match remaining {
        Some(left) => format!("ends in {} unless it is renewed", human(left)),
        None => "has no end: a holder that crashed would keep it for ever".to_owned(),
    }
}

fn waiting(clients: u64) -> String {
    match clients {
        0 => "nobody".to_owned(),
        1 => "1 client".to_owned(),
        n => format!("{n} clients"),
    }
}
