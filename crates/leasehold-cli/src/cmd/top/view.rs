//! The picture of `top`, and how keys change it.

use std::fmt::Write as _;

use ratatui::{
    Frame,
    crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::Paragraph,
};
use unicode_width::UnicodeWidthChar as _;

use crate::{
    args::Sort,
    cmd::status,
    kinds::Kind,
    life,
    look::{
        board::{Board, Wanted},
        looker::Shown,
        table::{self, Lines},
    },
    output::{human, visible},
};

/// No picture fits into less.
const LEAST: (u16, u16) = (40, 6);
const HELP: &str = " ↑↓ choose  enter look  / filter  s sort  q quit";
/// The space that `status` puts in front of its values.
const INDENT: usize = 13;
const HELP_OF_ONE: &str = " ↑↓ scroll  esc back  q quit";
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// The effect of a key on the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    GoesOn,
    Ends,
}

pub(super) struct View {
    title: String,
    server: String,
    wanted: Wanted,
    /// A filter is being typed.
    types: bool,
    /// By name, so that the choice stays where the list moves.
    chosen: Option<String>,
    /// The first row that is seen.
    first: usize,
    /// How many rows fit.
    fit: usize,
    /// The lock that is looked at, and how far its text is scrolled.
    one: Option<(Shown, usize)>,
}

impl View {
    pub(super) fn new(title: String, server: String, wanted: Wanted) -> View {
        View {
            title,
            server,
            wanted,
            types: false,
            chosen: None,
            first: 0,
            fit: 1,
            one: None,
        }
    }

    pub(super) fn hear(&mut self, event: &Event, board: Option<&Board>) -> Does {
        let Event::Key(key) = event else {
            return Does::GoesOn;
        };
        if key.kind == KeyEventKind::Release {
            return Does::GoesOn;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Does::Ends,
            KeyCode::Char(_) if is_control => {}
            code if self.types => self.type_filter(code),
            KeyCode::Char('q') => return Does::Ends,
            code if self.one.is_some() => self.scroll(code),
            KeyCode::Char('/') => self.types = true,
            KeyCode::Char('s') => self.wanted.sort = after(self.wanted.sort),
            KeyCode::Esc => self.wanted.search.clear(),
            KeyCode::Enter => self.open(board),
            code => {
                let page = isize::try_from(self.fit).unwrap_or(isize::MAX);
                match code {
                    KeyCode::Up | KeyCode::Char('k') => self.choose(board, -1),
                    KeyCode::Down | KeyCode::Char('j') => self.choose(board, 1),
                    KeyCode::PageUp => self.choose(board, -page),
                    KeyCode::PageDown => self.choose(board, page),
                    KeyCode::Home => self.choose(board, isize::MIN),
                    KeyCode::End => self.choose(board, isize::MAX),
                    _ => {}
                }
            }
        }
        Does::GoesOn
    }

