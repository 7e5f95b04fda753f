//! `leasehold unlock`: take a name away from its holder, by force, or only from one that is gone, or that is named.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, SystemTime},
};

use leasehold::{Access, Client, Holder, Status};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::status::{document, picture};
use crate::{
    args::Unlock,
    exit::{Exit, Failure},
    kinds::{self, Kind, NO_LOCKS_VALUE},
    life::{self, Life},
    output::{self, human, others, visible},
};

/// Between two looks at a lock whose holder may be gone.
const PAUSE: Duration = Duration::from_secs(1);

/// So often a lock that has changed since it was looked at is looked at again.
const LOOKS: usize = 5;

/// How the attempt ended.
enum Outcome {
    Taken,
    Free,
    /// Nothing was changed, for this reason.
    Not(String),
}

pub(crate) async fn run(args: &Unlock) -> Result<Exit, Failure> {
    let is_careful = args.if_gone || args.if_owner.is_some();
    if !args.force && !is_careful {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "unlock takes {name:?} away from a holder that may still be working, so that two may work at \
                 once; see the holder with `leasehold status`, then say --if-gone, --if-owner OWNER, or --force if you mean it",
                name = args.name
            ),
        ));
    }
    let client = args.server.address()?.connect().await?;
    let (kind, before) = kinds::look(&client, args.kind, &args.name).await?;
    if args.kind.is_none() && kinds::may_be_data(&before) {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "{name:?} may be data and no lock: its value names no holder that this program knows, and unlocking deletes it; \
                 see it with `leasehold status`, and say --kind {kind} if it is a lock",
                name = args.name,
                kind = before.kind,
            ),
        ));
    }
    if kind == Kind::Semaphore {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "{:?} is a semaphore without leases, whose holders the server does not know; add the permits of one that is dead to its number, \
                 with INCRBY or `add_permits`",
                args.name
            ),
        ));
    }
    let owners = match &args.if_owner {
        Some(owner) => Some(vec![owner.clone()]),
        // A user who agrees means the holder that was shown.
        None if args.force && asks(args, &before) => {
            if !agrees(&before)? {
                let message = format!("{} was left as it is: you said no", visible(&args.name));
                return Err(Failure::new(Exit::Busy, message));
            }
            let owners = before.holders.iter().map(|holder| holder.owner.clone());
            kind.has_owners().then(|| owners.collect())
        }
        None => None,
    };
    let (outcome, before) = if is_careful || owners.is_some() {
        carefully(args, &client, kind, before, owners.as_deref()).await?
    } else {
        let taken = kind.force_unlock(&client, &args.name).await?;
        (if taken { Outcome::Taken } else { Outcome::Free }, before)
    };
    let name = visible(&args.name);
    if args.json {
        output::answer(&json!({
            "name": args.name,
            "unlocked": matches!(outcome, Outcome::Taken),
            "before": document(&before),
        }))?;
    }
    let said = match outcome {
        Outcome::Not(why) => {
            let message = format!("{name} was left as it is: {why}");
            return Err(Failure::new(Exit::Busy, message));
        }
        Outcome::Free => format!("{name} was free already\n"),
        Outcome::Taken if kind == Kind::Latch => {
            format!("{name} was deleted, and all that wait for it go on\n")
        }
        Outcome::Taken => {
            let next = match before.waiting_clients {
                0 => "is free",
                _ => "goes to the next in line",
            };
            let (from, overlap) = (from(&before), overlap(&before));
            format!("{name} was taken away{from}, and {next}{overlap}\n")
        }
    };
    if !args.json {
        output::print(&said)?;
    }
    Ok(Exit::Done)
}

