//! The timeline, as lines of text: pure, so that it can be looked at in a test.
//!
//! 80 columns: a margin, the worker, the chart, and a note. Fewer, on a telephone: the chart stands below the worker and the note.

use std::{fmt::Write, time::Duration};

use anstyle::{AnsiColor, Color, Style};

use super::{
    record::{End, Hold, Record, What},
    story::{self, Part, Place, Role},
    verdict::{Check, Verdict},
};
use crate::output::human;

const LABEL: usize = 12;
const CHART: usize = 54;
const MARGIN: usize = 2;

/// How wide the picture is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    width: usize,
}

impl Layout {
    pub(super) const WIDE: Layout = Layout { width: 80 };
    /// On less the picture is not drawn well.
    const LEAST: usize = 40;

    /// For a terminal of so many columns.
    pub(super) fn of(columns: usize) -> Layout {
        Layout {
            width: columns.clamp(Layout::LEAST, Layout::WIDE.width),
        }
    }

    pub(super) fn width(self) -> usize {
        self.width
    }

    fn is_wide(self) -> bool {
        self == Layout::WIDE
    }

    fn chart(self) -> usize {
        if self.is_wide() {
            CHART
        } else {
            self.width - MARGIN
        }
    }

    /// Where the chart begins.
    fn indent(self) -> usize {
        if self.is_wide() { LABEL } else { MARGIN }
    }

    /// Words in as many lines as they need behind `indent`, each of one style.
    fn wrap(self, indent: usize, style: Style, words: &str) -> Vec<String> {
        let mut lines = vec![String::new()];
        for word in words.split(' ') {
            let line = lines.last().map_or(0, |line| line.chars().count());
            if line > 0 && indent + line + 1 + word.chars().count() > self.width {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
        }
        let shown = |line: &String| format!("{:indent$}{style}{line}{style:#}", "");
        lines.iter().map(shown).collect()
    }
}

/// A colour per process; all can be read on dark and on light ground.
const COLOURS: [AnsiColor; 3] = [AnsiColor::Cyan, AnsiColor::Magenta, AnsiColor::Yellow];
const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// The state of a worker in one column of the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Away,
    Waits,
    Holds,
    /// Holds it beside other readers.
    Reads,
    Renewed,
    /// Got it from a worker of the same process above or below.
    HandedDown,
    HandedUp,
    Lost,
    /// No process works, but the name is still taken.
    RunsOut,
}

impl Cell {
    fn glyph(self) -> char {
        match self {
            Cell::Away => ' ',
            Cell::Waits => '·',
            Cell::Holds => '▇',
            Cell::Reads => '▃',
            Cell::Renewed => '┃',
            Cell::HandedDown => '↓',
            Cell::HandedUp => '↑',
            Cell::Lost => '✗',
            Cell::RunsOut => '░',
        }
    }

    fn style(self, host: usize) -> Style {
        let colour = Style::new().fg_color(Some(Color::Ansi(COLOURS[host % COLOURS.len()])));
        match self {
            Cell::Away => Style::new(),
            Cell::Waits => DIM,
            Cell::Holds | Cell::Reads => colour,
            Cell::Renewed | Cell::HandedDown | Cell::HandedUp => BOLD,
            Cell::Lost => BAD,
            Cell::RunsOut => BAD.dimmed(),
        }
    }
}

/// The head of the whole: where the leases live, and the legend.
pub(super) fn head(layout: Layout, on: &str, seed: u64, broken: bool) -> Vec<String> {
    // A sign stays with its meaning.
    let sign = |cell: Cell, means: &str| format!("{}\u{a0}{means}", cell.glyph());
    let signs = [
        sign(Cell::Holds, "holds"),
        sign(Cell::Reads, "reads"),
        sign(Cell::Waits, "waits"),
        sign(Cell::Renewed, "renewed"),
        "↓↑\u{a0}handed\u{a0}over".to_owned(),
        sign(Cell::Lost, "lost"),
        sign(Cell::RunsOut, "lease\u{a0}runs\u{a0}out"),
    ];
    let mut lines = vec![String::new()];
    let on = format!("{on} · seed {seed}");
    if layout.is_wide() {
        lines.push(format!(" {BOLD}leasehold demo{BOLD:#}  {DIM}{on}{DIM:#}"));
    } else {
        lines.push(format!(" {BOLD}leasehold demo{BOLD:#}"));
        lines.extend(layout.wrap(1, DIM, &on));
    }
    let signs = layout.wrap(1, DIM, &signs.join("  "));
    lines.extend(signs.iter().map(|line| line.replace('\u{a0}', " ")));
    if broken {
        lines.push(format!(" {BAD}--broken: nobody asks for the lock{BAD:#}"));
    }
    lines
}

