//! `leasehold demo`: workers contend for locks, one of them dies, and the timeline is drawn as it happens.
//!
//! [`story`] lists the workers, [`host`] gives each process a life of its own, [`worker`] does the work,
//! [`record`] keeps the events, [`picture`] draws them and [`verdict`] judges them.

mod host;
mod picture;
mod record;
mod screen;
mod story;
mod verdict;
mod worker;

use std::{io, time::Duration};

use leasehold::MemoryServer;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::{Instant, interval, sleep, sleep_until},
};

pub(crate) use self::host::main as host_main;
use self::{
    host::{Backend, Host, Job},
    record::{Happening, Record, What},
    screen::Screen,
    story::{Act, Kind},
    verdict::Verdict,
    worker::Stock,
};
use crate::{
    args::Demo,
    clock,
    exit::{Exit, Failure},
    output,
    server::Address,
};

/// The first argument that makes a process of ours one of the demo's.
pub(crate) const HOST_WORD: &str = "__demo-host";

const DRAW_EVERY: Duration = Duration::from_millis(60);
/// Time to read the title of an act before it starts, on a terminal.
const READ: Duration = Duration::from_millis(1_200);
/// The shortest time for which a server keeps a key.
const AT_ONCE: Duration = Duration::from_millis(1);
/// An act that takes longer has got stuck.
const TOO_LONG: Duration = Duration::from_secs(20);

pub(crate) async fn run(args: &Demo) -> Result<Exit, Failure> {
    let (backend, prefix) = backend(args).await?;
    let exit = tokio::select! {
        exit = play(args, backend, &prefix) => exit,
        // Leaving this way, and not by the signal, takes the temporary file along.
        Ok(()) = tokio::signal::ctrl_c() => Ok(Exit::by_signal(Signal::INT.as_raw())),
    };
    if let Some(server) = args.address()?
        && let Err(failure) = clean_up(&server, &prefix).await
    {
        let message = format!("could not clean up: {}", failure.message);
        output::say(&output::remark(&message));
    }
    exit
}

/// Deletes the semaphore: all other keys of the demo have an end.
async fn clean_up(server: &Address, prefix: &str) -> Result<(), Failure> {
    // A fence that ends at once is not left behind either.
    let builder = server.builder()?.token_retention(Some(AT_ONCE));
    let store = builder
        .connect()
        .await?
        .fenced_store(format!("{prefix}clean-up"));
    for act in story::acts() {
        if let Kind::Semaphore(_) = act.kind {
            let name = format!("{prefix}{}", act.lock);
            store.delete(format!("{{{name}}}:timeout"), 1).await?;
            store.delete(name, 1).await?;
        }
    }
    tokio::time::sleep(AT_ONCE).await;
    Ok(())
}

async fn play(args: &Demo, backend: Backend, prefix: &str) -> Result<Exit, Failure> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(1..10_000));
    let stock_file = NamedTempFile::new().map_err(no_stock)?;
    let stock = Stock::open(stock_file.path()).map_err(no_stock)?;
    stock.write(story::STOCK).map_err(no_stock)?;

    let mut stage = Stage {
        backend,
        prefix,
        stock: &stock_file,
        seed,
        broken: args.broken,
        screen: Screen::new(args.json),
    };
    let (on, layout) = (stage.describe(), stage.screen.layout());
    let head = picture::head(layout, on, seed, args.broken);
    stage.screen.print(&head)?;
    let mut records = Vec::new();
    for act in story::acts() {
        records.push(stage.perform(act).await?);
    }
    let verdict = verdict::judge(&records, stock.read().map_err(no_stock)?);
    stage.screen.print(&picture::verdict(layout, &verdict))?;
    if let (Backend::Memory(_), true) = (&stage.backend, verdict.ok) {
        stage.screen.print(&picture::hint(layout))?;
    }
    if args.json {
        output::answer(&document(&stage, &records, &verdict))?;
    }
    Ok(if verdict.ok {
        Exit::Done
    } else {
        Exit::CheckFailed
    })
}

/// Where the leases live, and the prefix of the names.
async fn backend(args: &Demo) -> Result<(Backend, String), Failure> {
    let Some(server) = args.address()? else {
        return Ok((Backend::Memory(MemoryServer::new()), String::new()));
    };
    // Before anything is drawn: a user that mistyped the URL should read that and nothing else.
    let client = server.builder()?.connect().await?;
    let prefix = args.prefix.text()?;
    let prefix = format!("{prefix}leasehold-demo:{:08x}:", fastrand::u32(..));
    client.status(&prefix).await?;
    Ok((Backend::Server(Box::new(server)), prefix))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn no_stock(error: io::Error) -> Failure {
    Failure::internal("keep the stock in a temporary file", &error)
}

/// The common setting of all acts.
struct Stage<'a> {
    backend: Backend,
    prefix: &'a str,
    stock: &'a NamedTempFile,
    seed: u64,
    broken: bool,
    screen: Screen,
}

