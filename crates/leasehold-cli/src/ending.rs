//! A program that is told to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// The signals that end a program. Its own way out takes the job's processes and the files along.
pub(crate) struct Ending([Signal; 4]);

impl Ending {
    pub(crate) fn listen() -> io::Result<Ending> {
        Ok(Ending([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ]))
    }

    pub(crate) async fn next(&mut self) -> Exit {
        let [interrupt, terminate, hangup, quit] = &mut self.0;
        let signal = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hangup.recv() => SignalKind::hangup(),
            _ = quit.recv() => SignalKind::quit(),
        };
        Exit::by_signal(signal.as_raw_value())
    }
}