/// Takes the lock only as it was seen (`Client::force_unlock_if`): what has changed since is looked at again.
async fn carefully(
    args: &Unlock,
    client: &Client,
    kind: Kind,
    mut seen: Status,
    owners: Option<&[String]>,
) -> Result<(Outcome, Status), Failure> {
    if !kind.has_owners() {
        let message = format!(
            "{:?} is a {}, which has no holder to be compared: its permits, or its count, go all at once, by --force",
            args.name, seen.kind
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    for _ in 0..LOOKS {
        if args.if_gone
            && let Some(why) = until_surely_gone(client, kind, &mut seen).await?
        {
            return Ok((Outcome::Not(why), seen));
        }
        if seen.holders.is_empty() {
            return Ok((Outcome::Free, seen));
        }
        let other = |holder: &&Holder| owners.is_some_and(|owners| !owners.contains(&holder.owner));
        if let Some(holder) = seen.holders.iter().find(other) {
            let owner = kinds::owner(&seen, holder).map_or(NO_LOCKS_VALUE.to_owned(), visible);
            let why = format!("its owner is {owner}{}", named(holder));
            return Ok((Outcome::Not(why), seen));
        }
        if client.force_unlock_if(&seen).await? {
            return Ok((Outcome::Taken, seen));
        }
        seen = kind.status(client, &args.name).await?;
    }
    Ok((Outcome::Not("it changed at each look".to_owned()), seen))
}

/// Looks until its holders have been gone for so long that none would come back, or the lock is free. Else why they count as alive.
async fn until_surely_gone(
    client: &Client,
    kind: Kind,
    seen: &mut Status,
) -> Result<Option<String>, Failure> {
    let since = Instant::now();
    let mut is_told = false;
    loop {
        for holder in &seen.holders {
            let why = match Life::of(holder) {
                Life::Gone => continue,
                Life::Alive => "is alive: its client is connected",
                Life::Silent(_) => "is silent, and connected: its process may go on at any moment",
                Life::Kept => {
                    "has ended, or was killed, and --at-least keeps it until its time is over; --if-owner takes it nevertheless"
                }
                Life::Unknown => {
                    "may be alive: the server does not tell of its client (one of Redisson's or of another library; or +client|list and \
                     +info are missing from your rights, or it may write no label)"
                }
            };
            return Ok(Some(format!("its holder{} {why}", named(holder))));
        }
        if seen.holders.is_empty() || since.elapsed() >= life::GONE_FOR {
            return Ok(None);
        }
        if !is_told && io::stderr().is_terminal() {
            let rest = human(life::GONE_FOR);
            output::say(&output::remark(&format!(
                "its holder is not connected; looking for {rest} whether it comes back"
            )));
            is_told = true;
        }
        sleep(PAUSE).await;
        let now = kind.status(client, &seen.name).await?;
        for holder in &now.holders {
            let before = seen
                .holders
                .iter()
                .find(|before| before.owner == holder.owner);
            let Some(before) = before else {
                return Ok(Some(format!(
                    "it has another holder by now{}",
                    named(holder)
                )));
            };
            if holder.remaining > before.remaining {
                return Ok(Some(format!("its holder{} has renewed it", named(holder))));
            }
        }
        *seen = now;
    }
}

/// Whether a user is there to be asked.
fn asks(args: &Unlock, before: &Status) -> bool {
    let is_there = io::stdin().is_terminal() && io::stderr().is_terminal();
    is_there && !args.yes && !args.json && !before.holders.is_empty()
}

/// Shows what is to be taken away, and what follows, and asks.
fn agrees(before: &Status) -> Result<bool, Failure> {
    let mut err = anstream::stderr().lock();
    let follows = match overlap(before).trim_start_matches("; ") {
        "" => "nothing tells its holder: if it lives, it believes in its lease until that ends"
            .to_owned(),
        overlap => overlap.to_owned(),
    };
    let next = match before.waiting_clients {
        0 => "nobody waits for it",
        _ => "the next in line has it then",
    };
    let shown = picture(before, SystemTime::now());
    let failed = |error| Failure::internal("ask on the terminal", &error);
    write!(
        err,
        "{shown}If it is taken away, {next}; {follows}.\nTake it away? [y/N] "
    )
    .map_err(failed)?;
    err.flush().map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

/// `, host:pid`, as far as it is known.
fn named(holder: &Holder) -> String {
    let named = kinds::who(holder.label.as_deref(), holder.thread);
    named.map_or(String::new(), |named| format!(", {named},"))
}

/// How long a holder that is alive may go on beside the next one: no client believes in a lease for longer than the server had it (B1).
fn overlap(before: &Status) -> String {
    let holders = before.holders.iter();
    let alive = holders.filter(|holder| holder.connected == Some(true));
    let Some(left) = alive.filter_map(|holder| holder.remaining).max() else {
        return String::new();
    };
    format!(
        "; its holder is alive, and learns it when it renews, within {}: until then two may be inside",
        human(left)
    )
}

/// ` from host:pid`, as far as it is known.
fn from(before: &Status) -> String {
    let Some(holder) = before.holder() else {
        return String::new();
    };
    let named = kinds::who(holder.label.as_deref(), holder.thread);
    let whose = match (named, holder.access) {
        (Some(named), _) => named,
        (None, Access::Permits(_)) if holder.client.is_empty() => {
            format!("permit {}", visible(&holder.owner))
        }
        (None, _) => kinds::owner(before, holder).map_or("another".to_owned(), visible),
    };
    let others = others(before.holders.len() - 1);
    format!(" from {whose}{others}")
}
