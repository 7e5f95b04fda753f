//! Locks as they are now: server-sent events, for as long as a page is open.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    extract::{Query, State},
    response::{IntoResponse, Response, Sse, sse::Event},
};
use clap::ValueEnum as _;
use futures_util::{Stream, stream::unfold};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::App;
use crate::{
    args::Sort,
    cmd::status::document,
    kinds::{self, Kind},
    life,
    look::{
        board::{Board, Wanted},
        looker::Shown,
    },
    output::{human, millis},
};

/// A page that hears nothing for longer takes the connection for dead.
const SILENT: Duration = Duration::from_secs(2);

/// More rows are no help to a reader, and cost a browser much.
const ROWS: usize = 200;

#[derive(Deserialize)]
pub(super) struct Asked {
    /// The lock that a page shows by itself; without a name the page shows a list, as the other fields ask for it.
    name: Option<String>,
    #[serde(default)]
    search: String,
    #[serde(default)]
    kind: String,
    waited: Option<String>,
    gone: Option<String>,
    #[serde(default)]
    sort: String,
}

impl Asked {
    fn wanted(&self) -> Wanted {
        let is_set = |flag: &Option<String>| flag.as_deref() == Some("1");
        Wanted {
            search: unescaped(&self.search),
            kind: Kind::from_str(&self.kind, false).ok(),
            waited: is_set(&self.waited),
            gone: is_set(&self.gone),
            sort: Sort::from_str(&self.sort, false).unwrap_or(Sort::Name),
        }
    }
}

/// The page shows letters that are not seen as in `\\u200b`, and so they are searched for.
fn unescaped(search: &str) -> String {
    let mut parts = search.split("\\u");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..4)
            .and_then(|code| u32::from_str_radix(code, 16).ok());
        if let Some(letter) = code.and_then(char::from_u32) {
            text.push(letter);
            text.push_str(&part[4..]);
        } else {
            text.push_str("\\u");
            text.push_str(part);
        }
    }
    text
}

/// A page that is open.
struct Viewer {
    app: Arc<App>,
    number: u64,
    boards: watch::Receiver<Option<Arc<Board>>>,
    asked: Asked,
    wanted: Wanted,
    /// The last that it was told of.
    board: Option<Arc<Board>>,
}

impl Viewer {
    fn new(app: Arc<App>, asked: Asked) -> Viewer {
        let mut boards = app.boards.clone();
        // A board of before may be old: nothing is looked at while no page is open.
        boards.mark_unchanged();
        let kind = Kind::from_str(&asked.kind, false).ok();
        let one = asked.name.iter();
        let shown = one.map(|name| Shown::alone(name, kind)).collect();
        let number = {
            let mut viewers = app.viewers();
            viewers.last += 1;
            let number = viewers.last;
            viewers.pages.insert(number, shown);
            number
        };
        app.wake.notify_one();
        Viewer {
            app,
            number,
            boards,
            wanted: asked.wanted(),
            asked,
            board: None,
        }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            let changed = timeout(SILENT, self.boards.changed()).await;
            if let Ok(changed) = changed {
                changed.ok()?;
                self.board.clone_from(&self.boards.borrow_and_update());
                return self.document();
            }
            // A look that takes long: the last board, and why it is old.
            let old = { self.board.as_ref() }.and_then(|board| board.at.elapsed().ok());
            if let (Some(old), Some(mut document)) = (old, self.document()) {
                let trouble = format!("the server has not answered for {}", human(old));
                document["trouble"] = json!(trouble);
                return Some(document);
            }
        }
    }

    fn document(&self) -> Option<Value> {
        let board = self.board.as_ref()?;
        Some(match &self.asked.name {
            Some(name) => one(&self.app, board, name),
            None => self.list(board),
        })
    }

    fn list(&self, board: &Board) -> Value {
        let rows = board.rows(&self.wanted);
        let seen = &rows[..rows.len().min(ROWS)];
        let shown = seen.iter().map(|lock| Shown::in_list(&lock.name)).collect();
        self.app.viewers().pages.insert(self.number, shown);
        let counts = board.counts();
        let mut list = json!({
            "keys": board.keys,
            "round_ms": board.round.map(millis),
            "progress": board.progress,
            "locks": counts.locks,
            "waited_for": counts.waited_for,
            "gone": counts.gone,
            "silent": counts.silent,
            "endless": counts.endless,
            "oldest_ms": board.oldest().map(millis),
            "matching": rows.len(),
            "rows": seen.iter().map(|lock| in_list(board, lock)).collect::<Vec<_>>(),
        });
        put_head(&mut list, &self.app, board);
        list
    }
}

/// The last page that closes ends the looks.
impl Drop for Viewer {
    fn drop(&mut self) {
        self.app.viewers().pages.remove(&self.number);
    }
}

/// A lock as `ls --json` prints it, and for how long it has been seen held where its holder does not tell.
fn row(board: &Board, lock: &leasehold::Status) -> Value {
    let mut row = document(lock);
    let age = board.held_for(lock);
    row["held_ms"] = json!(age.map(|age| millis(age.held)));
    row["held_is_least"] = json!(age.is_some_and(|age| age.is_least));
    row
}

/// A lock may have a thousand holders and waiters: a list shows the one that needs looking after most, and how many there are.
fn in_list(board: &Board, lock: &leasehold::Status) -> Value {
    let mut one = lock.clone();
    if let Some((worst, _)) = life::worst(lock) {
        one.holders = vec![worst.clone()];
    }
    one.queue.truncate(1);
    let mut row = row(board, &one);
    row["holder_count"] = json!(lock.holders.len());
    let left = lock.holders.iter().map(|holder| holder.remaining);
    let left = left.collect::<Option<Vec<_>>>();
    row["left_ms"] = json!(left.and_then(|left| left.into_iter().max()).map(millis));
    row
}

/// The document of a single lock: its holders since this program runs, and its keys.
fn one(app: &App, board: &Board, name: &str) -> Value {
    let (lock, error) = match board.one(name) {
        Ok(lock) => (lock, None),
        Err(error) => (None, Some(error)),
    };
    let story = board.story(name).into_iter().take(50).map(|past| {
        json!({
            "owner": past.shown,
            "who": past.who,
            "since_ms": since_epoch(past.since),
            "until_ms": past.until.map(since_epoch),
        })
    });
    let keys = lock.map_or(Vec::new(), |lock| kinds::keys(lock.kind, &app.prefix, name));
    let keys = keys
        .into_iter()
        .map(|(key, what)| json!({ "key": key, "what": what }));
    let mut one = json!({
        "status": lock.map(|lock| row(board, lock)),
        "history": story.collect::<Vec<_>>(),
        "keys": keys.collect::<Vec<_>>(),
    });
    put_head(&mut one, app, board);
    if let Some(error) = error {
        one["trouble"] = json!(error);
    }
    one
}

fn put_head(document: &mut Value, app: &App, board: &Board) {
    document["server"] = json!(app.server);
    document["now_ms"] = json!(since_epoch(board.at));
    document["may_unlock"] = json!(app.guard.may_unlock());
    document["trouble"] = json!(board.trouble);
}

fn since_epoch(time: SystemTime) -> u64 {
    millis(
        time.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO),
    )
}

pub(super) async fn live(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Response {
    let viewer = Viewer::new(app, asked);
    Sse::new(events(viewer)).into_response()
}

fn events(viewer: Viewer) -> impl Stream<Item = Result<Event, Infallible>> {
    unfold(viewer, async |mut viewer| {
        let document = viewer.next().await?;
        Some((Ok(Event::default().data(document.to_string())), viewer))
    })
}
