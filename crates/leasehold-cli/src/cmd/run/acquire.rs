//! The way to the lock: connects, asks, waits, and says what it waits for.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Shutdown, Status};
use tokio::time::timeout;
use tracing::debug;

use super::{report, told_to_end};
use crate::{
    args::Run,
    exit::{Exit, Failure},
    held::{Ask, Held},
    kinds::{self, Kind},
    life,
    output::{self, human},
    server::Address,
    supervise::{remarks::Remarks, signals::Signals},
    terms::Terms,
};

/// After this long a wait, the command says which name it waits for.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to try to give back a name that may have been acquired while this process was told to end.
const WITHDRAWAL: Duration = Duration::from_millis(500);

/// A lease is long enough for a network if so many round trips fit into it: it is renewed every third of it, each renewal
/// has a third of that, and the answer may take twice as long as usual.
const ROUND_TRIPS: u32 = 18;

const LEAST_SHOWN: Duration = Duration::from_millis(1);

pub(super) enum Acquired {
    Guard(Client, Held),
    /// Another owner holds the name.
    Not(Exit),
    ToldToEnd(Exit),
}

/// Connects and acquires, unless a signal comes first.
pub(super) async fn acquire(
    args: &Run,
    server: &Address,
    permits: Option<u32>,
    terms: &Terms,
    signals: &mut Signals,
    remarks: &Remarks,
) -> Result<Acquired, Failure> {
    let began = Instant::now();
    let mut builder = server.builder()?;
    if terms.is_fixed() {
        // `status` tells by it, when this process has ended, that the hold is left on purpose.
        builder = builder.label(label() + life::KEEPS);
    }
    let client = tokio::select! {
        client = server.connect_by(builder) => client?,
        exit = told_to_end(signals) => return Ok(Acquired::ToldToEnd(exit)),
    };
    let took = began.elapsed();
    debug!(took = %human(took), "connected to the server");
    let asks = async {
        // It takes two round trips at least.
        if terms.shortest() < took / 2 * ROUND_TRIPS {
            warn_of_a_short_lease(args, &client, terms, remarks).await;
        }
        lock(args, &client, permits, terms, remarks).await
    };
    let guard = tokio::select! {
        guard = asks => guard?,
        exit = told_to_end(signals) => {
            let grace = WITHDRAWAL;
            client.shutdown(Shutdown::ReleaseAll { grace }).await;
            return Ok(Acquired::ToldToEnd(exit));
        }
    };
    match guard {
        Some(guard) => Ok(Acquired::Guard(client, guard)),
        None => Ok(Acquired::Not(held(args, &client, remarks).await)),
    }
}

/// `host:pid`, as the library calls a client.
fn label() -> String {
    let host = rustix::system::uname();
    let mut label = format!(
        "{}:{}",
        host.nodename().to_string_lossy(),
        std::process::id()
    );
    label.retain(|c| c.is_ascii_graphic());
    label
}

/// Says so if renewals may be too late on this network.
async fn warn_of_a_short_lease(args: &Run, client: &Client, terms: &Terms, remarks: &Remarks) {
    let mut fastest = Duration::MAX;
    // The first may have to teach the server the script.
    for _ in 0..2 {
        let asked = Instant::now();
        // An error is an answer, too.
        let _ = args.kind.status(client, &args.name).await;
        fastest = fastest.min(asked.elapsed());
    }
    debug!(took = %human(fastest), "a round trip to the server");
    let needs = fastest * ROUND_TRIPS;
    if terms.shortest() < needs {
        let option = if terms.first() == terms.shortest() && terms.is_fixed() {
            "--at-least"
        } else {
            "--lease"
        };
        remarks.add(&format!(
            "a lease of {} is short for this network, where a round trip takes {}: a few late renewals, and the command \
             is stopped; {option} should be {} or more",
            human(terms.shortest()),
            human(fastest.max(LEAST_SHOWN)),
            human(needs.max(LEAST_SHOWN)),
        ));
    }
}

async fn lock(
    args: &Run,
    client: &Client,
    permits: Option<u32>,
    terms: &Terms,
    remarks: &Remarks,
) -> Result<Option<Held>, Failure> {
    if args.kind == Kind::Leased {
        look_for_permits(args, client, permits, remarks).await?;
    }
    let ask = Ask {
        lease: terms.first(),
        fixed: terms.is_fixed(),
        wait: args.wait(),
        permits,
    };
    let held = tokio::select! {
        biased;
        guard = args.kind.acquire(client, &args.name, ask) => guard?,
        never = say_what_we_wait_for(args, client, remarks) => match never {},
    };
    if let Some(held) = &held
        && terms.is_fixed()
        && held.remaining() < ask.lease / 10 * 9
    {
        // It was granted some time ago. The name is to stay taken from now on; without an answer from then on.
        let _ = timeout(terms.every(), held.extend(ask.lease)).await;
    }
    Ok(held)
}