/// An act as it stands at `now`.
pub(super) fn act(layout: Layout, record: &Record, now: Duration) -> Vec<String> {
    let act = &record.act;
    let scale = Scale::new(
        layout.chart(),
        record.started,
        act.about.max(now.saturating_sub(record.started)),
    );
    let mut lines = vec![
        String::new(),
        format!(" {BOLD}{}  {}{BOLD:#}", act.number, act.title),
    ];
    if layout.is_wide() {
        lines.extend(act.says.map(|text| format!("    {DIM}{text}{DIM:#}")));
    } else {
        lines.extend(layout.wrap(4, DIM, &act.says.join(" ")));
    }
    let holds = record.holds();
    for (place, part) in act.places() {
        let mut line = label(place, part);
        let cells = cells(record, &holds, place, now, &scale);
        let note = note(record, &holds, place, part);
        if !layout.is_wide() {
            let _ = write!(line, " {note}");
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(layout.indent());
        }
        paint(&mut line, &cells, place.host);
        if layout.is_wide() {
            let _ = write!(line, " {note}");
        }
        lines.push(line.trim_end().to_owned());
    }
    let indent = layout.indent();
    lines.push(format!("{:indent$}{DIM}{}{DIM:#}", "", scale.axis()));
    let sold = i64::try_from(record.count(&What::Sold)).unwrap_or(i64::MAX);
    if !act.sold_out.is_empty() && sold >= story::STOCK {
        lines.extend(layout.wrap(4, DIM, act.sold_out));
    }
    lines
}

fn label(place: Place, part: &Part) -> String {
    let style = Cell::Holds.style(place.host);
    let text = format!("p{} {}", place.host + 1, part.name);
    format!("  {style}{text:<width$}{style:#}", width = LABEL - 2)
}

fn paint(line: &mut String, cells: &[Cell], host: usize) {
    for run in cells.chunk_by(|a, b| a == b) {
        let style = run[0].style(host);
        let glyphs: String = run.iter().map(|cell| cell.glyph()).collect();
        let _ = write!(line, "{style}{glyphs}{style:#}");
    }
}

/// The note at the end of a row.
fn note(record: &Record, holds: &[Hold], place: Place, part: &Part) -> String {
    let mut mine = holds.iter().filter(|hold| hold.place == place);
    if let Role::Buyer = part.role {
        let sold = record
            .happenings
            .iter()
            .filter(|it| it.what == What::Sold)
            .filter(|it| (it.host, it.part) == (place.host, Some(place.part)))
            .count();
        return format!("{sold} sold");
    }
    if let Some((heir, after)) = record.heir()
        && heir == place
    {
        return format!("after {}", human(after));
    }
    let Some(hold) = mine.next() else {
        return String::new();
    };
    match (hold.end, hold.renewals.len()) {
        (End::Killed, _) => format!("{BAD}killed{BAD:#}"),
        (End::Lost, _) => format!("{BAD}lost{BAD:#}"),
        (_, 0 | 1) => String::new(),
        (_, n) => format!("{n} renewals"),
    }
}

