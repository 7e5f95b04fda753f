//! The counter behind a read-modify-write, one per name, outside of the server.
//!
//! Its cell holds the number of the increment that was written last: 8 bytes of a file, which are
//! read and written in one piece. An increment reads the cell (`saw`), works for a moment, looks
//! whether its guard is valid, and only then writes a number that no other increment ever writes
//! (`wrote`).
//!
//! A process can be stopped between that look and the write, so the write may come after the lease:
//! no lease protects from that, and an increment of this kind may overwrite good ones. So the test
//! does not compare a sum. An increment is *proved* when its guard was seen valid before the read and
//! once more after the write: both lie in the guard's span. Only proved ones are written to the
//! journal, and the claim is:
//!
//! > No two proved increments of a name saw the same number.
//!
//! *A correct lock keeps it.* Let A and B be proved, A's span before B's. A wrote after it read X, and
//! X's own writer, which writes X once, had written it before A read it. So X is gone from the cell by
//! the end of A's span, and nothing brings it back, late writes of third parties included, since each
//! number is written once. B reads later, and sees something else.
//!
//! *A breach breaks it.* If B reads before A writes, both while valid, both see X, both write, and one
//! of the two is lost: that is what this finds. Not counted is a loss in which an unproved write came
//! between the two reads; the spans find the breach all the same.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

/// The cells of all names.
pub(crate) struct Counter {
    file: File,
}

impl Counter {
    /// Opens the file, and makes it if there is none. A cell that was never written is 0.
    pub(crate) fn open(path: &Path) -> io::Result<Counter> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        Ok(Counter {
            file: file.open(path)?,
        })
    }

    pub(crate) fn read(&self, name: usize) -> u64 {
        let mut cell = [0; 8];
        match self.file.read_exact_at(&mut cell, offset(name)) {
            Ok(()) => u64::from_le_bytes(cell),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) => panic!("the counter cannot be read: {error}"),
        }
    }

    pub(crate) fn write(&self, name: usize, number: u64) {
        self.file
            .write_all_at(&number.to_le_bytes(), offset(name))
            .expect("the counter can be written");
    }
}

fn offset(name: usize) -> u64 {
    name as u64 * 8
}