impl Stage<'_> {
    fn describe(&self) -> &'static str {
        match self.backend {
            Backend::Memory(_) => "in memory, 3 clients stand for processes",
            Backend::Server(_) => "on a server, 3 processes",
        }
    }

    async fn perform(&mut self, act: Act) -> Result<Record, Failure> {
        let (tell, mut ears) = mpsc::unbounded_channel();
        let mut hosts = Vec::new();
        for (number, parts) in act.cast.iter().enumerate() {
            let job = Job {
                host: number,
                lock: format!("{}{}", self.prefix, act.lock),
                kind: act.kind,
                parts: parts.clone(),
                stock: self.stock.path().to_owned(),
                seed: self
                    .seed
                    .wrapping_mul(1_000)
                    .wrapping_add((act.number * 100 + number * 10) as u64),
                broken: self.broken,
            };
            let host = Host::start(&self.backend, job, tell.clone())
                .map_err(|error| Failure::internal("start a process of the demo", &error))?;
            hosts.push(host);
        }
        drop(tell);
        all_ready(&mut ears, hosts.len()).await?;
        let mut record = Record::new(act, clock::now());
        let layout = self.screen.layout();
        if self.screen.is_live() {
            let empty = picture::act(layout, &record, record.started);
            self.screen.sketch(&empty)?;
            sleep(READ).await;
            record.started = clock::now();
        }
        for host in &mut hosts {
            host.go();
        }
        self.watch(&mut record, &mut hosts, &mut ears).await?;
        let end = record.happenings.last().map_or(record.started, |it| it.at);
        self.screen.print(&picture::act(layout, &record, end))?;
        Ok(record)
    }

    /// Until all processes have ended.
    async fn watch(
        &mut self,
        record: &mut Record,
        hosts: &mut [Host],
        ears: &mut UnboundedReceiver<Happening>,
    ) -> Result<(), Failure> {
        let give_up = Instant::now() + TOO_LONG;
        let mut kill_at = None;
        let mut draw = interval(DRAW_EVERY);
        let mut playing = hosts.len();
        while playing > 0 {
            tokio::select! {
                happening = ears.recv() => {
                    let Some(happening) = happening else { break };
                    if matches!(happening.what, What::Ended | What::Killed) {
                        playing -= 1;
                    }
                    if happening.host == 0 && happening.what == What::Entered {
                        kill_at = record.act.kill_after.map(|after| Instant::now() + after);
                    }
                    record.happenings.push(happening);
                }
                () = sleep_until(kill_at.unwrap_or(give_up)), if kill_at.is_some() => {
                    kill_at = None;
                    hosts[0].kill();
                }
                _ = draw.tick() => self.screen.sketch(&picture::act(self.screen.layout(), record, clock::now()))?,
                () = sleep_until(give_up) => break,
            }
        }
        Ok(())
    }
}

async fn all_ready(
    ears: &mut UnboundedReceiver<Happening>,
    mut missing: usize,
) -> Result<(), Failure> {
    while missing > 0 {
        let happening = ears.recv().await.map(|happening| happening.what);
        match happening {
            Some(What::Ready) => missing -= 1,
            Some(What::Failed(message)) => return Err(Failure::new(Exit::Internal, message)),
            Some(_) => {}
            None => {
                return Err(Failure::new(
                    Exit::Internal,
                    "a process of the demo has ended early",
                ));
            }
        }
    }
    Ok(())
}

fn document(stage: &Stage<'_>, records: &[Record], verdict: &Verdict) -> Value {
    let began = records
        .first()
        .map_or(Duration::ZERO, |record| record.started);
    let mut happenings: Vec<(&Record, &Happening)> = records
        .iter()
        .flat_map(|record| record.happenings.iter().map(move |it| (record, it)))
        .collect();
    happenings.sort_by_key(|(_, it)| it.at);
    let events: Vec<Value> = happenings
        .into_iter()
        .map(|(record, it)| event(record, it, began))
        .collect();
    json!({
        "backend": match stage.backend { Backend::Memory(_) => "memory", Backend::Server(_) => "server" },
        "seed": stage.seed,
        "lease_ms": output::millis(story::LEASE),
        "events": events,
        "verdict": verdict,
    })
}

fn event(record: &Record, it: &Happening, began: Duration) -> Value {
    let worker = it.part.map(|part| &record.act.cast[it.host][part].name);
    json!({
        "act": record.act.number,
        "at_ms": it.at.saturating_sub(began).as_secs_f64() * 1_000.0,
        "process": it.host + 1,
        "worker": worker,
        "what": it.what,
    })
}
