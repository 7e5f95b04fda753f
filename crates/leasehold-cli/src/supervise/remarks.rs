//! The messages of `leasehold run` on standard error, written by a thread of its own.
//!
//! Standard error may be a full pipe or a terminal that was told to wait, and a write to it waits for the reader. This
//! process must not wait for it as long as it holds the name, or may be given it any moment: it starts CMD, renews
//! the lease, and kills CMD when the lock is lost.

use std::{
    convert::Infallible,
    io::{self, Write},
    sync::mpsc::{Sender, channel},
    thread,
};

use nix::sys::signal::{SigSet, Signal};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{
    exit::Failure,
    output::{self, say},
};

/// Adding a remark never waits. Remarks not written at the end of the process are lost; see [`written`](Self::written).
#[derive(Debug)]
pub(crate) struct Remarks {
    /// Remarks are for eyes; a JSON reader gets the summary.
    json: bool,
    lines: Sender<Line>,
}

#[derive(Debug)]
enum Line {
    Text(String),
    /// All lines before it are written.
    Mark(oneshot::Sender<Infallible>),
}

impl Remarks {
    /// Starts the thread.
    pub(crate) fn new(json: bool) -> io::Result<Self> {
        let (lines, to_write) = channel::<Line>();
        thread::Builder::new().spawn(move || {
            // On a terminal that stops background jobs that write to it (`stty tostop`), a remark would stop the
            // whole process. It cannot fail for a valid signal.
            let _ = SigSet::from(Signal::SIGTTOU).thread_block();
            for line in to_write {
                match line {
                    Line::Text(line) => say(&line),
                    Line::Mark(mark) => drop(mark),
                }
            }
        })?;
        Ok(Remarks { json, lines })
    }

    /// Another way to add lines, for those that write them to a stream.
    pub(crate) fn writer(&self) -> impl Fn() -> LineWriter + Send + Sync + use<> {
        let lines = self.lines.clone();
        move || LineWriter(lines.clone())
    }

    /// For eyes only.
    pub(crate) fn add(&self, message: &str) {
        if !self.json {
            self.line(output::remark(message));
        }
    }

    /// For programs only.
    pub(crate) fn report(&self, document: &Value) {
        if self.json {
            self.line(output::json_line(document));
        }
    }

    /// For eyes and for programs.
    pub(crate) fn failure(&self, failure: &Failure) {
        self.line(output::failure(failure, self.json));
    }

    fn line(&self, line: String) {
        // The thread ends only after this value.
        let _ = self.lines.send(Line::Text(line));
    }

    /// Waits until all lines are written: as long as their reader takes.
    pub(crate) async fn written(self) {
        let (mark, passed) = oneshot::channel();
        let _ = self.lines.send(Line::Mark(mark));
        let _ = passed.await;
    }
}

/// Adds what is written to it, a line for each write. Never waits.
pub(crate) struct LineWriter(Sender<Line>);

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let _ = self.0.send(Line::Text(text.trim_end().to_owned()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
