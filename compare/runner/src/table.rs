//! The section of docs/comparison.md between its markers, and whether a second run agrees with the first.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use crate::{
    Failure,
    machine::{Cores, date, processor},
    rounds::{Contender, Field, IDLE_TASKS, KILL_LEASE_MS, Plan, median},
};

const BEGIN: &str = "<!-- measured -->";
const END: &str = "<!-- /measured -->";

/// Two runs of a machine at rest agree within this factor.
const AGREES: f64 = 1.5;

pub(crate) struct Column {
    pub(crate) key: &'static str,
    pub(crate) heading: &'static str,
    /// Whether more is better.
    pub(crate) more: bool,
    /// Whether two runs agree in its ratio: in that of the one longest wait of a round they do not.
    steady: bool,
}

const fn more(key: &'static str, heading: &'static str) -> Column {
    Column {
        key,
        heading,
        more: true,
        steady: true,
    }
}

const fn less(key: &'static str, heading: &'static str) -> Column {
    Column {
        key,
        heading,
        more: false,
        steady: true,
    }
}

const fn longest(key: &'static str, heading: &'static str) -> Column {
    Column {
        key,
        heading,
        more: false,
        steady: false,
    }
}

pub(crate) const SPEED: [Column; 7] = [
    more("pair", "one task: pairs/s"),
    more("names", "100 names, 100 tasks: pairs/s"),
    more("hot", "hot name, one process: holds/s"),
    more("four", "hot name, four processes: holds/s"),
    less("idle", "idle waiters: commands/s"),
    less("hand_over", "hand-over: ms"),
    less("kill", "holder killed: s"),
];

const COST: [Column; 7] = [
    less("pair_commands", "one task: commands"),
    less("hot_commands", "hot name, one process: commands"),
    less("four_commands", "hot name, four processes: commands"),
    less("pair_cpu", "one task: server µs"),
    less("hot_cpu", "hot name, one process: server µs"),
    longest("hot_longest", "hot name, one process: longest wait, ms"),
    longest("four_longest", "hot name, four processes: longest wait, ms"),
];

/// A library's figure, and its ratio to the first one's.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) value: f64,
    pub(crate) ratio: f64,
    pub(crate) ahead: bool,
}

pub(crate) fn cell(of: &Contender, first: &Contender, column: &Column) -> Option<Cell> {
    let (own, theirs) = (of.figures.get(column.key)?, first.figures.get(column.key)?);
    Some(beside(own, theirs, column.more))
}

/// Round by round.
fn beside(own: &[f64], theirs: &[f64], more: bool) -> Cell {
    let mut ratios: Vec<f64> = own
        .iter()
        .zip(theirs)
        .map(|(own, theirs)| own / theirs)
        .collect();
    let ratio = median(&mut ratios);
    // As it is printed: a tie is not ahead.
    let printed = (ratio * 100.0).round() / 100.0;
    let ahead = if more { printed > 1.0 } else { printed < 1.0 };
    Cell {
        value: median(&mut own.to_vec()),
        ratio,
        ahead,
    }
}

/// Three digits that count, and thousands apart.
pub(crate) fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.5 => 0,
        v if v >= 9.95 => 1,
        v if v >= 0.0995 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut parts: Vec<&str> = Vec::new();
    let mut left = whole;
    while left.len() > 3 {
        let (before, thousand) = left.split_at(left.len() - 3);
        parts.insert(0, thousand);
        left = before;
    }
    parts.insert(0, left);
    parts.join(",") + rest
}

fn table(field: &Field, columns: &[Column], last: Option<&dyn Fn(&Contender) -> String>) -> String {
    let first = &field.contenders[0];
    let mut text = String::from("| |");
    for column in columns {
        let _ = write!(text, " {} |", column.heading);
    }
    text += if last.is_some() {
        " updates lost |\n|---|"
    } else {
        "\n|---|"
    };
    text += &"---|".repeat(columns.len() + usize::from(last.is_some()));
    text.push('\n');
    for of in &field.contenders {
        let _ = write!(text, "| {} |", of.library);
        for column in columns {
            let _ = match cell(of, first, column) {
                None => write!(text, " – |"),
                Some(cell) if std::ptr::eq(of, first) => write!(text, " {} |", figure(cell.value)),
                Some(cell) => {
                    let (value, ratio) = (figure(cell.value), figure(cell.ratio));
                    let mark = if cell.ahead { "**" } else { "" };
                    let ratio = if column.steady {
                        format!(" ({ratio})")
                    } else {
                        String::new()
                    };
                    write!(text, " {mark}{value}{mark}{ratio} |")
                }
            };
        }
        if let Some(last) = last {
            let _ = write!(text, " {} |", last(of));
        }
        text.push('\n');
    }
    text
}

fn lost(of: &Contender) -> String {
    let counted = figure(of.counted as f64);
    if of.lost == 0 {
        format!("none of {counted}")
    } else {
        format!(
            "**{} of {counted}**: two held it at once",
            figure(of.lost as f64)
        )
    }
}

/// Why a `–` has no figure.
fn failures(field: &Field) -> String {
    let mut text = String::new();
    for of in &field.contenders {
        for (kind, reason) in &of.failures {
            let column = SPEED.iter().chain(&COST).find(|column| column.key == *kind);
            let heading = column.map_or(*kind, |column| column.heading);
            let _ = writeln!(
                text,
                "- {}, {heading}: {}.",
                of.library,
                reason.replace('\n', " ")
            );
        }
    }
    if text.is_empty() {
        text
    } else {
        format!(
            "\nWhere a library did not get through, and so has no figure or those of fewer rounds:\n\n{text}"
        )
    }
}

