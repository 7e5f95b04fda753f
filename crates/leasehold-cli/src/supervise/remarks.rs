//! Remarks on a command that runs, written by a thread of their own.
//!
//! Standard error may be a full pipe, and a write to it waits for its reader. The supervisor must not wait: it
//! kills CMD when the lock is lost.

use std::{
    sync::mpsc::{Sender, channel},
    thread::{self, JoinHandle},
};

use crate::output::remark;

/// Dropping them waits until all are written.
#[derive(Debug)]
pub(crate) struct Remarks {
    /// Remarks are for eyes; a JSON reader gets the summary.
    json: bool,
    writer: Option<(Sender<String>, JoinHandle<()>)>,
}

impl Remarks {
    pub(crate) fn new(json: bool) -> Self {
        Remarks { json, writer: None }
    }

    pub(crate) fn add(&mut self, message: String) {
        if self.json {
            return;
        }
        if self.writer.is_none() {
            let (sender, remarks) = channel::<String>();
            let thread = thread::Builder::new()
                .spawn(move || remarks.iter().for_each(|message| remark(&message)));
            self.writer = thread.ok().map(|thread| (sender, thread));
        }
        if let Some((sender, _)) = &self.writer {
            let _ = sender.send(message);
        }
    }
}

impl Drop for Remarks {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}
