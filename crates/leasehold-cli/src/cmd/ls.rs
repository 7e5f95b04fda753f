//! `leasehold ls`: the locks whose names match a pattern.

use std::{
    cmp::Reverse,
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Access, Holder, LockKind, Status};
use rustix::termios::tcgetwinsize;

use super::status::document;
use crate::{
    args::{Ls, Sort},
    exit::{Exit, Failure},
    kinds,
    output::{self, human, others, visible},
};

pub(crate) async fn run(args: &Ls) -> Result<Exit, Failure> {
    let client = args.server.address()?.connect().await?;
    let (mut find, mut found) = (client.find(&args.pattern), Vec::new());
    let mut progress = Progress::new();
    while let Some(page) = find.next().await? {
        found.extend(page);
        progress.show(find.progress(), found.len());
    }
    drop(progress);
    let now = SystemTime::now();
    let all = found.len();
    found.retain(|lock| {
        let is_old = |least| held_for(lock, now).is_some_and(|held| held >= least);
        args.kind.is_none_or(|kind| kind.is_listed_as(lock.kind)) && args.older.is_none_or(is_old)
    });
    sort(&mut found, args.sort, now);
    if args.json {
        let lines = found
            .iter()
            .map(|lock| output::json_line(&document(lock)) + "\n");
        output::print(&lines.collect::<String>())?;
    } else if found.is_empty() {
        let pattern = visible(&args.pattern);
        let under = match args.server.prefix()?.as_str() {
            "" => String::new(),
            prefix => format!(" under the prefix {}", visible(prefix)),
        };
        match all {
            0 => eprintln!("leasehold: no locks match {pattern}{under}"),
            _ => {
                eprintln!(
                    "leasehold: {all} locks match {pattern}{under}, but none is of that kind or that old"
                );
            }
        }
    } else {
        output::print(&table(&found, now, columns()))?;
    }
    Ok(Exit::Done)
}

fn sort(found: &mut [Status], by: Sort, now: SystemTime) {
    found.sort_by(|one, other| one.name.cmp(&other.name));
    match by {
        Sort::Name => {}
        Sort::Held => found.sort_by_key(|lock| Reverse(held_for(lock, now))),
        Sort::Left => found.sort_by_key(|lock| match left(lock) {
            Left::For(left) => (0, left),
            Left::NeverEnds => (1, Duration::ZERO),
            Left::NoLease => (2, Duration::ZERO),
        }),
        Sort::Waiting => found.sort_by_key(|lock| Reverse(lock.waiting_clients)),
    }
}

/// For how long its oldest holder has had it, as far as the owner fields tell.
fn held_for(lock: &Status, now: SystemTime) -> Option<Duration> {
    let since = lock.holders.iter().filter_map(|holder| holder.since).min();
    since.map(|since| now.duration_since(since).unwrap_or_default())
}

/// When a lock is free that its holders do not renew.
enum Left {
    For(Duration),
    NeverEnds,
    /// It has no holder, or its holders have no leases.
    NoLease,
}

fn left(lock: &Status) -> Left {
    if lock.holders.is_empty() {
        return Left::NoLease;
    }
    let all = lock.holders.iter().map(|holder| holder.remaining);
    match all.collect::<Option<Vec<_>>>() {
        Some(all) => Left::For(all.into_iter().max().unwrap_or_default()),
        None => Left::NeverEnds,
    }
}

/// The word in place of what there is not.
const NONE: &str = "–";

fn who(lock: &Status) -> String {
    if let Some(count) = lock.count {
        return format!("{count} to come");
    }
    let Some(first) = lock.holder() else {
        return NONE.to_owned();
    };
    let others = others(lock.holders.len() - 1);
    format!("{}{others}", holder(lock, first))
}

fn holder(lock: &Status, holder: &Holder) -> String {
    match holder.client.as_str() {
        _ if kinds::is_of_another_library(lock, holder) => "another library".to_owned(),
        client => kinds::who(holder.label.as_deref(), holder.thread).unwrap_or_else(|| {
            if client.is_empty() {
                format!("permit {}", visible(&holder.owner))
            } else {
                format!("client {}", visible(client))
            }
        }),
    }
}

