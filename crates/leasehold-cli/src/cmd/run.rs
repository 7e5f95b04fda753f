//! `leasehold run`: hold a lock while a command runs.

use std::time::{Duration, Instant};

use leasehold::{Client, Guard, Mutex, Released, Shutdown, Status};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    args::Run,
    exit::{Exit, Failure},
    guardian::wire::Ended,
    output::{self, human},
    supervise::{
        self, Hold, Outcome,
        link::Link,
        remarks::Remarks,
        signals::{self, Signals},
    },
};

/// After this long a wait, the command says which name it waits for.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to try to give back a name that may have been acquired while this process was told to end.
const WITHDRAWAL: Duration = Duration::from_millis(500);

/// After a signal, how long to wait for the reader of the last remarks.
const LAST_WORDS: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: &Run) -> Result<Exit, Failure> {
    let grace = args
        .grace()
        .map_err(|message| Failure::new(Exit::Usage, message))?;
    let url = args.server.url();
    refuse_memory(&url)?;

    // First, so that it is up by the time the server has answered.
    let link = Link::start(&args.name, &args.command)
        .map_err(|error| Failure::internal("start the guardian process", &error))?;
    let mut signals =
        Signals::listen().map_err(|error| Failure::internal("listen for signals", &error))?;
    // From here on nothing else writes to standard error: a write may wait for its reader.
    let remarks = Remarks::new(args.json)
        .map_err(|error| Failure::internal("start a thread for remarks", &error))?;

    let asked = Instant::now();
    let acquired = acquire(args, &url, &mut signals, &remarks).await;
    let before = asked.elapsed();
    let ended = match acquired {
        Ok(Acquired::Guard(client, guard)) => {
            let hold = Hold {
                guard: &guard,
                lease: args.lease,
                grace,
                program: &args.command[0],
            };
            let started = Instant::now();
            let outcome =
                supervise::supervise(hold, link, client.events(), &mut signals, &remarks).await;
            let times = [before, started.elapsed()];
            let released = guard.release().await;
            outcome.map(|outcome| conclude(args, &outcome, times, &released, &remarks))
        }
        Ok(Acquired::Not(exit)) => Ok(exit),
        // Nothing more is to be said than the name that it waited for.
        Ok(Acquired::ToldToEnd(exit)) => return Ok(exit),
        Err(failure) => Err(failure),
    };
    let exit = ended.unwrap_or_else(|failure| {
        remarks.failure(&failure);
        failure.exit
    });
    // Only now, when the name is not ours any more.
    tokio::select! {
        biased;
        () = remarks.written() => {}
        () = wait_no_longer(&mut signals) => {}
    }
    Ok(exit)
}

/// Reports the outcome after the release, and returns the exit status.
fn conclude(
    args: &Run,
    outcome: &Outcome,
    times: [Duration; 2],
    released: &Result<Released, leasehold::Error>,
    remarks: &Remarks,
) -> Exit {
    let name = &args.name;
    let lost = outcome.lost || released.is_err();
    let unconfirmed = match released {
        Ok(Released::Unconfirmed { free_within }) => Some(*free_within),
        _ => None,
    };
    if let Some(free_within) = unconfirmed {
        remarks.add(&format!(
            "the server has not confirmed the release of {name:?}; it frees itself within {}",
            human(free_within)
        ));
    }
    if lost && !outcome.lost {
        remarks.add(&format!(
            "{name:?} was taken away while the command ran, which ended by itself"
        ));
    }
    let exit = if lost {
        Exit::Lost
    } else {
        status(outcome.how)
    };
    remarks.report(&document(args, exit, outcome, times, unconfirmed.is_none()));
    exit
}

/// A lock in the memory of one process excludes no other process, so it can only be a mistake.
fn refuse_memory(url: &str) -> Result<(), Failure> {
    if url.starts_with("memory:") {
        return Err(Failure::new(
            Exit::Usage,
            "memory: lives in one process and would exclude no other process; give the --url of a server",
        ));
    }
    Ok(())
}

enum Acquired {
    Guard(Client, Guard),
    /// Another owner holds the name.
    Not(Exit),
    ToldToEnd(Exit),
}

