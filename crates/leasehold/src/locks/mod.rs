//! The kinds of locks, one file each. No I/O here: they say what they want, the queue gets it.

mod mutex;

pub use mutex::Mutex;
