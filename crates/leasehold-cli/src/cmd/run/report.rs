//! The end of a run, for people and for programs.

use std::time::Duration;

use leasehold::Released;
use serde_json::{Value, json};

use super::End;
use crate::{
    args::Run,
    cmd::status,
    exit::Exit,
    guardian::wire::Ended,
    output::{self, human},
    supervise::{Outcome, remarks::Remarks},
};

/// Reports the outcome after the release, and returns the exit status.
pub(super) fn conclude(
    args: &Run,
    outcome: &Outcome,
    times: [Duration; 2],
    token: Option<u64>,
    end: &End,
    remarks: &Remarks,
) -> Exit {
    let name = &args.name;
    let taken_away = matches!(end, End::Released(Err(_)));
    let lost = outcome.lost || taken_away;
    if let End::Released(Ok(Released::Unconfirmed { free_within })) = end {
        remarks.add(&format!(
            "the server has not confirmed the release of {name:?}; it frees itself within {}",
            human(*free_within)
        ));
    }
    if taken_away && !outcome.lost {
        remarks.add(&format!(
            "{name:?} was taken away while the command ran, which ended by itself"
        ));
    }
    let exit = if lost {
        Exit::Lost
    } else {
        exit_status(outcome.how)
    };
    remarks.report(&document(args, exit, outcome, times, token, end));
    exit
}

/// The report, for programs, of a run whose command was not started.
pub(super) fn not_begun(args: &Run, outcome: &str, exit: Exit) -> Value {
    json!({
        "name": args.name,
        "kind": args.kind.lock().as_str(),
        "access": status::access(args.kind.access()),
        "outcome": outcome,
        "exit": exit.code(),
    })
}

fn exit_status(how: Ended) -> Exit {
    match how {
        Ended::Exited(code) => Exit::Of(u8::try_from(code).unwrap_or(u8::MAX)),
        Ended::Signaled(signal) => Exit::by_signal(signal),
    }
}

/// The outcome, for a program.
fn document(
    args: &Run,
    exit: Exit,
    outcome: &Outcome,
    [waited, held]: [Duration; 2],
    token: Option<u64>,
    end: &End,
) -> Value {
    let command = match outcome.how {
        Ended::Exited(code) => json!({ "exited": code }),
        Ended::Signaled(signal) => json!({ "signaled": signal }),
    };
    let (released, free_within) = match end {
        End::Released(Ok(Released::Unconfirmed { free_within })) => (false, Some(*free_within)),
        End::Released(_) => (true, None),
        End::StaysTaken(rest) => (false, Some(*rest)),
    };
    json!({
        "name": args.name,
        "kind": args.kind.lock().as_str(),
        "access": status::access(args.kind.access()),
        "token": token,
        "outcome": if exit == Exit::Lost { "lost" } else { "ran" },
        "command": command,
        "exit": exit.code(),
        "waited_ms": output::millis(waited),
        "held_ms": output::millis(held),
        "renewals": outcome.renewals,
        "released": released,
        "free_within_ms": free_within.map(output::millis),
    })
}