fn cells(record: &Record, holds: &[Hold], place: Place, now: Duration, scale: &Scale) -> Vec<Cell> {
    let mut cells = vec![Cell::Away; scale.chart];
    for (from, to) in record.waits(place, now) {
        cells[scale.columns(from, to)].fill(Cell::Waits);
    }
    for (number, hold) in holds.iter().enumerate() {
        if hold.place != place {
            continue;
        }
        let columns = scale.columns(hold.from, hold.to.unwrap_or(now));
        let sign = match record.part(place).role {
            Role::Reader { .. } => Cell::Reads,
            _ => Cell::Holds,
        };
        cells[columns.clone()].fill(sign);
        for renewal in &hold.renewals {
            set(&mut cells, scale.column(*renewal), Cell::Renewed);
        }
        if hold.handed_over {
            let mut before = holds[..number].iter().rev();
            let before = before.find(|hold| hold.place.host == place.host);
            let above = before.is_none_or(|before| before.place < place);
            let arrow = if above {
                Cell::HandedDown
            } else {
                Cell::HandedUp
            };
            set(&mut cells, columns.start, arrow);
        }
        if let (End::Killed | End::Lost, Some(to)) = (hold.end, hold.to) {
            if hold.end == End::Killed {
                let next = holds.iter().map(|hold| hold.from).find(|from| *from >= to);
                let taken = scale.columns(to, next.unwrap_or(now));
                cells[taken].fill(Cell::RunsOut);
            }
            set(&mut cells, scale.column(to), Cell::Lost);
        }
    }
    cells
}

fn set(cells: &mut [Cell], column: usize, cell: Cell) {
    if let Some(place) = cells.get_mut(column) {
        *place = cell;
    }
}

/// From time to columns.
struct Scale {
    chart: usize,
    start: Duration,
    length: Duration,
}

impl Scale {
    fn new(chart: usize, start: Duration, length: Duration) -> Self {
        Scale {
            chart,
            start,
            length: length.max(Duration::from_millis(1)),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a column is a small number"
    )]
    fn column(&self, at: Duration) -> usize {
        let part = at.saturating_sub(self.start).as_secs_f64() / self.length.as_secs_f64();
        (part * self.chart as f64) as usize
    }

    /// A column belongs to the hold in its middle, so that neighbours do not seem to overlap. Nothing is too short to be
    /// seen.
    fn columns(&self, from: Duration, to: Duration) -> std::ops::Range<usize> {
        let half = self.length / u32::try_from(2 * self.chart).unwrap_or(u32::MAX);
        let first = self.column(from + half).min(self.chart);
        let last = self.column(to + half).min(self.chart);
        if first == last && first < self.chart && to > from {
            first..last + 1
        } else {
            first..last
        }
    }

    fn axis(&self) -> String {
        let mut axis = vec![' '; self.chart];
        let every = if self.length > Duration::from_secs(12) {
            5
        } else {
            1
        };
        for second in (0..).step_by(every) {
            let column = self.column(self.start + Duration::from_secs(second));
            let text = format!("{second} s");
            if column + text.len() > self.chart {
                break;
            }
            for (offset, glyph) in text.chars().enumerate() {
                axis[column + offset] = glyph;
            }
        }
        axis.iter().collect::<String>().trim_end().to_owned()
    }
}

/// The end of the whole.
pub(super) fn verdict(layout: Layout, verdict: &Verdict) -> Vec<String> {
    let mut lines = vec![String::new(), format!(" {BOLD}Check{BOLD:#}")];
    lines.extend(verdict.checks.iter().flat_map(|it| check(layout, it)));
    let counts = verdict.counts;
    lines.push(String::new());
    let counts = format!(
        "{} acquisitions · {} hand-overs in memory · {} renewals · {} lost · {} sold",
        counts.acquisitions, counts.hand_overs, counts.renewals, counts.lost, counts.sold
    );
    lines.extend(layout.wrap(MARGIN, Style::new(), &counts));
    lines.push(if verdict.ok {
        format!("  {GOOD}passed{GOOD:#}")
    } else {
        format!("  {BAD}FAILED{BAD:#}")
    });
    lines
}

/// Where to go from here.
pub(super) fn hint(layout: Layout) -> Vec<String> {
    let words = "with real processes and kill -9: leasehold demo --url redis://127.0.0.1/";
    layout.wrap(MARGIN, DIM, words)
}