fn picture() -> String {
    let alt = "A dot for each library and workload, on logarithmic scales. The table below has the figures.";
    format!(
        "<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"compare-dark.svg\">\n  <img src=\"compare-light.svg\" alt=\"{alt}\">\n</picture>\n"
    )
}

pub(crate) fn section(field: &Field, cores: &Cores, plan: Plan) -> Result<String, Failure> {
    let server = field.contenders[0].redis_version()?;
    let (date, processor) = (date(), processor());
    let mut text = format!(
        "{BEGIN}\n{date}; {processor}; redis-server {server} on loopback, without persistence; {}; medians of {} rounds, in which each library has {} s for each workload, in turns. In brackets: \
         how many times Leasehold's figure of the same round. **Bold: ahead of Leasehold.**\n\n",
        cores.told(),
        field.rounds,
        plan.window_ms as f64 / 1e3,
    );
    text += &picture();
    text.push('\n');
    text += &table(field, &SPEED, None);
    let _ = write!(
        text,
        "\n*Pair*: take and give back. *Hot*: 16 tasks want one name. *Idle waiters*: what {IDLE_TASKS} of them and their holder send in a second. *Hand-over*: from the release in one process to the hold in \
         another, which waits. *Holder killed*: from `kill -9` of a process with a lease of {} s until the next one has the name.\n\nWhat a hold cost, and how long the unluckiest task waited:\n\n",
        KILL_LEASE_MS / 1000,
    );
    text += &table(field, &COST, Some(&lost));
    text +=
        "\nEach library as its README shows it first:\n\n| | version | settings |\n|---|---|---|\n";
    for of in &field.contenders {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            of.library, of.version, of.settings
        );
    }
    for (library, reason) in &field.left_out {
        let _ = writeln!(
            text,
            "| {library} | left out | {} |",
            reason.replace(['|', '\n'], " ")
        );
    }
    text += &failures(field);
    text += END;
    Ok(text)
}

/// The page with this section in the place of the last one.
pub(crate) fn weave(page: &str, section: &str) -> Result<String, Failure> {
    let lacks = || format!("the page lacks {BEGIN} or {END}, between which the figures go");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(lacks)?;
    let (_, after) = rest.split_once(END).ok_or_else(lacks)?;
    Ok(format!("{before}{section}{after}"))
}

/// Compares the ratios with those of the last run, which are in the file, and writes these there.
pub(crate) fn agreement(path: &Path, field: &Field) -> Result<String, Failure> {
    let mut now = BTreeMap::new();
    for of in &field.contenders[1..] {
        for column in SPEED.iter().chain(&COST).filter(|column| column.steady) {
            if let Some(cell) = cell(of, &field.contenders[0], column) {
                now.insert(format!("{}: {}", of.library, column.heading), cell.ratio);
            }
        }
    }
    let before = fs::read_to_string(path).unwrap_or_default();
    let before = before.lines().filter_map(|line| line.split_once('\t'));
    let mut apart: Vec<(f64, &str)> = Vec::new();
    for (what, ratio) in before {
        if let (Some(now), Ok(ratio)) = (now.get(what), ratio.parse::<f64>()) {
            apart.push(((now / ratio).max(ratio / now), what));
        }
    }
    apart.sort_by(|a, b| b.0.total_cmp(&a.0));
    let said = match apart.first() {
        None => "The ratios are kept; the next run says how far its own are from them.".to_owned(),
        Some((factor, what)) => {
            let far = apart.iter().filter(|(factor, _)| *factor > AGREES);
            let far: Vec<String> = far
                .map(|(factor, what)| format!("\n  {factor:.2} × {what}"))
                .collect();
            let agree = apart.len() - far.len();
            format!(
                "{agree} of {} ratios agree with the last run's within a factor of {AGREES}; the farthest is {factor:.2} × off ({what}){}",
                apart.len(),
                far.concat()
            )
        }
    };
    let lines: Vec<String> = now
        .iter()
        .map(|(what, ratio)| format!("{what}\t{ratio}\n"))
        .collect();
    fs::write(path, lines.concat())?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::{beside, figure, weave};

    #[test]
    fn who_is_ahead_is_said_round_by_round_and_a_tie_is_not() {
        // A machine that is slow in one round is so for both.
        let faster = beside(&[110.0, 11.0, 220.0], &[100.0, 10.0, 200.0], true);
        assert!(faster.ahead && (faster.ratio - 1.1).abs() < 1e-9);
        assert!(!beside(&[110.0], &[100.0], false).ahead);
        assert!(beside(&[90.0], &[100.0], false).ahead);
        assert!(!beside(&[100.4], &[100.0], true).ahead);
    }

    #[test]
    fn figures_have_three_digits_or_thousands() {
        let shown = [385_548.2, 999.6, 99.96, 12.34, 1.234, 0.1, 0.0154].map(figure);
        assert_eq!(
            shown,
            ["385,548", "1,000", "100", "12.3", "1.23", "0.10", "0.015"]
        );
    }

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let page = "# A\n<!-- measured -->\nold\n<!-- /measured -->\nB\n";
        assert_eq!(weave(page, "new").unwrap(), "# A\nnew\nB\n");
        assert!(weave("# A\n", "new").is_err());
    }
}