    fn open(&mut self, board: Option<&Board>) {
        let Some(name) = &self.chosen else { return };
        let locks = board.into_iter().flat_map(|board| &board.locks);
        let kind = { locks }.find(|lock| lock.name == *name);
        let kind = kind.and_then(|lock| Kind::of(lock.kind));
        self.one = Some((Shown::alone(name, kind), 0));
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.wanted.search.push(letter),
            KeyCode::Backspace => drop(self.wanted.search.pop()),
            KeyCode::Enter => self.types = false,
            KeyCode::Esc => {
                self.types = false;
                self.wanted.search.clear();
            }
            _ => {}
        }
    }

    fn scroll(&mut self, code: KeyCode) {
        let Some((_, by)) = &mut self.one else { return };
        match code {
            KeyCode::Up | KeyCode::Char('k') => *by = by.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => *by = by.saturating_add(1),
            KeyCode::PageUp => *by = by.saturating_sub(self.fit),
            KeyCode::PageDown => *by = by.saturating_add(self.fit),
            KeyCode::Home => *by = 0,
            KeyCode::End => *by = usize::MAX,
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => self.one = None,
            _ => {}
        }
    }

    fn choose(&mut self, board: Option<&Board>, by: isize) {
        let Some(rows) = board.map(|board| board.rows(&self.wanted)) else {
            return;
        };
        let at = rows
            .iter()
            .position(|lock| Some(&lock.name) == self.chosen.as_ref());
        let next = at.unwrap_or_default().saturating_add_signed(by);
        let next = next.min(rows.len().saturating_sub(1));
        self.chosen = rows.get(next).map(|lock| lock.name.clone());
    }

    /// Draws it. The locks that are seen.
    pub(super) fn draw(&mut self, frame: &mut Frame, board: Option<&Board>) -> Vec<Shown> {
        let (wide, high) = (frame.area().width, frame.area().height);
        let (mut lines, shown) = if wide < LEAST.0 || high < LEAST.1 {
            let text = format!("{} × {} at least", LEAST.0, LEAST.1);
            (vec![Line::from(text)], Vec::new())
        } else if let Some((one, by)) = self.one.take() {
            self.fit = usize::from(high).saturating_sub(2).max(1);
            let mut lines = Self::text_of_one(&one.name, board, wide.into());
            // The end of the text is as far as it can be scrolled.
            let by = by.min(lines.len().saturating_sub(self.fit));
            lines.drain(..by);
            lines.truncate(self.fit);
            lines.insert(0, self.head_of_one(board));
            lines.resize(usize::from(high) - 1, Line::default());
            lines.push(Line::styled(HELP_OF_ONE, FAINT));
            self.one = Some((one.clone(), by));
            (lines, vec![one])
        } else {
            self.list(board, wide.into(), high.into())
        };
        lines.truncate(high.into());
        frame.render_widget(Paragraph::new(lines), frame.area());
        shown
    }

    fn list(
        &mut self,
        board: Option<&Board>,
        wide: usize,
        high: usize,
    ) -> (Vec<Line<'static>>, Vec<Shown>) {
        let mut lines = self.head(board, wide);
        let Some(board) = board else {
            return (lines, Vec::new());
        };
        let rows = board.rows(&self.wanted);
        // Two lines of head, one of headings, one of help.
        self.fit = high.saturating_sub(4).max(1);
        let at = |name: &String| rows.iter().position(|lock| lock.name == *name);
        let at = self.chosen.as_ref().and_then(at).unwrap_or_default();
        self.chosen = rows.get(at).map(|lock| lock.name.clone());
        let most = rows.len().saturating_sub(self.fit);
        self.first = self
            .first
            .clamp((at + 1).saturating_sub(self.fit), at)
            .min(most);
        let seen = &rows[self.first..rows.len().min(self.first + self.fit)];
        let Lines {
            heading,
            rows: texts,
        } = table::lines(seen, &|lock| board.held_for(lock), wide);
        lines.push(Line::styled(heading, BOLD));
        for (lock, text) in seen.iter().zip(texts) {
            let colour = life::of_lock(lock).mark().map(|(_, colour)| match colour {
                anstyle::AnsiColor::Red => Color::Red,
                _ => Color::Yellow,
            });
            let mut style = colour.map_or(Style::new(), |colour| Style::new().fg(colour));
            if Some(&lock.name) == self.chosen.as_ref() {
                style = style.add_modifier(Modifier::REVERSED);
            }
            lines.push(Line::styled(format!("{text:<wide$}"), style));
        }
        if seen.is_empty() {
            let none = if board.locks.is_empty() {
                "no locks"
            } else {
                "no lock is like the filter"
            };
            lines.push(Line::from(none));
        }
        lines.resize(high - 1, Line::default());
        lines.push(match (self.types, self.wanted.search.as_str()) {
            (true, search) => {
                Line::from(format!(" filter: {search}▏  enter keeps it, esc clears it"))
            }
            (false, "") => Line::styled(
                format!("{HELP}   sorted by {}", word(self.wanted.sort)),
                FAINT,
            ),
            (false, search) => {
                Line::from(format!(" filter: {search}   / changes it, esc clears it"))
            }
        });
        (
            lines,
            seen.iter().map(|lock| Shown::in_list(&lock.name)).collect(),
        )
    }

    /// The title, the server, and the counts; or why the server cannot be asked.
    fn head(&self, board: Option<&Board>, wide: usize) -> Vec<Line<'static>> {
        let space = wide.saturating_sub(self.title.chars().count());
        let server = format!("{:>space$}", format!("  {}", self.server));
        let title = Line::styled(format!("{}{server}", self.title), BOLD);
        let below = match board {
            None => Line::from(" looking for locks"),
            Some(board) => match &board.trouble {
                Some(trouble) => {
                    let trouble = format!(" {}", visible(trouble));
                    Line::styled(trouble, Style::new().fg(Color::Red))
                }
                None => Line::from(format!(" {}", summary(board))),
            },
        };
        vec![title, below]
    }

    /// The server; or why it cannot be asked, and how old the picture is.
    fn head_of_one(&self, board: Option<&Board>) -> Line<'static> {
        match board.and_then(|board| Some((board, board.trouble.as_ref()?))) {
            None => Line::styled(self.server.clone(), FAINT),
            Some((_, trouble)) => {
                let trouble = format!("as it was: {}", visible(trouble));
                Line::styled(trouble, Style::new().fg(Color::Red))
            }
        }
    }

    /// The text of a single lock: as `status` shows it, and who has held it before.
    fn text_of_one(name: &str, board: Option<&Board>, wide: usize) -> Vec<Line<'static>> {
        let Some(board) = board else {
            return Vec::new();
        };
        let mut text = match board.one(name) {
            Ok(Some(lock)) => status::picture(lock, board.at),
            Ok(None) => format!("{}\n  free       no client holds it\n", visible(name)),
            Err(error) => format!("{}\n  {}\n", visible(name), visible(error)),
        };
        let past = board.story(name);
        let ended = { past.iter() }.filter_map(|past| Some((past, past.until?)));
        let mut ended = ended.peekable();
        if ended.peek().is_some() {
            text.push_str("  before\n");
        }
        for (past, until) in ended {
            let held = human(until.duration_since(past.since).unwrap_or_default());
            let ago = human(board.at.duration_since(until).unwrap_or_default());
            let _ = writeln!(text, "    {}, for {held}, until {ago} ago", past.who);
        }
        let text = anstream::adapter::strip_str(&text).to_string();
        let lines = text.lines().flat_map(|line| wrapped(line, wide));
        lines.map(Line::from).collect()
    }
}

