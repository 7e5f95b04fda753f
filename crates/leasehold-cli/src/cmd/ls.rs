//! `leasehold ls`: the locks whose names match a pattern.

use std::{
    cmp::Reverse,
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::join_all;
use leasehold::{Access, Client, Error, Find, Holder, LockKind, Status};
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::status::document;
use crate::{
    args::{Ls, Sort},
    exit::{Exit, Failure},
    kinds::{self, Kind},
    life::{self, Life},
    output::{self, human, others, visible},
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
        let is_old = |least| held_for(lock, now).is_some_and(|held| held >= least);
        args.kind.is_none_or(|kind| kind.is_listed_as(lock.kind))
            && args.older.is_none_or(is_old)
            && (!args.gone || life::of_lock(lock) == Life::Gone)
    });
    sort(&mut found, args.sort, now);
    if args.json {
        let lines = found
            .iter()
            .map(|lock| output::json_line(&document(lock)) + "\n");
        output::print(&lines.collect::<String>())?;
    } else if !found.is_empty() {
        output::print(&(table(&found, now, columns()) + &summary(&found)))?;
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
    let holders = found.iter().flat_map(|lock| &lock.holders);
    // Ours tell when their leases were asked for.
    let mut ours = holders.filter(|holder| holder.since.is_some()).peekable();
    if ours.peek().is_some() && ours.all(|holder| holder.connected.is_none()) {
        let message = "the server does not tell which clients are connected: it is a replica, or the rules of its user lack +client|list, \
                       +client|setname or +info, or labels (docs/keys.md#permissions)";
        return Err(Failure::new(Exit::Rejected, message));
    }
    Ok(())
}

/// The last line.
fn summary(found: &[Status]) -> String {
    let waited_for = found.iter().filter(|lock| lock.waiting_clients > 0).count();
    let of = |life: &dyn Fn(Life) -> bool| {
        found
            .iter()
            .filter(|lock| life(life::of_lock(lock)))
            .count()
    };
    let (gone, silent) = (
        of(&|life| life == Life::Gone),
        of(&|life| matches!(life, Life::Silent(_))),
    );
    let mut text = match found.len() {
        1 => "1 lock".to_owned(),
        all => format!("{all} locks"),
    };
    for (count, of) in [
        (waited_for, "with waiters"),
        (gone, "whose holder is gone ✗"),
        (silent, "whose holder is silent ?"),
    ] {
        if count > 0 {
            let _ = write!(text, " · {count} {of}");
        }
    }
    text.push('\n');
    text
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
    let Some((first, life)) = life::worst(lock) else {
        return NONE.to_owned();
    };
    let others = others(lock.holders.len() - 1);
    let mark = life
        .mark()
        .map_or(String::new(), |(mark, _)| format!("{mark} "));
    format!("{mark}{}{others}", holder(lock, first))
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
    let bold = anstyle::Style::new().bold();
    let headings = columns.iter().map(|column| column.heading);
    let mut text = format!("{bold}{}{bold:#}\n", line(&columns, headings));
    for (i, lock) in found.iter().enumerate() {
        let cells = columns.iter().map(|column| column.cells[i].as_str());
        let line = line(&columns, cells);
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

#[cfg(test)]
mod tests {
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
            let shown = table(&found, SystemTime::now(), wide);
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
        assert_eq!(summary(&found), "3 locks · 1 whose holder is gone ✗\n");
        drop(guards);
    }
}
