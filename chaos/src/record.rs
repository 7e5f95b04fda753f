//! The records of the processes, one JSON object per line.

use serde::{Deserialize, Serialize};

/// A line of a journal. Times are [`now`](crate::clock::now); numbers are unique within a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "snake_case")]
pub(crate) enum Record {
    /// A task begins to ask for a name.
    Ask {
        /// Number of the ask.
        ask: u64,
        /// Which name.
        name: usize,
        /// By which method, with which terms.
        how: String,
        /// For how long at most it may wait, in nanoseconds; `None` is for ever.
        wait: Option<u64>,
        /// When.
        at: u64,
    },
    /// The ask has ended.
    Answer {
        /// Number of the ask.
        ask: u64,
        /// `guard`, `busy`, `dropped`, or the kind of the error.
        what: String,
        /// When.
        at: u64,
    },
    /// A guard's first true look has ended.
    First {
        /// Number of the guard.
        guard: u64,
        /// Number of the holder: guards of one holder do not exclude each other.
        holder: u64,
        /// Which name.
        name: usize,
        /// Guards that are shared do not exclude each other.
        shared: bool,
        /// The owner field on the server.
        owner: String,
        /// Its token, if the mutex is fenced.
        token: Option<u64>,
        /// The end of the look.
        at: u64,
    },
    /// A later true look has begun, so the guard was valid until then.
    Still {
        /// Number of the guard.
        guard: u64,
        /// The beginning of the look.
        at: u64,
    },
    /// The first false look.
    Lost {
        /// Number of the guard.
        guard: u64,
        /// The library's reason.
        why: String,
    },
    /// A true look after a false one, which the library says cannot be.
    Revived {
        /// Number of the guard.
        guard: u64,
        /// When.
        at: u64,
    },
    /// The guard is given up; no look follows.
    End {
        /// Number of the guard.
        guard: u64,
        /// `release`, `drop` or `detach`.
        how: String,
    },
    /// The counter was read and written, and the guard was valid before the one and after the other.
    Count {
        /// Number of the guard.
        guard: u64,
        /// Which name.
        name: usize,
        /// The number read.
        saw: u64,
        /// The number written.
        wrote: u64,
        /// When it was written, not before.
        at: u64,
    },
    /// Work inside `run` has ended.
    Ran {
        /// `output`, `dropped`, or the kind of the error.
        how: String,
        /// How often it was polled.
        polls: u64,
    },
    /// The process has connected and works.
    Ready {
        /// The setup drawn for it.
        setup: String,
    },
    /// In the calm after the faults a name was taken, this long after it was asked for.
    CalmLock {
        /// Which name.
        name: usize,
        /// Nanoseconds.
        took: u64,
    },
    /// A client has connected.
    Client {
        /// Its uuid.
        id: String,
    },
    /// A client was shut down: none of its guards is valid any more.
    Gone {
        /// Its uuid.
        id: String,
    },
    /// No answer says whether a latch was set: it may stay.
    Doubtful {
        /// The latch.
        name: String,
    },
    /// A promise was broken, in a sentence.
    Breach {
        /// Which one, and how.
        what: String,
    },
    /// Nothing is held or asked for. Memory still has so many queues, watched holds and tasks.
    Quiet {
        /// [`footprint`](crate::api::footprint)
        left: [usize; 3],
    },
    /// The process panicked.
    Panic {
        /// Message and place.
        what: String,
    },
}
