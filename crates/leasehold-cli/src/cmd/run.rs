//! `leasehold run`: hold a lock while a command runs.

mod acquire;
mod report;

use std::time::{Duration, Instant};

use leasehold::{Error, Released};
use rustix::process::Signal;
use tokio::time::timeout;
use tracing::debug;

use self::acquire::Acquired;
use crate::{
    args::Run,
    exit::{Exit, Failure},
    held::Held,
    output::human,
    supervise::{
        self, Hold,
        link::Link,
        orphans::collect_strangers,
        remarks::Remarks,
        renewal,
        signals::{self, Signals},
    },
    terms::{Rest, Terms},
    trace,
};

/// After a signal, how long to wait for the reader of the last remarks.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long to wait for the server's answer about a hold whose command has ended.
const ANSWER: Duration = Duration::from_secs(2);

/// No lease is shorter, so no extension by it changes one.
const SHORTEST: Duration = Duration::from_millis(1);

pub(crate) async fn run(args: &Run, verbose: u8) -> Result<Exit, Failure> {
    let usage = |message| Failure::new(Exit::Usage, message);
    let terms = args.terms().map_err(usage)?;
    let permits = args.permits().map_err(usage)?;
    let server = args.server.address()?;
    server.refuse_memory()?;
    // Refuses an address that no client can be made of, before anything is started.
    drop(server.builder()?);
    let command = args.command();
    let Some(program) = command.first() else {
        return Err(usage("there is no command to run".to_owned()));
    };

    // First, so that it is up by the time the server has answered.
    let link = Link::start(&args.name, &command)
        .map_err(|error| Failure::internal("start the guardian process", &error))?;
    tokio::spawn(collect_strangers(link.guardian()));
    let mut signals =
        Signals::listen().map_err(|error| Failure::internal("listen for signals", &error))?;
    // From here on nothing else writes to standard error: a write may wait for its reader.
    let remarks = Remarks::new(args.json)
        .map_err(|error| Failure::internal("start a thread for remarks", &error))?;
    if verbose > 0 {
        trace::start(verbose, remarks.writer());
    } else if !args.json {
        // By --json each line is a document.
        trace::start_quietly(remarks.writer());
    }

    let asked = Instant::now();
    let acquired = acquire::acquire(args, &server, permits, &terms, &mut signals, &remarks).await;
    let before = asked.elapsed();
    let ended = match acquired {
        Ok(Acquired::Guard(client, guard)) => {
            let hold = Hold {
                guard: &guard,
                terms: &terms,
                program,
            };
            let started = Instant::now();
            let outcome = tokio::select! {
                outcome = supervise::supervise(hold, link, client.events(), &mut signals, &remarks) => outcome,
                never = renewal::keep(&guard, &terms) => match never {},
            };
            let worked = started.elapsed();
            let token = guard.token;
            let end = match &outcome {
                // Nothing was run, so another may try.
                Err(failure) if failure.exit.is_of_no_run() => End::Released(guard.release().await),
                _ => give_back(guard, &terms, started, &mut signals).await,
            };
            outcome.map(|outcome| {
                let times = [before, worked];
                report::conclude(args, &outcome, times, token, &end, &remarks)
            })
        }
        Ok(Acquired::Not(exit)) => Ok(exit),
        Ok(Acquired::ToldToEnd(exit)) => {
            remarks.report(&report::not_begun(args, "interrupted", exit));
            let _ = timeout(LAST_WORDS, remarks.written()).await;
            return Ok(exit);
        }
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

/// How a hold ended.
enum End {
    Released(Result<Released, Error>),
    /// The name stays taken for this long, and then frees itself.
    StaysTaken(Duration),
}

/// Gives the hold back when it is time, or has the server do that.
async fn give_back(guard: Held, terms: &Terms, since: Instant, signals: &mut Signals) -> End {
    if terms.rest(since.elapsed(), guard.remaining()) != Rest::Over {
        // An extension may have been under way when CMD ended, so that the server keeps the name for longer than this process
        // knows. It says so in its answer to this one, which changes nothing; and, as to a release, whether CMD was alone.
        let asked = timeout(ANSWER, guard.extend(SHORTEST)).await;
        if let Ok(Err(lost @ Error::Lost { .. })) = asked {
            return End::Released(Err(lost));
        }
    }
    match terms.rest(since.elapsed(), guard.remaining()) {
        Rest::Over => End::Released(guard.release().await),
        Rest::EndsByItself(rest) => {
            debug!(free_in = %human(rest), "the name stays taken until its lease ends");
            guard.detach();
            End::StaysTaken(rest)
        }
        Rest::Outlasts(rest) => {
            debug!(free_in = %human(rest), "the name stays taken, and is then released");
            tokio::select! {
                () = tokio::time::sleep(rest) => return End::Released(guard.release().await),
                // CMD was alone. A loss of the name after its end does not concern it.
                _ = guard.lost() => {}
                _ = told_to_end(signals) => {}
            }
            let rest = guard.remaining();
            guard.detach();
            End::StaysTaken(rest)
        }
    }
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
