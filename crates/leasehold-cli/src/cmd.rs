//! A file per command.

pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drill;
pub(crate) mod ls;
pub(crate) mod pages;
pub(crate) mod run;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod status;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod unlock;
