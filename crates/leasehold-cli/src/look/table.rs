//! A table of locks, as `ls` and `top` show it.

use std::{
    cmp::Reverse,
    fmt::Write as _,
    io::{self, IsTerminal as _},
    time::{Duration, SystemTime},
};

use leasehold::{Access, Holder, LockKind, Status};
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::{
    args::Sort,
    kinds,
    life::{self, Life},
    output::{human, others, visible},
};

/// How many locks there are, and how many of them need a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) locks: usize,
    pub(crate) waited_for: usize,
    pub(crate) gone: usize,
    pub(crate) silent: usize,
    pub(crate) endless: usize,
}

impl Counts {
    pub(crate) fn of<'a>(found: impl IntoIterator<Item = &'a Status>) -> Counts {
        let mut counts = Counts::default();
        for lock in found {
            let life = life::of_lock(lock);
            counts.locks += 1;
            counts.waited_for += usize::from(lock.waiting_clients > 0);
            counts.gone += usize::from(life == Life::Gone);
            counts.silent += usize::from(matches!(life, Life::Silent(_)));
            counts.endless += usize::from(is_endless(lock));
        }
        counts
    }

    /// The line below a list.
    pub(crate) fn summary(self) -> String {
        let mut text = match self.locks {
            1 => "1 lock".to_owned(),
            locks => format!("{locks} locks"),
        };
        for (count, of) in [
            (self.waited_for, "with waiters"),
            (self.gone, "whose holder is gone ✗"),
            (self.silent, "whose holder is silent ?"),
            (self.endless, "without an end !"),
        ] {
            if count > 0 {
                let _ = write!(text, " · {count} {of}");
            }
        }
        text
    }
}

pub(crate) fn sort(found: &mut [&Status], by: Sort, held: Held) {
    found.sort_by(|one, other| one.name.cmp(&other.name));
    match by {
        Sort::Name => {}
        Sort::Held => found.sort_by_cached_key(|lock| Reverse(held(lock))),
        Sort::Left => found.sort_by_key(|lock| match left(lock) {
            Left::For(left) => (0, left),
            Left::NeverEnds => (1, Duration::ZERO),
            Left::NoLease => (2, Duration::ZERO),
        }),
        Sort::Waiting => found.sort_by_key(|lock| Reverse(lock.waiting_clients)),
    }
}

/// For how long a lock has been held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age {
    pub(crate) held: Duration,
    /// Its holder does not tell, and was seen first so long ago: it may be older. Else it is so old at most: a wait of its own is in it.
    pub(crate) is_least: bool,
}

impl Age {
    fn shown(self) -> String {
        let mark = if self.is_least { "≥ " } else { "" };
        format!("{mark}{}", human(self.held))
    }
}

/// `None`: that is not known.
pub(crate) type Held<'a> = &'a dyn Fn(&Status) -> Option<Age>;

/// For how long its oldest holder has had it, as far as the owner fields tell.
pub(crate) fn held_for(lock: &Status, now: SystemTime) -> Option<Age> {
    let since = lock.holders.iter().filter_map(|holder| holder.since).min();
    since.map(|since| Age {
        held: now.duration_since(since).unwrap_or_default(),
        is_least: false,
    })
}

/// When a lock is free that its holders do not renew.
enum Left {
    For(Duration),
    NeverEnds,
    /// It has no holder, or its holders have no leases.
    NoLease,
}

/// Whether a holder that crashed would keep it for ever.
pub(crate) fn is_endless(lock: &Status) -> bool {
    matches!(left(lock), Left::NeverEnds)
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
    let Some((first, life)) = life::worst(lock) else {
        return NONE.to_owned();
    };
    let others = others(lock.holders.len() - 1);
    let mark = life
        .mark()
        .map_or(String::new(), |(mark, _)| format!("{mark} "));
    format!("{mark}{}{others}", holder(lock, first))
}

pub(crate) fn holder(lock: &Status, holder: &Holder) -> String {
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
        let widths = cells.iter().map(|cell| cell.width());
        Column {
            heading,
            width: widths.fold(heading.width(), usize::max),
            is_number,
            cells,
        }
    }

    /// To this width at most, if it is wider.
    fn shorten(&mut self, most: usize) {
        for cell in &mut self.cells {
            if cell.width() > most {
                let mut width = 1; // of the dots
                let fits = |letter: &char| {
                    width += letter.width().unwrap_or_default();
                    width <= most
                };
                *cell = cell.chars().take_while(fits).chain(['…']).collect();
            }
        }
        self.width = self.width.min(most);
    }
}

/// The columns that a narrow terminal takes space from, in this order: down to a width, or all of it.
const GIVES_WAY: [(&str, Option<usize>); 5] = [
    ("NAME", Some(24)),
    ("KIND", None),
    ("HOLDER", Some(24)),
    ("NAME", Some(12)),
    ("HOLDER", Some(12)),
];

/// The width of the terminal; without one a line may be as long as it is.
pub(crate) fn columns() -> usize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if io::stdout().is_terminal() && size.ws_col > 0 => size.ws_col.into(),
        _ => usize::MAX,
    }
}

