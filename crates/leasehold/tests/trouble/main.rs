//! Trouble: lost answers, crashes, cuts, refusals, bad input, and schedules that once broke a promise.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod callers;
mod election;
mod first_in_line;
mod forced;
mod fresh_answers;
mod lazy_start;
mod lease_without_end;
mod mutex_crash;
mod mutex_faults;
mod mutex_lost_replies;
mod own_leases;
mod own_place;
mod refused;
mod rights;
mod schedules;
mod schedules_found;
mod schedules_last;
mod schedules_leaving;
mod schedules_model;
mod schedules_near;
mod schedules_shared;
mod schedules_waits;
mod silent;
mod tenants;
