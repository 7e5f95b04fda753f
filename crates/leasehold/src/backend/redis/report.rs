//! Asks a server what it says of itself. It only reads.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::BoxFuture;
use redis::{Cmd, Value};

use super::{Redis, commands::Commands};
use crate::{
    backend::{
        Failure,
        report::{Answers, ServerReport},
    },
    clock::Instant,
};

/// So many round trips are measured, one after the other.
const TRIPS: usize = 50;

/// So many of the latest slow commands are looked at.
const SLOW_MOST: u32 = 128;

/// The settings that no section of `INFO` shows.
const SETTINGS: [&str; 4] = ["save", "appendfsync", "timeout", "slowlog-log-slower-than"];

impl Redis {
    /// A server that does not answer is a report, too.
    pub(crate) fn report(&self) -> BoxFuture<'static, ServerReport> {
        let (commands, server) = (self.commands().cloned(), self.shown.to_string());
        Box::pin(async move {
            let answers = match commands {
                Some(commands) => ask(&commands).await,
                None => Ok(Answers::default()),
            };
            ServerReport {
                server,
                votes: None,
                answers,
            }
        })
    }
}

/// Fails if the server cannot be reached, or does not answer the first question.
async fn ask(commands: &Commands) -> Result<Answers, Failure> {
    // Has a connection made, if there is none: a refused login is no lack of a right.
    commands.is_named().await?;
    let info = allowed(commands, &redis::cmd("INFO")).await?;
    let mut answers = Answers {
        info: info.map(text),
        ..Answers::default()
    };
    // The server has answered in part: its answers up to here are kept.
    answers.broke_off = ask_more(commands, &mut answers).await.err();
    Ok(answers)
}

async fn ask_more(commands: &Commands, answers: &mut Answers) -> Result<(), Failure> {
    for name in SETTINGS {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(name);
        let Some(pairs) = allowed(commands, &get).await? else {
            break; // nor the others
        };
        let pairs: BTreeMap<String, String> = redis::from_redis_value(pairs).unwrap_or_default();
        answers.settings.extend(pairs);
    }
    let mut slow = redis::cmd("SLOWLOG");
    slow.arg("GET").arg(SLOW_MOST);
    let log = allowed(commands, &slow).await?;
    answers.slow = log.map(|log| slow_commands(&log, answers.number("server_time_usec")));
    if answers.field("cluster_enabled") == Some("1") {
        let ask = |what: &str| -> Cmd {
            let mut ask = redis::cmd("CLUSTER");
            ask.arg(what);
            ask
        };
        let state = allowed(commands, &ask("INFO")).await?;
        let nodes = allowed(commands, &ask("NODES")).await?;
        answers.cluster = state
            .zip(nodes)
            .map(|(state, nodes)| (text(state), text(nodes)));
    }
    let ping = redis::cmd("PING");
    for _ in 0..TRIPS {
        let began = Instant::now();
        if allowed(commands, &ping).await?.is_some() {
            answers.trips.push(began.elapsed());
        }
    }
    Ok(())
}

/// The answer to a command; `None` if the user may not send it.
async fn allowed(commands: &Commands, command: &Cmd) -> Result<Option<Value>, Failure> {
    match commands.command(command).await {
        Ok(value) => Ok(Some(value)),
        Err(Failure::Rejected(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn text(answer: Value) -> String {
    redis::from_redis_value(answer).unwrap_or_default()
}

/// How long ago each began, and how long it took, of an answer to `SLOWLOG GET`; by the server's clock, where it tells.
fn slow_commands(log: &Value, now_usec: Option<u64>) -> Vec<(Duration, Duration)> {
    let Value::Array(entries) = log else {
        return Vec::new();
    };
    let now = now_usec.map_or_else(
        || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
        },
        Duration::from_micros,
    );
    let read = |entry: &Value| {
        let Value::Array(fields) = entry else {
            return None;
        };
        let [_, Value::Int(began), Value::Int(micros), ..] = &fields[..] else {
            return None;
        };
        let began = Duration::from_secs(u64::try_from(*began).ok()?);
        let took = Duration::from_micros(u64::try_from(*micros).ok()?);
        Some((now.saturating_sub(began), took))
    };
    entries.iter().filter_map(read).collect()
}