/// Sets the permits if no client has. Without permits every wait is in vain, and `--skip-if-held` would skip for ever.
async fn look_for_permits(
    args: &Run,
    client: &Client,
    permits: Option<u32>,
    remarks: &Remarks,
) -> Result<(), Failure> {
    let name = &args.name;
    if let Some(permits) = permits {
        let semaphore = client.leased_semaphore(name);
        if semaphore.try_set_permits(permits).await? {
            return Ok(());
        }
    }
    // Only to be helpful: what a server without an answer means is a matter of the wait for the permit.
    let status = args.kind.status(client, name).await;
    if let (Some(wanted), Ok(status)) = (permits, &status) {
        let there = kinds::permits(status);
        if there != i64::from(wanted) {
            remarks.add(&format!(
                "the semaphore {name:?} has {there} permits; --permits {wanted} changes nothing, it counts only where no \
                 client has set them"
            ));
        }
        return Ok(());
    }
    if status.is_ok_and(|status| kinds::has_no_permits(&status)) {
        return Err(Failure::new(
            Exit::Rejected,
            format!(
                "the semaphore {name:?} has no permits; say how many with --permits, which sets them if no client has"
            ),
        ));
    }
    Ok(())
}

async fn say_what_we_wait_for(args: &Run, client: &Client, remarks: &Remarks) -> Infallible {
    if !args.json && !args.quiet {
        tokio::time::sleep(PATIENCE).await;
        // A run that does not wait for the name is still here because the server has not said whether it is held.
        let asks_once = args.wait() == Some(Duration::ZERO);
        // Held, or without an answer: who reads this is to know which.
        let why = match args.kind.status(client, &args.name).await {
            Ok(_) if asks_once => String::new(),
            Ok(status) => holders(&status),
            Err(Error::NotSent { source, .. }) => {
                format!("; the server does not answer ({source}), asking again by itself")
            }
            Err(error) => format!("; {error}"),
        };
        let what = if asks_once {
            "the server's answer about "
        } else {
            ""
        };
        remarks.add(&format!("waiting for {what}{:?}{why}", args.name));
    }
    std::future::pending().await
}

/// The holders, as far as they are known; else nothing.
async fn whom(args: &Run, client: &Client) -> String {
    let status = args.kind.status(client, &args.name).await;
    status.map_or(String::new(), |status| holders(&status))
}

/// `: host:pid has had it for 12 s or less, and 2 others`, as far as it is known.
fn holders(status: &Status) -> String {
    let Some(holder) = status.holder() else {
        return no_votes(status);
    };
    let foreign = kinds::is_of_another_library(status, holder);
    // Even what looks like a token may be a password.
    let named = kinds::who(holder.label.as_deref(), holder.thread);
    let who = match named.as_ref().unwrap_or(&holder.owner) {
        _ if kinds::may_be_data(status) => kinds::NO_LOCKS_VALUE,
        _ if foreign => "another library",
        who => who,
    };
    let since = holder.since.and_then(|since| since.elapsed().ok());
    let since = since.map_or(String::new(), |since| {
        format!(" for {} or less", human(since))
    });
    let others = match output::others(status.holders.len() - 1) {
        others if others.is_empty() => others,
        others => format!(",{others}"),
    };
    let gone = match (holder.connected, holder.remaining) {
        (Some(false), Some(left)) if status.holders.len() == 1 => {
            format!(
                "; its client is not connected: free in {} unless it comes back",
                human(left)
            )
        }
        _ => String::new(),
    };
    format!(": {who} has had it{since}{others}{gone}")
}

/// Free, and not to be had: too many servers of a majority have restarted.
fn no_votes(status: &Status) -> String {
    let votes = &status.votes;
    let mut until: Vec<_> = votes
        .iter()
        .map(|vote| vote.quarantine.unwrap_or_default())
        .collect();
    until.sort_unstable();
    // With this one's vote there is a majority.
    match until.get(votes.len() / 2) {
        Some(left) if !left.is_zero() => {
            let restarted = until.iter().filter(|left| !left.is_zero()).count();
            format!(
                ": {restarted} of {} servers have restarted, and a majority may vote in {}",
                votes.len(),
                human(*left)
            )
        }
        _ => String::new(),
    }
}

/// Another owner holds the name.
async fn held(args: &Run, client: &Client, remarks: &Remarks) -> Exit {
    let exit = if args.skip_if_held {
        Exit::Done
    } else {
        Exit::Busy
    };
    if args.json {
        let outcome = if args.skip_if_held { "skipped" } else { "busy" };
        remarks.report(&report::not_begun(args, outcome, exit));
        return exit;
    }
    if args.quiet {
        return exit;
    }
    // A second question only to be helpful; without an answer the message is shorter.
    let whom = whom(args, client).await;
    let name = &args.name;
    remarks.add(&match args.wait() {
        _ if args.skip_if_held => format!("skipped the command, as {name:?} is taken{whom}"),
        None | Some(Duration::ZERO) => format!("{name:?} is taken{whom}"),
        Some(wait) => format!("{name:?} was not free within {}{whom}", human(wait)),
    });
    exit
}
