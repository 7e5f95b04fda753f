//! Writes events down as they happen.

use std::fs::File;
use std::io;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::replay::History;
use super::{Claim, Event, Kind, from_now, now};

/// Writes down events as they happen. Clones write to the same place.
#[derive(Debug, Clone)]
pub struct Recorder {
    pub(super) place: Arc<Place>,
}

#[derive(Debug)]
pub(super) enum Place {
    Memory(Mutex<Vec<Event>>),
    File { path: PathBuf, file: File },
}

impl Recorder {
    /// A recorder for the tasks and threads of one process.
    pub fn in_memory() -> Recorder {
        Recorder {
            place: Arc::new(Place::Memory(Mutex::default())),
        }
    }

    /// A recorder that appends to a file, in which other processes may record at the same time.
    pub fn to_file(path: impl Into<PathBuf>) -> io::Result<Recorder> {
        let path = path.into();
        let file = File::options().create(true).append(true).open(&path)?;
        Ok(Recorder {
            place: Arc::new(Place::File { path, file }),
        })
    }

    /// `holder` begins to wait for `name`.
    pub fn requested(&self, name: &str, holder: &str) {
        self.record_now(Kind::Requested, name, holder);
    }

    /// `holder` has obtained `name`, until it says otherwise.
    pub fn acquired(&self, name: &str, holder: &str) {
        self.acquired_as(name, holder, Claim::default());
    }

    /// `holder` has obtained `name`, with this claim.
    pub fn acquired_as(&self, name: &str, holder: &str, claim: Claim) {
        self.record_now(Kind::Acquired(claim), name, holder);
    }

    /// `holder` was told that `name` is its own for `valid_for` more from now.
    pub fn extended(&self, name: &str, holder: &str, valid_for: Duration) {
        self.record_now(
            Kind::Extended {
                until: from_now(valid_for),
            },
            name,
            holder,
        );
    }

    /// `holder` is about to give `name` back.
    pub fn released(&self, name: &str, holder: &str) {
        self.record_now(Kind::Released, name, holder);
    }

    /// `holder` has learned that `name` is no longer its own.
    pub fn lost(&self, name: &str, holder: &str) {
        self.record_now(Kind::Lost, name, holder);
    }

    /// `holder` no longer waits for `name`.
    pub fn gave_up(&self, name: &str, holder: &str) {
        self.record_now(Kind::GaveUp, name, holder);
    }

    /// Records an event of any time.
    ///
    /// # Panics
    /// When a name has a tab or a line break in it, or the file cannot be written.
    pub fn record(&self, event: Event) {
        for text in [&event.name, &event.holder] {
            assert!(
                !text.contains(['\t', '\n', '\r']),
                "{text:?} does not fit on a line of a history"
            );
        }
        match &*self.place {
            Place::Memory(events) => events
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(event),
            // A single write, so that lines of several processes do not mix.
            Place::File { path, file } => (&*file)
                .write_all(format!("{event}\n").as_bytes())
                .unwrap_or_else(|error| panic!("could not record in {}: {error}", path.display())),
        }
    }

    /// All that is recorded so far, in a file by others too.
    pub fn history(&self) -> io::Result<History> {
        match &*self.place {
            Place::Memory(events) => {
                let events = events
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                Ok(History::new(events))
            }
            Place::File { path, .. } => History::load(path),
        }
    }

    pub(super) fn record_now(&self, kind: Kind, name: &str, holder: &str) {
        self.record(Event {
            at: now(),
            kind,
            name: name.to_owned(),
            holder: holder.to_owned(),
        });
    }
}
