//! The macro that writes the blocking API from tables of verbs, and what it makes of the answers.
//!
//! Each row is a method of the async type of the same name; `tests/house/blocking.rs` finds the async verbs without a row.

use std::time::Duration;

use super::{Guard, MultiGuard};
use crate::{LostReason, Released, Status, background::BackgroundRuntime};

/// An answer of the async API, as this one gives it: a guard blocks, too.
pub(super) trait Answer {
    type Here;
    fn here(self, background: &BackgroundRuntime) -> Self::Here;
}

impl<K> Answer for crate::Guard<K> {
    type Here = Guard<K>;
    fn here(self, background: &BackgroundRuntime) -> Guard<K> {
        Guard::new(self, background)
    }
}

impl Answer for crate::MultiGuard {
    type Here = MultiGuard;
    fn here(self, background: &BackgroundRuntime) -> MultiGuard {
        MultiGuard::new(self, background)
    }
}

impl<T: Answer> Answer for Option<T> {
    type Here = Option<T::Here>;
    fn here(self, background: &BackgroundRuntime) -> Option<T::Here> {
        self.map(|answer| answer.here(background))
    }
}

macro_rules! same_here {
    ($($answer:ty)*) => {
        $(impl Answer for $answer {
            type Here = $answer;
            fn here(self, _background: &BackgroundRuntime) -> $answer {
                self
            }
        })*
    };
}
same_here!(() bool i64 u32 u64 Vec<u8> Duration Status Vec<Status> Vec<crate::Finding> Released LostReason);

/// The outputs of the futures of the async API: most may fail.
pub(super) trait VerbEnd {
    type Answer: Answer;
    fn ended(self) -> Result<Self::Answer, crate::Error>;
}

impl<T: Answer> VerbEnd for Result<T, crate::Error> {
    type Answer = T;
    fn ended(self) -> Result<T, crate::Error> {
        self
    }
}

macro_rules! never_fails {
    ($($answer:ty)*) => {
        $(impl VerbEnd for $answer {
            type Answer = $answer;
            fn ended(self) -> Result<$answer, crate::Error> {
                Ok(self)
            }
        })*
    };
}
// `shutdown`, `at_risk` and `lost` fail here only: where a tokio scheduler polls, no thread may wait (`wait::check_thread`).
never_fails!(() LostReason);

/// Writes the verbs of a type: `verb` waits, `moves` waits and takes the guard, `changes` waits and goes on, `plain` never waits, `setting` gives the same lock with
/// another setting.
macro_rules! rows {
    ($kind:ident: $($row:ident $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?, $doc:literal;)*) => {
        $(crate::blocking::table::rows!(@$row $kind $name ($($arg: $type),*) ($($out)?) $doc);)*
    };
    (@setting $kind:ident $name:ident ($($arg:ident: $type:ty),*) () $doc:literal) => {
        #[doc = $doc]
        ///
        #[doc = concat!("As [`leasehold::", stringify!($kind), "::", stringify!($name), "`](crate::", stringify!($kind), "::", stringify!($name), "). No I/O.")]
        pub fn $name(&self, $($arg: $type),*) -> $kind {
            $kind { inner: self.inner.$name($($arg),*), background: self.background.clone() }
        }
    };
    (@plain $kind:ident $name:ident ($($arg:ident: $type:ty),*) ($($out:ty)?) $doc:literal) => {
        #[doc = $doc]
        ///
        #[doc = concat!("As [`leasehold::", stringify!($kind), "::", stringify!($name), "`](crate::", stringify!($kind), "::", stringify!($name), "). It never waits, on any thread.")]
        pub fn $name(&self, $($arg: $type),*) $(-> $out)? {
            self.inner.$name($($arg),*)
        }
    };
    (@verb $kind:ident $name:ident ($($arg:ident: $type:ty),*) ($out:ty) $doc:literal) => {
        #[doc = $doc]
        ///
        #[doc = concat!("Waits on this thread as [`leasehold::", stringify!($kind), "::", stringify!($name), "`](crate::", stringify!($kind), "::", stringify!($name), ") does, and sends the same.")]
        ///
        /// # Errors
        /// As there; and [`Error::Invalid`](crate::Error::Invalid), with nothing sent, where a tokio scheduler polls (see
        /// [the module](crate::blocking#where-it-is-refused)).
        // The guard of a lock remembers the place in the user's code where it was asked for (`Spec::place`).
        #[track_caller]
        pub fn $name(&self, $($arg: $type),*) -> Result<$out, crate::Error> {
            crate::blocking::table::ask(&self.background, self.inner.$name($($arg),*))
        }
    };
    (@changes $kind:ident $name:ident ($($arg:ident: $type:ty),*) ($out:ty) $doc:literal) => {
        #[doc = $doc]
        ///
        #[doc = concat!("Waits on this thread as [`leasehold::", stringify!($kind), "::", stringify!($name), "`](crate::", stringify!($kind), "::", stringify!($name), ") does, and sends the same.")]
        ///
        /// # Errors
        /// As there; and [`Error::Invalid`](crate::Error::Invalid), with nothing sent, where a tokio scheduler polls (see
        /// [the module](crate::blocking#where-it-is-refused)).
        #[allow(clippy::should_implement_trait, reason = "an iterator does not fail")]
        pub fn $name(&mut self, $($arg: $type),*) -> Result<$out, crate::Error> {
            crate::blocking::table::ask(&self.background, self.inner.$name($($arg),*))
        }
    };
    (@moves $kind:ident $name:ident ($($arg:ident: $type:ty),*) ($out:ty) $doc:literal) => {
        #[doc = $doc]
        ///
        #[doc = concat!("Waits on this thread as [`leasehold::", stringify!($kind), "::", stringify!($name), "`](crate::", stringify!($kind), "::", stringify!($name), ") does, and sends the same.")]
        ///
        /// # Errors
        /// As there; and [`Error::Invalid`](crate::Error::Invalid) where a tokio scheduler polls (see
        /// [the module](crate::blocking#where-it-is-refused)): then it is done in the background, as if the guard had been dropped.
        pub fn $name(self, $($arg: $type),*) -> Result<$out, crate::Error> {
            crate::blocking::table::ask(&self.background, self.inner.$name($($arg),*))
        }
    };
}

/// Writes a type and its table.
macro_rules! blocking {
    ($(#[$attribute:meta])* $kind:ident { $($rows:tt)* }) => {
        $(#[$attribute])*
        #[must_use = "a handle does nothing until it is asked"]
        #[derive(Clone)]
        pub struct $kind {
            pub(super) inner: crate::$kind,
            pub(super) background: crate::background::BackgroundRuntime,
        }

        impl $kind {
            crate::blocking::table::rows!($kind: $($rows)*);
        }

        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple("blocking").field(&self.inner).finish()
            }
        }
    };
}

/// Polls what a verb has asked for, and makes the answer one of this API.
pub(super) fn ask<E: VerbEnd>(
    background: &BackgroundRuntime,
    asked: impl Future<Output = E>,
) -> Result<<E::Answer as Answer>::Here, crate::Error> {
    let ended = super::wait::wait(background, asked)?;
    Ok(ended.ended()?.here(background))
}

pub(super) use {blocking, rows};
