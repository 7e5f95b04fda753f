//! `leasehold drill`: what happens to a lock when processes die, stop and are cut off, shown on the user's own server.
//!
//! [`rows`] plays each of them, with processes of [`child`] and a network of [`network`] that can be cut; [`failover`] is the last, for which the user asks.

mod child;
mod failover;
mod network;
mod rows;

use std::{fmt::Write as _, fs::File, io::Write as _, time::Duration};

use anstyle::{AnsiColor, Style};
use futures_util::future::join_all;
use leasehold::{Client, ClientBuilder, Level, MemoryServer, Shutdown};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

pub(crate) use self::child::{WORD, main as child_main};
use crate::{
    args::Drill,
    ending::Ending,
    exit::{Exit, Failure},
    output::{self, human, visible},
    server::Address,
};

/// Long enough for slow networks, and no row takes longer than some of these.
const LEASE: Duration = Duration::from_secs(3);

/// A tombstone and a token of the drill outlive it by so long.
const LEFTOVERS: Duration = Duration::from_secs(60);

/// The server, and two clients of it.
struct Ground {
    place: Place,
    one: Client,
    other: Client,
    /// Where processes of this machine meet.
    files: TempDir,
}

impl Ground {
    async fn new(place: Place) -> Result<Ground, Failure> {
        let files = tempfile::tempdir();
        Ok(Ground {
            one: place.connect().await?,
            other: place.connect().await?,
            files: files.map_err(|error| Failure::internal("make a directory", &error))?,
            place,
        })
    }

    /// A name of this drill alone. In a cluster, what begins with it is in the same slot.
    fn name(&self, row: u8) -> String {
        format!("leasehold-drill:{{{}}}:{row}", self.one.id())
    }
}

/// Where the clients of the drill lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Place {
    address: Address,
    /// Each client on a server of its own, in memory: what a library does that never excludes.
    is_broken: bool,
}

impl Place {
    async fn connect(&self) -> Result<Client, Failure> {
        let builder = if self.is_broken {
            ClientBuilder::default().memory(&MemoryServer::new())
        } else {
            self.address.builder()?
        };
        let builder = builder.token_retention(Some(LEFTOVERS)).lease(LEASE);
        self.address.connect_by(builder).await
    }

    /// The same by another way.
    fn at(&self, url: String) -> Place {
        Place {
            address: self.address.at(url),
            ..*self
        }
    }

    /// As the report and the first line call it.
    fn shown(&self) -> String {
        let broken = if self.is_broken {
            " (--broken: each client locks on a server of its own)"
        } else {
            ""
        };
        visible(&output::redact(&self.address.url)) + broken
    }
}

/// How a row went, and its figures.
enum Outcome {
    Passed(String),
    Failed(String),
    Skipped(String),
}

struct Row {
    number: u8,
    title: &'static str,
    /// Its figures pass if they keep this.
    bound: &'static str,
    outcome: Outcome,
}

pub(crate) async fn run(args: &Drill) -> Result<Exit, Failure> {
    let address = args.server.address()?;
    address.refuse_memory()?;
    refuse_contradictions(args)?;
    // Now, and not when all has been played.
    let report = args.report.as_ref().map(File::create).transpose();
    let report = report.map_err(|error| Failure::internal("make the report", &error))?;
    let mut told = Ending::listen().map_err(|error| Failure::internal("hear signals", &error))?;
    let place = Place {
        address,
        is_broken: args.broken,
    };
    let ground = tokio::select! {
        ground = Ground::new(place) => ground?,
        exit = told.next() => return Ok(exit),
    };
    let exit = tokio::select! {
        exit = play(args, &ground, report) => exit,
        exit = told.next() => Ok(exit),
    };
    let grace = Duration::ZERO;
    let shut = [&ground.other, &ground.one].map(|it| it.shutdown(Shutdown::ReleaseAll { grace }));
    tokio::select! {
        _ = join_all(shut) => {}
        _ = told.next() => {}
    }
    exit
}

fn refuse_contradictions(args: &Drill) -> Result<(), Failure> {
    let leaves_out = |row| !args.only.is_empty() && !args.only.contains(&row);
    let (job, failover) = (rows::YOUR_JOB, rows::FAILOVER);
    let message = if !args.cmd.is_empty() && leaves_out(job) {
        format!("a job is given, and --only leaves out its row, {job}")
    } else if args.failover && leaves_out(failover) {
        format!("--failover is given, and --only leaves out its row, {failover}")
    } else if args.only.contains(&failover) && !args.failover {
        format!(
            "row {failover} has another server take the primary's place; allow that with --failover"
        )
    } else {
        return Ok(());
    };
    Err(Failure::new(Exit::Usage, message))
}

/// Where no replica can take the primary's place.
async fn refuse_no_failover(ground: &Ground) -> Result<(), Failure> {
    let name = ground.name(rows::FAILOVER);
    let primary = ground.one.fail_over(&name, false).await;
    primary.map(drop).map_err(|error| {
        let failure = Failure::from(error);
        let message = format!("--failover is not possible: {}", failure.message);
        Failure::new(failure.exit, message)
    })
}

