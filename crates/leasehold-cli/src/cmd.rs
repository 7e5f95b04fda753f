//! A file per command.

pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drill;
pub(crate) mod ls;
pub(crate) mod pages;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod unlock;