fn check(layout: Layout, check: &Check) -> Vec<String> {
    let (style, sign) = if check.ok {
        (GOOD, '✓')
    } else {
        (BAD, '✗')
    };
    if layout.is_wide() {
        return vec![format!(
            "  {style}{sign}{style:#} {:<27}{DIM}{}{DIM:#}",
            check.what, check.detail
        )];
    }
    let mut lines = vec![format!("  {style}{sign}{style:#} {}", check.what)];
    lines.extend(layout.wrap(4, DIM, &check.detail));
    lines
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            record::tests::{ms, record, record_of},
            story,
            verdict::judge,
        },
        *,
    };

    /// The rows of an act, without colours.
    fn rows(record: &Record, now: u64) -> Vec<String> {
        let plain = |line: &String| anstream::adapter::strip_str(line).to_string();
        let lines: Vec<String> = act(Layout::WIDE, record, ms(100_000 + now))
            .iter()
            .map(plain)
            .collect();
        lines[4..].to_vec()
    }

    fn story() -> Record {
        record(&[
            (0, 0, What::Asked),
            (0, 0, What::Entered),
            (300, 1, What::Asked),
            (500, 0, What::Renewed),
            (1_000, 0, What::Renewed),
            (1_200, 0, What::Killed),
            (2_000, 1, What::Entered),
            (2_500, 1, What::Left),
            (2_500, 2, What::HandedOver),
            (2_500, 2, What::Entered),
            (3_000, 2, What::Left),
        ])
    }

    #[test]
    fn the_timeline_shows_holds_waits_renewals_and_the_loss() {
        assert_eq!(
            rows(&story(), 4_500),
            [
                "  p1 slow   ▇▇▇▇▇▇┃▇▇▇▇▇┃▇✗░░░░░░░░░                               killed",
                "  p2 gus        ····················▇▇▇▇▇▇                         after 800 ms",
                "  p3 hal                                  ↓▇▇▇▇▇",
                "            0 s         1 s         2 s         3 s         4 s",
            ]
        );
    }

    #[test]
    fn while_it_runs_the_picture_ends_at_now() {
        let [first, second, ..] = &rows(
            &record(&[(0, 0, What::Entered), (100, 1, What::Asked)]),
            500,
        )[..] else {
            panic!("rows")
        };
        assert_eq!(first, "  p1 slow   ▇▇▇▇▇▇");
        assert_eq!(second, "  p2 gus     ·····");
    }

    #[test]
    fn neighbours_do_not_seem_to_overlap() {
        let rows = rows(&story(), 4_500);
        for column in LABEL..LABEL + CHART {
            let holders = rows[..3]
                .iter()
                .filter(|row| matches!(row.chars().nth(column), Some('▇' | '┃' | '↓')))
                .count();
            assert!(holders <= 1, "column {column}");
        }
    }

    #[test]
    fn everything_fits_the_terminal() {
        for columns in [80, 79, 45, 40] {
            let layout = Layout::of(columns);
            let on = "in memory, 3 clients stand for processes";
            let mut lines = head(layout, on, 9_999, true);
            for now in [0, 700, 4_500, 60_000] {
                lines.extend(act(layout, &story(), ms(100_000 + now)));
            }
            for act_ in story::acts() {
                lines.extend(act(layout, &Record::new(act_, ms(0)), ms(100)));
            }
            lines.extend(verdict(layout, &judge(&[story()], 20)));
            lines.extend(hint(layout));
            for line in lines {
                let plain = anstream::adapter::strip_str(&line).to_string();
                assert!(plain.chars().count() <= columns, "{columns}: {plain}");
            }
        }
    }

    /// On a telephone the chart has the width to itself.
    #[test]
    fn a_narrow_timeline_has_the_note_beside_the_worker_and_the_chart_below() {
        let plain = |line: &String| {
            let line = anstream::adapter::strip_str(line).to_string();
            line.trim_end().to_owned()
        };
        let lines = act(Layout::of(40), &story(), ms(104_500));
        let lines: Vec<String> = lines.iter().map(plain).collect();
        assert_eq!(
            lines[lines.len() - 7..],
            [
                "  p1 slow    killed",
                "  ▇▇▇▇┃▇▇▇┃▇✗░░░░░░",
                "  p2 gus     after 800 ms",
                "     ··············▇▇▇▇",
                "  p3 hal",
                "                       ↓▇▇▇",
                "  0 s     1 s     2 s      3 s     4 s",
            ]
        );
    }

    #[test]
    fn that_all_is_sold_is_said_when_it_is() {
        let sold = |count| {
            let mut events = vec![(0, 0, What::Entered)];
            events.extend((0..count).map(|at| (at, 0, What::Sold)));
            let lines = act(Layout::WIDE, &record_of(1, &events), ms(103_000));
            lines
                .iter()
                .any(|line| line.contains("Sold out: each buyer"))
        };
        assert!(!sold(19));
        assert!(sold(20));
    }
}