/// A line that is too wide goes on below.
fn wrapped(line: &str, wide: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut width = 0;
    for letter in line.chars() {
        let takes = letter.width().unwrap_or_default();
        if width + takes > wide {
            lines.push(" ".repeat(INDENT));
            width = INDENT;
        }
        width += takes;
        lines.last_mut().expect("there is a first").push(letter);
    }
    lines
}

fn after(sort: Sort) -> Sort {
    match sort {
        Sort::Name => Sort::Held,
        Sort::Held => Sort::Left,
        Sort::Left => Sort::Waiting,
        Sort::Waiting => Sort::Name,
    }
}

fn word(sort: Sort) -> &'static str {
    match sort {
        Sort::Name => "name",
        Sort::Held => "time held",
        Sort::Left => "lease left",
        Sort::Waiting => "waiters",
    }
}

/// The counts, and how long a look at all keys takes.
pub(super) fn summary(board: &Board) -> String {
    let mut text = board.counts().summary();
    if let Some(oldest) = board.oldest() {
        let _ = write!(text, " · oldest {}", human(oldest));
    }
    let _ = match board.round {
        Some(round) => write!(text, " · round {}", human(round)),
        None => write!(text, " · {:.0} % of the keys", 100.0 * board.progress),
    };
    if let Some(keys) = board.keys {
        let _ = write!(text, " ({keys} keys)");
    }
    text
}