/// Connects and acquires, unless a signal comes first.
async fn acquire(
    args: &Run,
    url: &str,
    signals: &mut Signals,
    remarks: &Remarks,
) -> Result<Acquired, Failure> {
    let client = tokio::select! {
        client = Client::connect(url) => client?,
        exit = told_to_end(signals) => return Ok(Acquired::ToldToEnd(exit)),
    };
    let mutex = client.mutex(args.name.as_str()).lease(args.lease);
    let guard = tokio::select! {
        guard = lock(args, &mutex, remarks) => guard?,
        exit = told_to_end(signals) => {
            let grace = WITHDRAWAL;
            client.shutdown(Shutdown::ReleaseAll { grace }).await;
            return Ok(Acquired::ToldToEnd(exit));
        }
    };
    match guard {
        Some(guard) => Ok(Acquired::Guard(client, guard)),
        None => Ok(Acquired::Not(held(args, &mutex, remarks).await)),
    }
}

async fn lock(
    args: &Run,
    mutex: &Mutex,
    remarks: &Remarks,
) -> Result<Option<Guard>, leasehold::Error> {
    let wait = if args.skip_if_held {
        Some(Duration::ZERO)
    } else {
        args.wait
    };
    let attempt = async {
        match wait {
            None => mutex.lock().await.map(Some),
            Some(Duration::ZERO) => mutex.try_lock().await,
            Some(wait) => mutex.try_lock_for(wait).await,
        }
    };
    tokio::select! {
        biased;
        guard = attempt => guard,
        never = say_what_we_wait_for(args, mutex, remarks) => match never {},
    }
}

async fn say_what_we_wait_for(
    args: &Run,
    mutex: &Mutex,
    remarks: &Remarks,
) -> std::convert::Infallible {
    if !args.json {
        tokio::time::sleep(PATIENCE).await;
        let whom = mutex.status().await.map(|status| holder(&status));
        remarks.add(&format!(
            "waiting for {:?}{}",
            args.name,
            whom.unwrap_or_default()
        ));
    }
    std::future::pending().await
}

/// `, held by host:pid for 12 s`, as far as it is known.
fn holder(status: &Status) -> String {
    let Some(holder) = status.holder() else {
        return String::new();
    };
    let who = holder.label.as_ref().unwrap_or(&holder.owner);
    let since = holder.since.and_then(|since| since.elapsed().ok());
    let since = since.map_or(String::new(), |since| format!(" for {}", human(since)));
    format!(", held by {who}{since}")
}

/// Another owner holds the name.
async fn held(args: &Run, mutex: &Mutex, remarks: &Remarks) -> Exit {
    let exit = if args.skip_if_held {
        Exit::Done
    } else {
        Exit::Busy
    };
    if args.json {
        let outcome = if args.skip_if_held { "skipped" } else { "busy" };
        remarks.report(&json!({ "name": args.name, "outcome": outcome, "exit": exit.code() }));
        return exit;
    }
    // A second question only to be helpful; without an answer the message is shorter.
    let whom = mutex.status().await.map(|status| holder(&status));
    let whom = whom.unwrap_or_default();
    let name = &args.name;
    remarks.add(&match args.wait {
        _ if args.skip_if_held => format!("{name:?} is taken{whom}: skipped the command"),
        None | Some(Duration::ZERO) => format!("{name:?} is taken{whom}"),
        Some(wait) => format!("{name:?} was not free within {}{whom}", human(wait)),
    });
    exit
}

/// A signal that would have ended this process without a handler.
async fn told_to_end(signals: &mut Signals) -> Exit {
    loop {
        match signals.next().await {
            Signal::TSTP => supervise::stop_ourselves(),
            signal if signals::is_deadly(signal) => return Exit::by_signal(signal.as_raw()),
            _ => {}
        }
    }
}

/// Told to end, and a moment later.
async fn wait_no_longer(signals: &mut Signals) {
    told_to_end(signals).await;
    tokio::time::sleep(LAST_WORDS).await;
}

fn status(how: Ended) -> Exit {
    match how {
        Ended::Exited(code) => Exit::Of(u8::try_from(code).unwrap_or(u8::MAX)),
        Ended::Signaled(signal) => Exit::by_signal(signal),
    }
}

/// The outcome, for a program.
fn document(
    args: &Run,
    exit: Exit,
    outcome: &Outcome,
    [waited, held]: [Duration; 2],
    released: bool,
) -> Value {
    let command = match outcome.how {
        Ended::Exited(code) => json!({ "exited": code }),
        Ended::Signaled(signal) => json!({ "signaled": signal }),
    };
    json!({
        "name": args.name,
        "outcome": if exit == Exit::Lost { "lost" } else { "ran" },
        "command": command,
        "exit": exit.code(),
        "waited_ms": output::millis(waited),
        "held_ms": output::millis(held),
        "renewals": outcome.renewals,
        "released": released,
    })
}
