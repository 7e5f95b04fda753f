//! `leasehold unlock --force`: take a name away from its holder.

use leasehold::{Client, LockKind};
use serde_json::json;

use super::status::{document, of};
use crate::{
    args::Unlock,
    exit::{Exit, Failure},
    output::{self, visible},
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
    let client = Client::connect(&args.server.url()).await?;
    let before = of(&client, args.kind, &args.name).await?;
    let unlocked = match before.kind {
        LockKind::FencedMutex => client.fenced_mutex(&args.name).force_unlock().await?,
        LockKind::RwLock => client.rw_lock(&args.name).force_unlock().await?,
        LockKind::PlainMutex => client.plain_mutex(&args.name).force_unlock().await?,
        LockKind::LeasedSemaphore => client.leased_semaphore(&args.name).force_unlock().await?,
        _ => client.mutex(&args.name).force_unlock().await?,
    };
    if args.json {
        output::answer(&json!({
            "name": args.name,
            "unlocked": unlocked,
            "before": document(&before),
        }));
        return Ok(Exit::Done);
    }
    let name = visible(&args.name);
    let whose = before
        .holder()
        .cloned()
        .map(|holder| visible(&holder.label.unwrap_or(holder.owner)));
    anstream::println!(
        "{}",
        match (unlocked, whose) {
            (true, Some(whose)) => format!("{name} was taken away from {whose} and is free"),
            (true, None) => format!("{name} was taken away and is free"),
            (false, _) => format!("{name} was free already"),
        }
    );
    Ok(Exit::Done)
}