/// How it is held, in a word that `--kind` takes.
fn kind(lock: &Status) -> String {
    let reads = lock.holder().map(|holder| holder.access);
    let kind = match (lock.kind, reads) {
        (LockKind::RwLock, Some(Access::Shared)) => Some(kinds::Kind::Read),
        (LockKind::RwLock, Some(_)) => Some(kinds::Kind::Write),
        (kind, _) => kinds::Kind::of(kind),
    };
    kind.map_or(lock.kind.to_string(), kinds::Kind::word)
}

/// A column: its heading, what it says of each lock, whether these are numbers, and how wide it is.
struct Column {
    heading: &'static str,
    cells: Vec<String>,
    is_number: bool,
    width: usize,
}

impl Column {
    fn new(heading: &'static str, is_number: bool, cells: Vec<String>) -> Column {
        let widths = cells.iter().map(|cell| cell.chars().count());
        Column {
            heading,
            width: widths.fold(heading.len(), usize::max),
            is_number,
            cells,
        }
    }

    /// To this width at most.
    fn shorten(&mut self, most: usize) {
        for cell in &mut self.cells {
            if cell.chars().count() > most {
                *cell = cell.chars().take(most - 1).chain(['…']).collect();
            }
        }
        self.width = self.width.min(most);
    }
}

/// A name or a holder longer than this may be shortened.
const SHORT: usize = 24;

/// The width of the terminal; without one a line may be as long as it is.
fn columns() -> usize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if io::stdout().is_terminal() && size.ws_col > 0 => size.ws_col.into(),
        _ => usize::MAX,
    }
}

const GAP: usize = 2;

/// A line for each lock, no wider than `wide` if shorter words and fewer columns suffice for that.
fn table(found: &[Status], now: SystemTime, wide: usize) -> String {
    let column = |heading, is_number, cell: &dyn Fn(&Status) -> String| {
        Column::new(heading, is_number, found.iter().map(cell).collect())
    };
    let or_none = |some: Option<String>| some.unwrap_or_else(|| NONE.to_owned());
    let mut columns = vec![
        column("NAME", false, &|lock| visible(&lock.name)),
        column("KIND", false, &kind),
        column("HOLDER", false, &who),
        column("HELD FOR ≤", true, &|lock| {
            or_none(held_for(lock, now).map(human))
        }),
        column("LEASE LEFT", true, &|lock| match left(lock) {
            Left::For(left) => human(left),
            Left::NeverEnds => "never ends !".to_owned(),
            Left::NoLease => NONE.to_owned(),
        }),
        column("WAITING", true, &|lock| {
            or_none((lock.waiting_clients > 0).then(|| lock.waiting_clients.to_string()))
        }),
    ];
    let width = |columns: &[Column]| -> usize {
        let widths = columns.iter().map(|column| column.width + GAP);
        widths.sum::<usize>() - GAP
    };
    // Long words are shortened first, then columns are left out.
    for heading in ["NAME", "HOLDER"] {
        let too_wide = width(&columns).saturating_sub(wide);
        let long = columns.iter_mut().find(|column| column.heading == heading);
        if let Some(column) = long.filter(|_| too_wide > 0) {
            column.shorten(column.width.saturating_sub(too_wide).max(SHORT));
        }
    }
    for heading in ["KIND", "HELD FOR ≤"] {
        if width(&columns) > wide {
            columns.retain(|column| column.heading != heading);
        }
    }
    let bold = anstyle::Style::new().bold();
    let headings = columns.iter().map(|column| column.heading);
    let mut text = format!("{bold}{}{bold:#}\n", line(&columns, headings));
    for i in 0..found.len() {
        let cells = columns.iter().map(|column| column.cells[i].as_str());
        let _ = writeln!(text, "{}", line(&columns, cells));
    }
    text
}

fn line<'a>(columns: &[Column], cells: impl Iterator<Item = &'a str>) -> String {
    let mut line = String::new();
    for (column, cell) in columns.iter().zip(cells) {
        let width = column.width;
        let _ = if column.is_number {
            write!(line, "{cell:>width$}  ")
        } else {
            write!(line, "{cell:<width$}  ")
        };
    }
    line.trim_end().to_owned()
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
