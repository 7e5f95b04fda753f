//! The kinds of locks, one file each, and the guard of a hold. No I/O here: they say what they want, the engine gets it.

mod guard;
mod mutex;

pub use guard::{Detached, Guard};
pub use mutex::Mutex;