const GAP: usize = 2;

/// The lines of a table, no wider than asked for if shorter words and fewer columns suffice for that.
pub(crate) struct Lines {
    pub(crate) heading: String,
    /// A line for each lock.
    pub(crate) rows: Vec<String>,
}

pub(crate) fn lines(found: &[&Status], held: Held, wide: usize) -> Lines {
    let column = |heading, is_number, cell: &dyn Fn(&Status) -> String| {
        Column::new(
            heading,
            is_number,
            found.iter().map(|it| cell(it)).collect(),
        )
    };
    let or_none = |some: Option<String>| some.unwrap_or_else(|| NONE.to_owned());
    let mut columns = vec![
        column("NAME", false, &|lock| visible(&lock.name)),
        column("KIND", false, &kind),
        column("HOLDER", false, &who),
        column("HELD FOR ≤", true, &|lock| {
            or_none(held(lock).map(Age::shown))
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
    for (heading, most) in GIVES_WAY {
        let too_wide = width(&columns).saturating_sub(wide);
        let at = columns.iter().position(|column| column.heading == heading);
        if let Some(at) = at.filter(|_| too_wide > 0) {
            match most {
                Some(most) => {
                    let fits = columns[at].width.saturating_sub(too_wide);
                    columns[at].shorten(fits.max(most));
                }
                None => drop(columns.remove(at)),
            }
        }
    }
    let row = |at: usize| line(&columns, columns.iter().map(|it| it.cells[at].as_str()));
    Lines {
        heading: line(&columns, columns.iter().map(|column| column.heading)),
        rows: (0..found.len()).map(row).collect(),
    }
}

/// The table with its colours.
pub(crate) fn text(found: &[&Status], held: Held, wide: usize) -> String {
    let Lines { heading, rows } = lines(found, held, wide);
    let bold = anstyle::Style::new().bold();
    let mut text = format!("{bold}{heading}{bold:#}\n");
    for (lock, line) in found.iter().zip(rows) {
        let _ = match life::of_lock(lock).mark() {
            Some((_, colour)) => {
                let colour = colour.on_default();
                writeln!(text, "{colour}{line}{colour:#}")
            }
            None => writeln!(text, "{line}"),
        };
    }
    text
}

fn line<'a>(columns: &[Column], cells: impl Iterator<Item = &'a str>) -> String {
    let mut line = String::new();
    for (column, cell) in columns.iter().zip(cells) {
        let space = " ".repeat(column.width.saturating_sub(cell.width()));
        let _ = if column.is_number {
            write!(line, "{space}{cell}  ")
        } else {
            write!(line, "{cell}{space}  ")
        };
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use leasehold::Client;

    use super::*;

    /// A Chinese character takes two columns of a terminal.
    #[tokio::test]
    async fn a_table_fits_a_narrow_terminal_and_keeps_the_time_of_each_hold() {
        let client = Client::connect("memory:").await.unwrap();
        let names = [
            "stock:雨伞和雨衣和雨鞋和雨帽和雨具",
            "order:42",
            &"long:".repeat(20),
        ];
        let guards = join_all(names.map(|name| client.mutex(name).lock())).await;
        let mut found = client.find("*").next().await.unwrap().unwrap();
        let label = "a-host-with-a-long-name.example.org:12345";
        for lock in &mut found {
            lock.holders[0].label = Some(label.to_owned());
        }
        found[0].holders[0].connected = Some(false);
        for (wide, kind) in [(400, true), (120, true), (80, false), (60, false)] {
            let now = SystemTime::now();
            let shown = text(
                &found.iter().collect::<Vec<_>>(),
                &|lock| held_for(lock, now),
                wide,
            );
            let shown = anstream::adapter::strip_str(&shown).to_string();
            println!("{shown}");
            let widest = shown.lines().map(UnicodeWidthStr::width).max();
            assert!(
                widest.is_some_and(|widest| widest <= wide),
                "{widest:?} of {wide}\n{shown}"
            );
            let heads = shown.lines().next().unwrap();
            assert!(
                heads.contains("HELD FOR ≤") && heads.contains("LEASE LEFT"),
                "{heads}"
            );
            assert_eq!(heads.contains("KIND"), kind, "{heads}");
            // The beginnings of names tell them apart.
            for begin in ["stock:雨", "order:42", "long:long"] {
                assert!(shown.contains(begin), "{shown}");
            }
            // Each cell of a column ends where the others do.
            let ends = |line: &str| line.find(" s  ").map(|at| line[..at].width());
            let ends: Vec<_> = shown.lines().filter_map(ends).collect();
            assert!(ends.windows(2).all(|two| two[0] == two[1]), "{shown}");
        }
        assert_eq!(
            Counts::of(&found).summary(),
            "3 locks · 1 whose holder is gone ✗"
        );
        let (held, is_least) = (Duration::from_secs(7), true);
        let old = lines(&[&found[0]], &|_| Some(Age { held, is_least }), 400);
        assert!(old.rows[0].contains(" ≥ 7 s "), "{}", old.rows[0]);
        drop(guards);
    }
}
