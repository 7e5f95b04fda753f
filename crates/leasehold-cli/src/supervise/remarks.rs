//! The messages of `leasehold run` on standard error, written by a thread of its own.
//!
//! Standard error may be a full pipe or a terminal that was told to wait, and a write to it waits for the reader. This
//! process must not wait for it as long as it holds the name, or may be given it any moment: it starts CMD, renews
//! the lease, and kills CMD when the lock is lost.

use std::{
    io,
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

/// Adding one never waits. Those not written at the end of the process are lost; see [`written`](Self::written).
#[derive(Debug)]
pub(crate) struct Remarks {
    /// Remarks are for eyes; a JSON reader gets the summary.
    json: bool,
    lines: Sender<String>,
    all_written: oneshot::Receiver<()>,
}

impl Remarks {
    /// Starts the thread.
    pub(crate) fn new(json: bool) -> io::Result<Self> {
        let (lines, to_write) = channel::<String>();
        let (ended, all_written) = oneshot::channel();
        thread::Builder::new().spawn(move || {
            // On a terminal that stops background jobs that write to it (`stty tostop`), a remark would stop the
            // whole process. It cannot fail for a valid signal.
            let _ = SigSet::from(Signal::SIGTTOU).thread_block();
            for line in to_write {
                say(&line);
            }
            drop(ended);
        })?;
        Ok(Remarks {
            json,
            lines,
            all_written,
        })
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
        let _ = self.lines.send(line);
    }

    /// Waits until all are written: as long as their reader takes.
    pub(crate) async fn written(self) {
        drop(self.lines);
        let _ = self.all_written.await;
    }
}
