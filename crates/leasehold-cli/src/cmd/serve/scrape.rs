//! Metrics of what the server shows, for Prometheus. Each has its row in docs/metrics.md.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::IntoResponse,
};
use leasehold::Status;
use tokio::time::{Instant, timeout_at};

use super::{App, SCRAPED};
use crate::{
    life::{self, Life},
    look::{board::Board, table},
};

/// Prometheus waits for ten seconds, unless it says otherwise.
const PATIENCE: Duration = Duration::from_secs(8);

/// Four fifths of the time that Prometheus waits.
fn patience(headers: &HeaderMap) -> Duration {
    let said = headers.get("x-prometheus-scrape-timeout-seconds");
    let said = said.and_then(|said| said.to_str().ok()?.parse().ok());
    let said = said.and_then(|said| Duration::try_from_secs_f64(said).ok());
    said.map_or(PATIENCE, |said| PATIENCE.min(said * 4 / 5))
}

pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> impl IntoResponse + use<> {
    let mut boards = app.boards.clone();
    boards.mark_unchanged();
    app.viewers().scraped = Some(std::time::Instant::now());
    app.wake.notify_one();
    let until = Instant::now() + patience(&headers);
    // Of those that came meanwhile, the last: an older one may be of hours ago.
    let mut last: Option<Arc<Board>> = None;
    while let Ok(Ok(())) = timeout_at(until, boards.changed()).await {
        last.clone_from(&boards.borrow_and_update());
        let is_done = |board: &Arc<Board>| board.round.is_some() || board.trouble.is_some();
        if last.as_ref().is_some_and(is_done) {
            break;
        }
    }
    // Each look waits for a node that is dead: the others are told of as they were a moment ago.
    let recent = |board: &Arc<Board>| board.at.elapsed().is_ok_and(|old| old < SCRAPED);
    let before = boards.borrow().clone();
    let last = last.or(before.filter(|board| board.is_part && recent(board)));
    let mut text = String::new();
    exposition(&mut text, last.as_deref(), &app.classes);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text)
}

/// Of the locks of one kind and class.
#[derive(Default)]
struct Sums {
    locks: u64,
    waiting: u64,
    gone: u64,
    silent: u64,
    endless: u64,
    oldest: Option<Duration>,
}

impl Sums {
    fn add(&mut self, lock: &Status, held: Option<Duration>) {
        let life = life::of_lock(lock);
        self.locks += 1;
        self.waiting += lock.waiting_clients;
        self.gone += u64::from(life == Life::Gone);
        self.silent += u64::from(matches!(life, Life::Silent(_)));
        self.endless += u64::from(table::is_endless(lock));
        self.oldest = self.oldest.max(held);
    }
}

/// The text that Prometheus reads. Before the first look at all keys has ended there are no series of locks, since their sums would be too small.
fn exposition(text: &mut String, board: Option<&Board>, classes: &[String]) {
    let is_up = board.is_some_and(|board| board.trouble.is_none());
    // Of a cluster the nodes that answer are told of: their locks need their alerts.
    let tells = board.is_some_and(|board| board.trouble.is_none() || board.is_part);
    one(
        text,
        "leasehold_server_up",
        "whether the server answers",
        &[(String::new(), f64::from(u8::from(is_up)))],
    );
    let Some(board) = board.filter(|_| tells) else {
        return;
    };
    let Some(round) = board.round else { return };
    one(
        text,
        "leasehold_server_round_seconds",
        "how long a look at all keys takes",
        &[(String::new(), round.as_secs_f64())],
    );
    if let Some(keys) = board.keys {
        #[expect(clippy::cast_precision_loss, reason = "it is for eyes")]
        one(
            text,
            "leasehold_server_keys",
            "keys, locks or not",
            &[(String::new(), keys as f64)],
        );
    }
    let mut sums: BTreeMap<(String, &str), Sums> = BTreeMap::new();
    for lock in &board.locks {
        let begins = classes.iter().filter(|it| lock.name.starts_with(*it));
        let class = begins.max_by_key(|class| class.len());
        let of = (lock.kind.to_string(), class.map_or("other", String::as_str));
        let sums = sums.entry(of).or_default();
        sums.add(lock, board.held_for(lock).map(|age| age.held));
    }
    let mut each = |name: &str, help: &str, of: &dyn Fn(&Sums) -> Option<f64>| {
        let values = sums.iter().filter_map(|((kind, class), sums)| {
            let labels = format!("{{kind=\"{kind}\",class=\"{}\"}}", escaped(class));
            Some((labels, of(sums)?))
        });
        one(text, name, help, &values.collect::<Vec<_>>());
    };
    #[expect(clippy::cast_precision_loss, reason = "counts of locks are small")]
    let count = |count: u64| Some(count as f64);
    each(
        "leasehold_server_locks",
        "locks that are held, or waited for",
        &|it| count(it.locks),
    );
    each(
        "leasehold_server_waiting",
        "clients that wait for locks",
        &|it| count(it.waiting),
    );
    // Where the server does not tell, none is no answer.
    let told = |count: Option<f64>| count.filter(|_| !board.is_blind());
    each(
        "leasehold_server_gone",
        "locks whose holder is not connected",
        &|it| told(count(it.gone)),
    );
    each(
        "leasehold_server_silent",
        "locks whose holder is connected and has sent nothing for 12 s",
        &|it| told(count(it.silent)),
    );
    each(
        "leasehold_server_endless",
        "locks that a holder which crashed would keep for ever",
        &|it| count(it.endless),
    );
    each(
        "leasehold_server_oldest_hold_seconds",
        "for how long the oldest hold has lasted: at most, or of a holder that does not tell, since a look first showed it",
        &|it| it.oldest.map(|oldest| oldest.as_secs_f64()),
    );
}

/// A gauge.
fn one(text: &mut String, name: &str, help: &str, values: &[(String, f64)]) {
    if values.is_empty() {
        return;
    }
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

/// As the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