async fn play(args: &Drill, ground: &Ground, file: Option<File>) -> Result<Exit, Failure> {
    // A server that takes no locks is one failure, and not eight.
    if let Some(trial) = ground.one.mutex(ground.name(0)).try_lock().await? {
        rows::release(trial).await?;
    }
    if args.failover {
        refuse_no_failover(ground).await?;
    }
    let begun = Instant::now();
    if !args.json {
        let lease = human(LEASE);
        output::print(&format!(
            "on {}, lease {lease}, names leasehold-drill:…\n",
            ground.place.shown()
        ))?;
    }
    let mut rows = Vec::new();
    for (number, title, bound) in rows::ALL {
        let is_wanted = args.only.is_empty() || args.only.contains(&number);
        if !is_wanted || number == rows::FAILOVER && !args.failover {
            continue;
        }
        let played = rows::play(ground, number, &args.cmd).await;
        let outcome = played.unwrap_or_else(|failure| Outcome::Failed(failure.message));
        let row = Row {
            number,
            title,
            bound,
            outcome,
        };
        if !args.json {
            output::print(&line(&row))?;
        }
        rows.push(row);
    }
    let took = begun.elapsed();
    let count = |is: fn(&Outcome) -> bool| rows.iter().filter(|row| is(&row.outcome)).count();
    let (passed, failed) = (
        count(|outcome| matches!(outcome, Outcome::Passed(_))),
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
    );
    let (server, why) = examined(&ground.one).await;
    if args.json {
        output::answer(&json!({
            "rows": rows.iter().map(document).collect::<Vec<_>>(),
            "passed": passed,
            "failed": failed,
            "server": server,
            "took_ms": output::millis(took),
            "dangers": why,
        }))?;
    } else {
        let skipped = match rows.len() - passed - failed {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        let played = passed + failed;
        let mut text = format!("{passed} of {played} passed{skipped} · {}\n", human(took));
        if failed > 0 {
            for why in &why {
                let _ = writeln!(text, "the server: {}", visible(why));
            }
        }
        output::print(&text)?;
    }
    if let Some(mut file) = file {
        let written = file.write_all(report(ground, &server, &rows, took, &why).as_bytes());
        written.map_err(|error| Failure::internal("write the report", &error))?;
    }
    Ok(if failed > 0 {
        Exit::CheckFailed
    } else {
        Exit::Done
    })
}

/// The server's kind and version, and its dangers.
async fn examined(client: &Client) -> (String, Vec<String>) {
    let findings = client.examine().await.unwrap_or_default();
    let faults = findings
        .iter()
        .filter(|finding| finding.level == Level::Danger);
    let why = faults
        .map(|finding| format!("{}: {}; {}", finding.word, finding.what, finding.leads_to))
        .collect();
    let server = findings.iter().find(|finding| finding.word == "server");
    (
        server.map_or(String::new(), |finding| finding.what.clone()),
        why,
    )
}

fn told(outcome: &Outcome) -> (&'static str, Option<AnsiColor>, &str) {
    match outcome {
        Outcome::Passed(figures) => ("✓", Some(AnsiColor::Green), figures),
        Outcome::Failed(why) => ("✗", Some(AnsiColor::Red), why),
        Outcome::Skipped(why) => ("○", None, why),
    }
}

fn line(row: &Row) -> String {
    let (mark, color, figures) = told(&row.outcome);
    let style = Style::new().fg_color(color.map(Into::into));
    let (number, title) = (row.number, row.title);
    format!(
        "{style}{mark}{style:#} {number} {title:<16} {}\n",
        visible(figures)
    )
}

fn document(row: &Row) -> Value {
    let (_, _, figures) = told(&row.outcome);
    json!({
        "row": row.number,
        "title": row.title,
        "bound": row.bound,
        "outcome": match row.outcome {
            Outcome::Passed(_) => "passed",
            Outcome::Failed(_) => "failed",
            Outcome::Skipped(_) => "skipped",
        },
        "figures": figures,
    })
}

/// In Markdown, for a page of the team's own.
fn report(ground: &Ground, server: &str, rows: &[Row], took: Duration, why: &[String]) -> String {
    let cell = |text: &str| visible(text).replace('|', "\\|");
    let mut text = format!(
        "# leasehold drill\n\n{}, {}: {}. Version {}, lease {}; it took {}.\n\n| | what | must be | was |\n|---|---|---|---|\n",
        humantime::format_rfc3339_seconds(std::time::SystemTime::now()),
        cell(&ground.place.shown()),
        cell(server),
        env!("CARGO_PKG_VERSION"),
        human(LEASE),
        human(took),
    );
    for row in rows {
        let (mark, _, figures) = told(&row.outcome);
        let _ = writeln!(
            text,
            "| {} {mark} | {} | {} | {} |",
            row.number,
            row.title,
            row.bound,
            cell(figures)
        );
    }
    for why in why {
        let _ = write!(text, "\nThe server: {}\n", visible(why));
    }
    text
}
