//! The terminal: taken for drawing, and given back as it was, also after a panic.

use std::{io, thread};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use tokio::sync::mpsc;

use super::view::View;
use crate::look::{board::Board, looker::Shown};

pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// A panic gives the terminal back before it is told.
    pub(super) fn open() -> io::Result<Screen> {
        Ok(Screen(ratatui::try_init()?))
    }

    /// The locks that are on the screen now.
    pub(super) fn draw(
        &mut self,
        view: &mut View,
        board: Option<&Board>,
    ) -> io::Result<Vec<Shown>> {
        let mut shown = Vec::new();
        self.0.draw(|frame| shown = view.draw(frame, board))?;
        Ok(shown)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing could be told of a failure: the terminal is where it would be.
        let _ = ratatui::try_restore();
    }
}

/// Keys, and changes of the terminal's size.
pub(super) struct Input(mpsc::UnboundedReceiver<Event>);

impl Input {
    /// A thread reads them: a read from a terminal cannot be given up. It ends with the program.
    pub(super) fn listen() -> Input {
        let (told, input) = mpsc::unbounded_channel();
        thread::spawn(move || {
            while let Ok(event) = event::read() {
                if told.send(event).is_err() {
                    break;
                }
            }
        });
        Input(input)
    }

    pub(super) async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}
