//! Where records go: a file that outlives the process that wrote it, or memory.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::record::Record;

/// The writing side. Shared by all tasks of a process.
pub(crate) struct Journal {
    place: Place,
    last_number: AtomicU64,
}

enum Place {
    /// A `write` per record and no buffer: written records survive a SIGKILL.
    File(Mutex<File>),
    Memory(Mutex<Vec<Record>>),
}

impl Journal {
    pub(crate) fn to_file(path: &Path) -> io::Result<Journal> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Journal {
            place: Place::File(Mutex::new(file)),
            last_number: AtomicU64::new(0),
        })
    }

    pub(crate) fn in_memory() -> Journal {
        Journal {
            place: Place::Memory(Mutex::default()),
            last_number: AtomicU64::new(0),
        }
    }

    /// A number for an ask, a guard or a holder.
    pub(crate) fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn write(&self, record: Record) {
        match &self.place {
            Place::File(file) => {
                let mut line = serde_json::to_vec(&record).expect("a record is plain data");
                line.push(b'\n');
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.write_all(&line).expect("the journal takes a line");
            }
            Place::Memory(records) => records
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(record),
        }
    }

    /// The records written to memory since the last call.
    pub(crate) fn take(&self) -> Vec<Record> {
        match &self.place {
            Place::File(_) => Vec::new(),
            Place::Memory(records) => {
                std::mem::take(&mut records.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

/// The reading side of a file that is still being written.
pub(crate) struct Tail {
    file: File,
    /// The beginning of a line whose end is not written yet, or never will be.
    rest: Vec<u8>,
}

impl Tail {
    pub(crate) fn open(path: &Path) -> io::Result<Tail> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Tail {
            file,
            rest: Vec::new(),
        })
    }

    /// The records written since the last call. A torn last line waits for its end.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Record>> {
        self.file.read_to_end(&mut self.rest)?;
        let whole = self
            .rest
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        lines
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).map_err(io::Error::from))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_waits_for_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::to_file(&path).unwrap();
        let record = Record::Still { guard: 7, at: 42 };
        journal.write(record.clone());
        let mut raw = File::options().append(true).open(&path).unwrap();
        raw.write_all(b"{\"e\":\"still\",\"gu").unwrap();
        let mut tail = Tail::open(&path).unwrap();
        assert_eq!(tail.read().unwrap(), [record]);
        assert_eq!(tail.read().unwrap(), []);
        raw.write_all(b"ard\":8,\"at\":43}\n").unwrap();
        assert_eq!(tail.read().unwrap(), [Record::Still { guard: 8, at: 43 }]);
    }
}
