//! Looking at many locks: the table of `ls` and `top`; and what `top` and `serve` know while they run.

#[cfg(any(feature = "top", feature = "serve"))]
pub(crate) mod board;
#[cfg(any(feature = "top", feature = "serve"))]
pub(crate) mod looker;
#[cfg(any(feature = "top", feature = "serve"))]
pub(crate) mod stories;
pub(crate) mod table;
