//! The house rules. No server is started here.

mod blocking;
mod coverage;
mod links;
mod public_api;
mod scripts;
mod settings;
mod tidy;
