//! The guide: what the locks guarantee, which one to take, on which servers, and what they write there.
//!
//! | | |
//! |---|---|
//! | [`guarantees`] | what holds, failure by failure, and what does not |
//! | [`choosing`] | which kind of lock, which lease, which wait |
//! | [`topologies`] | one server, Sentinel or a majority: what each survives, and the settings of a server that matter |
//! | [`observing`] | observers and events, `tracing` for logs, OpenTelemetry, `status` for a look at the server |
//! | [`metrics`] | each metric, what it means, what to do when it moves; the recipe for Prometheus |
//! | [`operating`] | a lock is stuck; each alert, and what to do; a server for locks; stopping a service |
//! | [`faq`] | the questions of new users, each with a short answer |
//! | [`from_redisson`] | method by method, setting by setting, with the trap of each |
//! | [`keys`] | every key and channel, its end, and who deletes it; the permissions that a user needs |
//!
//! The repository has [more](https://github.com/leasehold/leasehold/tree/main/docs): the rules that keep the guarantees, the comparison with other locks, why things are as
//! they are, figures, and the bugs of the past. These modules hold documentation only.

/// [rules]: https://github.com/leasehold/leasehold/blob/main/docs/rules.md
/// [keys]: crate::docs::keys
/// [choosing]: crate::docs::choosing
/// [bugs open]: https://github.com/leasehold/leasehold/blob/main/docs/bugs.md#open
/// [topologies which-one]: crate::docs::topologies#which-one
/// [topologies a-lock-that-a-replica-has]: crate::docs::topologies#a-lock-that-a-replica-has
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

/// [topologies which-one]: crate::docs::topologies#which-one
/// [topologies a-lock-that-a-replica-has]: crate::docs::topologies#a-lock-that-a-replica-has
#[doc = include_str!("../docs/choosing.md")]
pub mod choosing {}

/// [permissions]: crate::docs::keys#permissions
/// [performance]: https://github.com/leasehold/leasehold/blob/main/docs/performance.md
/// [bugs open]: https://github.com/leasehold/leasehold/blob/main/docs/bugs.md#open
/// [fine]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md
/// [fine-one]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md#a-single-server-or-a-primary-with-replicas
/// [fine-sentinel]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md#sentinel
/// [fine-cluster]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md#cluster
/// [fine-durability]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md#a-lock-that-a-replica-has
/// [fine-majority]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md#a-majority-of-servers
/// [fine-logins]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md#logins-and-connections
/// [fine-settings]: https://github.com/leasehold/leasehold/blob/main/docs/topologies-fine-print.md#settings
#[doc = include_str!("../docs/topologies.md")]
pub mod topologies {}

/// [topologies]: crate::docs::topologies
/// [faq in-a-service]: crate::docs::faq#in-a-service
/// [keys]: crate::docs::keys
#[doc = include_str!("../docs/from-redisson.md")]
pub mod from_redisson {}

/// [topologies settings]: crate::docs::topologies#settings
/// [topologies sentinel]: crate::docs::topologies#sentinel
#[doc = include_str!("../docs/keys.md")]
pub mod keys {}

/// [metrics]: crate::docs::metrics
/// [topologies settings]: crate::docs::topologies#settings
/// [keys]: crate::docs::keys
/// [keys keys-that-find-takes-for-locks]: crate::docs::keys#keys-that-find-takes-for-locks
#[doc = include_str!("../docs/observing.md")]
pub mod observing {}

/// [performance]: https://github.com/leasehold/leasehold/blob/main/docs/performance.md
/// [operating]: crate::docs::operating
#[cfg_attr(feature = "metrics", doc = include_str!("../docs/metrics.md"))]
#[cfg_attr(
    not(feature = "metrics"),
    doc = "Metrics: this page is built with the feature `metrics`."
)]
pub mod metrics {}

/// [metrics]: crate::docs::metrics
/// [metrics serve]: crate::docs::metrics#what-the-server-shows-leasehold-serve
/// [observing]: crate::docs::observing
/// [topologies]: crate::docs::topologies
/// [topologies which-one]: crate::docs::topologies#which-one
/// [keys permissions]: crate::docs::keys#permissions
/// [command doctor]: https://github.com/leasehold/leasehold/blob/main/docs/command.md#leasehold-doctor---json
#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

/// [guarantees]: crate::docs::guarantees
/// [guarantees not-promised]: crate::docs::guarantees#not-promised
/// [guarantees failure-by-failure]: crate::docs::guarantees#failure-by-failure
/// [guarantees order]: crate::docs::guarantees#order
/// [guarantees forks]: crate::docs::guarantees#forks
/// [topologies]: crate::docs::topologies
/// [topologies which-one]: crate::docs::topologies#which-one
/// [topologies logins-and-connections]: crate::docs::topologies#logins-and-connections
/// [from-redisson]: crate::docs::from_redisson
/// [performance]: https://github.com/leasehold/leasehold/blob/main/docs/performance.md
/// [operating]: crate::docs::operating
/// [operating a-lock-is-stuck]: crate::docs::operating#a-lock-is-stuck
/// [operating the-alerts]: crate::docs::operating#the-alerts
/// [works-with]: https://github.com/leasehold/leasehold/blob/main/docs/works-with.md
/// [choosing]: crate::docs::choosing
/// [choosing async-or-blocking]: crate::docs::choosing#async-or-blocking
/// [choosing which-lease]: crate::docs::choosing#which-lease
/// [keys permissions]: crate::docs::keys#permissions
#[doc = include_str!("../docs/faq.md")]
pub mod faq {}
