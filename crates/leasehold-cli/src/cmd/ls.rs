//! `leasehold ls`: the locks whose names match a pattern.

use std::{
    io::{self, IsTerminal, Write as _},
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::join_all;
use leasehold::{Client, Error, Find, Status};

use super::status::document;
use crate::{
    args::Ls,
    exit::{Exit, Failure},
    kinds::{self, Kind},
    life::{self, Life},
    look::table::{self, Counts, held_for},
    output::{self, visible},
};

pub(crate) async fn run(args: &Ls) -> Result<Exit, Failure> {
    let address = args.server.address()?;
    let client = address.connect().await?;
    let mut find = client.find(&args.pattern);
    let (mut found, missing) = all_of(&mut find).await?;
    client.fill_connected(&mut found).await?;
    look_again(&client, &mut found).await;
    if args.gone {
        refuse_blindness(&found)?;
    }
    let now = SystemTime::now();
    let all = found.len();
    found.retain(|lock| {
        let is_old = |least| held_for(lock, now).is_some_and(|age| age.held >= least);
        args.kind.is_none_or(|kind| kind.is_listed_as(lock.kind))
            && args.older.is_none_or(is_old)
            && (!args.gone || life::of_lock(lock) == Life::Gone)
    });
    let held = |lock: &Status| held_for(lock, now);
    let mut found: Vec<&Status> = found.iter().collect();
    table::sort(&mut found, args.sort, &held);
    if args.json {
        let lines = found
            .iter()
            .map(|lock| output::json_line(&document(lock)) + "\n");
        output::print(&lines.collect::<String>())?;
    } else if !found.is_empty() {
        let table = table::text(&found, &held, table::columns());
        let counts = Counts::of(found.iter().copied());
        output::print(&format!("{table}{}\n", counts.summary()))?;
    } else if missing.is_empty() {
        let pattern = visible(&args.pattern);
        let under = match args.server.prefix()?.as_str() {
            "" => String::new(),
            prefix => format!(" under the prefix {}", visible(prefix)),
        };
        let server = &address.url;
        let among = find
            .keys()
            .map_or(String::new(), |keys| format!(" among its {keys} keys"));
        output::say(&output::remark(&match all {
            0 => format!("no locks on {server}{among} (pattern {pattern}{under})"),
            _ => format!(
                "{all} locks match {pattern}{under}, but none is as --kind, --older or --gone ask for"
            ),
        }));
    }
    if missing.is_empty() {
        return Ok(Exit::Done);
    }
    let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
    let message = format!("a part is missing: {}", missing.join("; "));
    Err(Failure::new(Exit::Unreachable, message))
}

/// All that is found, and why nodes of a cluster have not answered. An error if no server has.
async fn all_of(find: &mut Find) -> Result<(Vec<Status>, Vec<Error>), Error> {
    let (mut found, mut missing, mut has_answered) = (Vec::new(), Vec::new(), false);
    let mut progress = Progress::new();
    loop {
        let before = find.progress();
        match find.next().await {
            Ok(Some(page)) => {
                has_answered = true;
                found.extend(page);
            }
            Ok(None) => break,
            // Of a node: the others may answer.
            Err(error) if find.progress() > before => missing.push(error),
            Err(error) => return Err(error),
        }
        progress.show(find.progress(), found.len());
    }
    match missing.pop() {
        Some(error) if !has_answered => return Err(error),
        last => missing.extend(last),
    }
    Ok((found, missing))
}

/// So many locks are looked at again, a few at a time: each look lists the connections of a server (bug 254). Where more holders are
/// gone, they have not just let go.
const LOOKS: usize = 64;
const LOOKS_AT_ONCE: usize = 8;

/// A holder that let go and ended between the looks at its lock and at its connections seems to be gone, or silent.
async fn look_again(client: &Client, found: &mut Vec<Status>) {
    let seems = |lock: &Status| life::of_lock(lock).mark().is_some();
    let marked: Vec<usize> = (0..found.len()).filter(|at| seems(&found[*at])).collect();
    if marked.len() > LOOKS {
        return;
    }
    for few in marked.chunks(LOOKS_AT_ONCE) {
        let looks = few.iter().map(|at| {
            let lock = &found[*at];
            let kind = Kind::of(lock.kind);
            async move { kinds::look(client, kind, &lock.name).await }
        });
        for (at, look) in few.iter().zip(join_all(looks).await) {
            match look {
                Ok((_, lock)) => found[*at] = lock,
                // Another kind has the name by now, so this lock is free.
                Err(error) if kinds::is_of_another_kind(&error) => found[*at].holders.clear(),
                // The first look stands.
                Err(_) => {}
            }
        }
    }
    let mut at = 0..;
    found.retain(|lock| {
        let is_marked = at.next().is_some_and(|at| marked.contains(&at));
        !(is_marked && lock.holders.is_empty())
    });
}

/// To `--gone` no lock would be an answer where the server does not tell of any client of ours.
fn refuse_blindness(found: &[Status]) -> Result<(), Failure> {
    if life::is_blind(found) {
        let message = "the server does not tell which clients are connected: it is a replica, or the rules of its user lack +client|list, \
                       +client|setname or +info, or labels (docs/keys.md#permissions)";
        return Err(Failure::new(Exit::Rejected, message));
    }
    Ok(())
}

/// How far the search is, on the terminal that is standard error; nothing elsewhere.
struct Progress {
    is_shown: bool,
    drawn: Option<Instant>,
    began: Instant,
}

impl Progress {
    /// A search that is over sooner needs none, and a line is redrawn no more often.
    const PAUSE: Duration = Duration::from_millis(300);

    fn new() -> Progress {
        Progress {
            is_shown: io::stderr().is_terminal(),
            drawn: None,
            began: Instant::now(),
        }
    }

    fn show(&mut self, done: f64, found: usize) {
        if self.is_shown && self.drawn.unwrap_or(self.began).elapsed() >= Self::PAUSE {
            let text = format!("\r{:.0} % of the keys, {found} locks\x1b[K", 100.0 * done);
            let _ = io::stderr().write_all(text.as_bytes());
            self.drawn = Some(Instant::now());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
