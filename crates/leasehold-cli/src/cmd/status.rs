//! `leasehold status`: who holds a name, since when, for how long, and who waits.

use std::time::{Duration, SystemTime};

use leasehold::{Client, Holder, Status};
use serde_json::{Value, json};

use crate::{
    args,
    exit::{Exit, Failure},
    output::{self, human, millis, visible},
};

pub(crate) async fn run(args: &args::Status) -> Result<Exit, Failure> {
    let client = Client::connect(&args.server.url()).await?;
    let status = client.status(&args.name).await?;
    if args.json {
        output::answer(&document(&status));
    } else {
        anstream::print!("{}", picture(&status, SystemTime::now()));
    }
    Ok(Exit::Done)
}

/// The status as `--json` prints it; durations in milliseconds, instants in milliseconds since 1970.
pub(crate) fn document(status: &Status) -> Value {
    json!({
        "name": status.name,
        "held": status.holder().is_some(),
        "holder": status.holder().map(holder),
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
        let _ = write!(text, "\n  {key:<9}{value}");
    };
    match status.holder() {
        None => row("free", "nobody holds it"),
        Some(holder) => {
            let client = format!("client {}", visible(&holder.client));
            match &holder.label {
                Some(label) => row("held by", &format!("{}  ({client})", visible(label))),
                None => row("held by", &client),
            }
            if let Some(since) = holder.since {
                let ago = now.duration_since(since).unwrap_or_default();
                row("since", &format!("{} ago, {}", human(ago), at(since)));
            }
            row("lease", &lease(holder.remaining));
            if holder.holds > 1 {
                row(
                    "entered",
                    &format!("{} times by the same owner", holder.holds),
                );
            }
        }
    }
    row("waiting", &waiting(status.waiting_clients));
    text.push('\n');
    text
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
