//! Puts the picture on the terminal: redrawn in place while an act runs, or once at its end.

use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal},
};

use rustix::termios::{Winsize, tcgetwinsize};

use super::picture::Layout;
use crate::{exit::Failure, output};

/// The longest act on a narrow terminal, which is redrawn in place.
const ROWS: u16 = 24;

pub(super) struct Screen {
    live: bool,
    quiet: bool,
    layout: Layout,
    /// How many lines of the running act are on the terminal.
    drawn: usize,
}

impl Screen {
    /// Quiet draws nothing at all.
    pub(super) fn new(quiet: bool) -> Self {
        let colour = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        let size = tcgetwinsize(io::stdout())
            .ok()
            .filter(|size| size.ws_col > 0);
        let said = || env::var("COLUMNS").ok()?.parse().ok();
        let columns = size.map(|size| usize::from(size.ws_col)).or_else(said);
        let layout = columns.map_or(Layout::WIDE, Layout::of);
        let fits =
            |size: Winsize| usize::from(size.ws_col) >= layout.width() && size.ws_row >= ROWS;
        Screen {
            // A line that wraps would be in the way of redrawing.
            live: io::stdout().is_terminal() && colour && size.is_some_and(fits),
            quiet,
            layout,
            drawn: 0,
        }
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn is_live(&self) -> bool {
        self.live && !self.quiet
    }

    /// Lines that stay.
    pub(super) fn print(&mut self, lines: &[String]) -> Result<(), Failure> {
        self.draw(lines)?;
        self.drawn = 0;
        Ok(())
    }

    /// Lines that the next ones replace.
    pub(super) fn sketch(&mut self, lines: &[String]) -> Result<(), Failure> {
        if self.is_live() {
            self.draw(lines)?;
            self.drawn = lines.len();
        }
        Ok(())
    }

    fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in lines {
            text.push_str(line);
            // The rest of a longer line.
            text.push_str(if self.live { "\x1b[K\n" } else { "\n" });
        }
        // Of a reader that has closed the pipe this says nothing: the verdict is in the exit status.
        output::print(&text)
    }
}
