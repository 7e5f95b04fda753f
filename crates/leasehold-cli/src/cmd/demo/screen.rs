//! Puts the picture on the terminal: redrawn in place while an act runs, or once at its end.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal},
};

use rustix::termios::tcgetwinsize;

use crate::{exit::Failure, output};

/// The width of the picture.
const WIDTH: u16 = 80;

pub(super) struct Screen {
    live: bool,
    quiet: bool,
    /// How many lines of the running act are on the terminal.
    drawn: usize,
}

impl Screen {
    /// Quiet draws nothing at all.
    pub(super) fn new(quiet: bool) -> Self {
        let colour = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        let wide = tcgetwinsize(io::stdout()).is_ok_and(|size| size.ws_col >= WIDTH);
        Screen {
            // A line that wraps would be in the way of redrawing.
            live: io::stdout().is_terminal() && colour && wide,
            quiet,
            drawn: 0,
        }
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
