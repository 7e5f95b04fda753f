//! Worlds that are bent on one kind of trouble: pure chance meets these too seldom.

use fastrand::Rng;

use crate::config::{Config, MS, SECOND, pick};

type Style = fn(&mut Config, &mut Rng);

const STYLES: [Style; 9] = [
    frozen_in_line,
    late_wake_ups,
    releases_without_an_answer,
    late_copies,
    shut_down_in_the_middle,
    short_leases_on_a_slow_network,
    releases_that_do_not_leave,
    copies_older_than_tombstones,
    dead_under_a_shorter_lease,
];

pub fn bend(config: &mut Config, r: &mut Rng) {
    STYLES[r.usize(..STYLES.len())](config, r);
}

/// Several processes want one name, on the same terms.
fn one_name(config: &mut Config, r: &mut Rng) {
    config.names = 1;
    config.clients = config.clients.max(2);
    config.ops = config.ops.max(3);
    config.same_terms = true;
    config.max_hold = 0.0;
    config.hold = if r.bool() { 0.3 } else { 1.0 };
    config.mix.force = 0;
}

/// Stopped in line, granted, over, and on again: the grant is heard late.
fn frozen_in_line(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.faults.freeze_in_line = 0.4;
    config.faults.lost_hint = 0.0;
    config.faults.deaths = 0;
}

fn late_wake_ups(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.faults.slow_hint = 0.6;
    config.faults.lost_hint = 0.0;
    config.poll_every = config.poll_every.min(config.lease / 2 + MS);
}

/// A process with waiters of its own gives the name back, and hears nothing.
fn releases_without_an_answer(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.tasks = 3;
    config.fixed = 0.0;
    config.operation_timeout = 2 * SECOND;
    config.lease = pick(r, &[3_000, 10_000, 30_000]) * MS;
    config.faults.lost_release = 0.6;
    config.faults.freeze = 0.05;
    config.mix.release = 20;
}

/// A request without an answer is carried out again, after the lease, after the next holder came.
fn late_copies(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.faults.lost_reply = 0.25;
    config.faults.double = 0.8;
    config.faults.cut = 0.05;
    config.faults.cancel = if r.bool() { 0.3 } else { 0.0 };
}

fn shut_down_in_the_middle(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.faults.shutdowns = u32::from(config.clients);
    config.faults.slow_reply = 0.3;
}

fn short_leases_on_a_slow_network(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.same_terms = false;
    config.lease = pick(r, &[60, 100, 300, 1_000]) * MS;
    config.latency = pick(r, &[10, 30, 60]) * MS;
    // A waiter that asked for less than a round trip leaves, and another stands there when its answer comes (L4).
    config.tasks = config.tasks.max(2);
    config.ops = 5;
    config.faults.cancel = if r.bool() { 0.3 } else { 0.0 };
}

/// Cut off when the work is done.
fn releases_that_do_not_leave(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.tasks = 3;
    config.lease = pick(r, &[10_000, 30_000]) * MS;
    config.faults.cut = 0.2;
    config.mix.release = 20;
    config.mix.try_lock = 10;
}

/// A copy is carried out when nothing is remembered of its lease id: it may take an entry, and be granted the name, without
/// a waiter. The client must give such a grant back as soon as it hears of it (B3).
fn copies_older_than_tombstones(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.clients = config.clients.max(3);
    config.tasks = config.tasks.max(2);
    config.ops = 5;
    config.lease = pick(r, &[3_000, 10_000]) * MS;
    config.hold = 2.0;
    config.faults.lost_reply = 0.2;
    config.faults.double = 0.9;
    config.faults.old = 0.7;
}

/// Chosen by a release, and dead at once, under a lease that ends before the one that the others were told of: the first of them must have
/// heard of it (L1).
fn dead_under_a_shorter_lease(config: &mut Config, r: &mut Rng) {
    one_name(config, r);
    config.clients = r.u8(3..=7);
    config.same_terms = false;
    config.lease = pick(r, &[300, 1_000, 3_000]) * MS;
    config.poll_every = 10 * SECOND;
    let faults = &mut config.faults;
    (faults.lost_hint, faults.cut, faults.cut_subscription) = (0.0, 0.0, 0.0);
    (faults.cuts, faults.restarts) = (0, 0);
    // Another may die with it, and then the others poll. A lease that is left to expire is as good as a death, and comes at the right time.
    faults.deaths = r.u32(0..=1);
    (
        config.mix.detach,
        config.mix.lock,
        config.mix.try_lock,
        config.mix.try_for,
    ) = (5, 20, 1, 1);
}
