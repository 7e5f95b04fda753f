//! The signals that `leasehold run` passes on.

use std::{future::poll_fn, io, task::Poll};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// The signals that a user or a service manager sends to a command. The rest either cannot be caught or carry no
/// message (SIGCHLD, SIGPIPE, faults, the limits of this process). `--help` and docs/command.md list them.
const PASSED_ON: [Signal; 10] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    // From `timeout -s ALRM`, or an alarm that was set before this program was started.
    Signal::ALARM,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// The signals sent to this process.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    /// From now on signals arrive here and have no other effect. Signals ignored so far (`nohup`, a background
    /// job of a script) stay ignored, here and in CMD.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = PASSED_ON
            .into_iter()
            .filter(|signal| ignored & mask(*signal) == 0);
        let streams = wanted
            .map(|wanted| Ok((wanted, signal(SignalKind::from_raw(wanted.as_raw()))?)))
            .collect::<io::Result<_>>()?;
        Ok(Signals(streams))
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether a user or a service manager asks by it for an end. More of the others mean more.
pub(super) fn tells_to_end(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT
    )
}

/// Whether a command that does not care about this signal would end.
pub(crate) fn is_deadly(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::TERM
            | Signal::INT
            | Signal::HUP
            | Signal::QUIT
            | Signal::USR1
            | Signal::USR2
            | Signal::ALARM
    )
}

fn mask(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// The set of ignored signals. Where the system does not tell, none.
fn ignored() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| parse_ignored(&status))
        .unwrap_or(0)
}

fn parse_ignored(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_under_nohup_ignores_hangups() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000440\n";
        let ignored = parse_ignored(status).unwrap();
        assert_ne!(ignored & mask(Signal::HUP), 0);
        assert_eq!(ignored & mask(Signal::TERM), 0);
    }
}
