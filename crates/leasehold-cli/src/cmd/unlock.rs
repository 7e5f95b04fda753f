//! `leasehold unlock --force`: take a name away from its holder.

use leasehold::{Access, Status};
use serde_json::json;

use super::status::document;
use crate::{
    args::Unlock,
    exit::{Exit, Failure},
    kinds::{self, Kind},
    output::{self, human, others, visible},
};

pub(crate) async fn run(args: &Unlock) -> Result<Exit, Failure> {
    if !args.force {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "unlock takes {name:?} away from a holder that may still be working, so that two may work at \
                 once; see the holder with `leasehold status`, then say --force if you mean it",
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
    let unlocked = kind.force_unlock(&client, &args.name).await?;
    if args.json {
        output::answer(&json!({
            "name": args.name,
            "unlocked": unlocked,
            "before": document(&before),
        }))?;
        return Ok(Exit::Done);
    }
    let name = visible(&args.name);
    output::print(&if !unlocked {
        format!("{name} was free already\n")
    } else if kind == Kind::Latch {
        format!("{name} was deleted, and all that wait for it go on\n")
    } else {
        let next = match before.waiting_clients {
            0 => "is free",
            _ => "goes to the next in line",
        };
        let (from, overlap) = (from(&before), overlap(&before));
        format!("{name} was taken away{from}, and {next}{overlap}\n")
    })?;
    Ok(Exit::Done)
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
