//! Counters, gauges and histograms of a client's locks, for the recorder of the crate [`metrics`](https://docs.rs/metrics). Feature `metrics`.
//!
//! [`ClientBuilder::metrics`](crate::ClientBuilder::metrics) turns them on. [`docs::metrics`](crate::docs::metrics) lists them, says
//! what to do when one moves, and has the recipe for Prometheus.

mod series;

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use metrics::{Counter, Key, Label, Level, Metadata, Recorder, Unit};
use parking_lot::Mutex;

use crate::{Error, Event, EventKind, LockKind, error::Invalid, events::Observe};
use series::Series;

const ACQUIRES: &str = "leasehold_acquires_total";
const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const WAITING: &str = "leasehold_waiting";
const HELD: &str = "leasehold_held";
const HANDOVERS: &str = "leasehold_handovers_total";
const RENEWALS: &str = "leasehold_renewals_total";
const LEFT: &str = "leasehold_renewal_left_ratio";
const LOST: &str = "leasehold_lost_total";
const RELEASES: &str = "leasehold_releases_total";
const LEADER: &str = "leasehold_leader";
const DROPPED: &str = "leasehold_events_dropped_total";

/// The histograms, each with the buckets that suit it: in seconds, and of a ratio.
///
/// Exporters for Prometheus make a summary of a histogram for which they were given no buckets, and summaries of several processes
/// cannot be added up.
///
/// # Examples
/// ```
/// use leasehold::metrics::BUCKETS;
/// use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
///
/// let mut builder = PrometheusBuilder::new();
/// for (metric, buckets) in BUCKETS {
///     builder = builder.set_buckets_for_metric(Matcher::Full(metric.to_string()), buckets)?;
/// }
/// # drop(builder.build_recorder());
/// # Ok::<(), metrics_exporter_prometheus::BuildError>(())
/// ```
pub const BUCKETS: &[(&str, &[f64])] = &[
    (WAIT, SECONDS),
    (HOLD, SECONDS),
    (
        LEFT,
        &[0.05, 0.1, 0.2, 0.33, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 1.0],
    ),
];

const SECONDS: &[f64] = &[
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0, 300.0,
];

/// The metrics of a client, told apart by kind of lock, and by these classes of names.
///
/// A class is the beginning of a name, and the value of the label `class`; names of no class are `other`. A name itself is never a
/// label but of `leasehold_leader`, so there are no more series than classes, kinds, and elections that this client has led. A [name prefix](crate::ClientBuilder::name_prefix) is no part of the name here.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, ErrorKind, metrics::Metrics};
///
/// let metrics = Metrics::new().class("order:").class("stock:");
/// let client = Client::builder().url("memory:").metrics(metrics).connect().await?;
/// # drop(client);
/// // Which of them is `order:42`?
/// let metrics = Metrics::new().class("order:").class("order:4");
/// let refused = Client::builder().url("memory:").metrics(metrics).connect().await;
/// assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "metrics are counted by the client that is given them"]
pub struct Metrics {
    classes: Vec<String>,
}

impl Metrics {
    /// Of all names together, in the class `other`.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// And apart from them: the names that begin with this.
    pub fn class(mut self, prefix: impl Into<String>) -> Metrics {
        self.classes.push(prefix.into());
        self
    }

    pub(crate) fn observer(self) -> Result<Arc<dyn Observe>, Error> {
        check_classes(&self.classes)?;
        let series = || LockKind::ALL.iter().map(|_| Series::default()).collect();
        let others = self.classes.len() + 1;
        Ok(Arc::new(Counting {
            classes: self.classes,
            series: (0..others).map(|_| series()).collect(),
            releases: OnceLock::new(),
            led: Mutex::default(),
        }))
    }
}

fn check_classes(classes: &[String]) -> Result<(), Error> {
    for (at, class) in classes.iter().enumerate() {
        let refuse = |limit: String, remedy: &str| {
            let invalid = Invalid::new("class", format!("{class:?}"), limit);
            Err(invalid.remedy(remedy.to_owned()).into())
        };
        if class.is_empty() {
            let remedy = "leave it out: names of no class are counted as \"other\"";
            return refuse("at least one character".into(), remedy);
        }
        if class == OTHER {
            let remedy = "take a longer prefix, such as \"other:\"";
            return refuse(
                format!("another word than {OTHER:?}, which names of no class have"),
                remedy,
            );
        }
        let others = classes.iter().enumerate();
        let begun = others.filter(|(other, _)| *other != at);
        if let Some((_, other)) = begun
            .map(|(_, other)| (at, other))
            .find(|(_, other)| other.starts_with(class.as_str()))
        {
            let limit = format!("no beginning of the class {other:?}");
            return refuse(limit, "leave one of the two out: a name is in one class");
        }
    }
    Ok(())
}

const OTHER: &str = "other";

/// A kind's place in [`LockKind::ALL`] is its number.
const _: () = {
    let mut at = 0;
    while at < LockKind::ALL.len() {
        assert!(LockKind::ALL[at] as usize == at);
        at += 1;
    }
};

/// Counts the events of one client. They come one at a time.
struct Counting {
    classes: Vec<String>,
    /// By class, with `other` at the end, and by kind.
    series: Vec<Vec<Series>>,
    releases: OnceLock<Releases>,
    /// The elections that this client leads.
    led: Mutex<HashSet<String>>,
}

struct Releases {
    freed: Counter,
    unconfirmed: Counter,
    detached: Counter,
}

impl Observe for Counting {
    fn event(&self, event: &Event) {
        let begins = |class: &String| event.name.starts_with(class.as_str());
        let class = self.classes.iter().position(begins);
        let class = class.unwrap_or(self.classes.len());
        let Some(series) = self.series[class].get(event.lock as usize) else {
            return;
        };
        // Before the event is counted: new gauges begin with what was there, and the event is then added to them.
        let handles = series.handles(|| {
            let class = self.classes.get(class).map_or(OTHER, String::as_str);
            [
                Label::new("kind", event.lock.as_str()),
                Label::new("class", class.to_owned()),
            ]
        });
        series.count(event.kind, handles);
        // Before a recorder is looked for: one that comes later must not hear of a term that is over.
        if event.lock == LockKind::FencedMutex
            && event.kind.held().is_some()
            && self.led.lock().remove(&*event.name)
        {
            set_leader(&event.name, 0.0);
        }
        let Some(releases) = self.releases() else {
            return;
        };
        match event.kind {
            EventKind::Released { .. } => releases.freed.increment(1),
            EventKind::Unconfirmed { .. } => releases.unconfirmed.increment(1),
            EventKind::Detached { .. } => releases.detached.increment(1),
            _ => {}
        }
    }

    fn dropped(&self, events: u64) {
        with_recorder(|recorder| {
            let key = Key::from_name(DROPPED);
            recorder.register_counter(&key, &METADATA).increment(events);
        });
    }

    fn leads(&self, election: &str) {
        // The note comes first: a recorder that is installed between these two lines is told by `releases` (bug 214).
        self.led.lock().insert(election.to_owned());
        set_leader(election, 1.0);
    }
}

fn set_leader(election: &str, leads: f64) {
    with_recorder(|recorder| {
        let key = Key::from_parts(LEADER, vec![Label::new("election", election.to_owned())]);
        recorder.register_gauge(&key, &METADATA).set(leads);
    });
}

impl Counting {
    fn releases(&self) -> Option<&Releases> {
        if let Some(releases) = self.releases.get() {
            return Some(releases);
        }
        let releases = with_recorder(|recorder| {
            // Here and not in `observer`: a program may install its recorder after its clients (bug 214).
            describe(recorder);
            let of = |outcome: &'static str| {
                let key = Key::from_parts(RELEASES, vec![Label::new("outcome", outcome)]);
                recorder.register_counter(&key, &METADATA)
            };
            // It is there from the beginning, so that an alert on its rise has a zero to rise from.
            let dropped = recorder.register_counter(&Key::from_name(DROPPED), &METADATA);
            dropped.increment(0);
            self.releases.get_or_init(|| Releases {
                freed: of("freed"),
                unconfirmed: of("unconfirmed"),
                detached: of("detached"),
            })
        });
        if releases.is_some() {
            // The recorder came while this client led.
            self.led.lock().iter().for_each(|led| set_leader(led, 1.0));
        }
        releases
    }
}

const METADATA: Metadata<'static> = Metadata::new("leasehold", Level::INFO, None);

/// The program's recorder. A counter that is made without a recorder counts nothing for ever, so `None` until there is one: the recorder that
/// stands for none has no size.
fn with_recorder<T>(use_it: impl FnOnce(&dyn Recorder) -> T) -> Option<T> {
    metrics::with_recorder(|recorder| (size_of_val(recorder) > 0).then(|| use_it(recorder)))
}

fn describe(recorder: &dyn Recorder) {
    let counters = [
        (ACQUIRES, "Calls that asked for a lock, by their answer."),
        (
            HANDOVERS,
            "Leases passed on in memory, to the next holder in this process.",
        ),
        (
            RENEWALS,
            "Renewals of leases, by whether the server answered.",
        ),
        (LOST, "Leases lost, by reason."),
        (RELEASES, "Leases given back, by how."),
        (
            DROPPED,
            "Events that no observer was told of: observers are slower than events come.",
        ),
    ];
    for (name, text) in counters {
        recorder.describe_counter(name.into(), Some(Unit::Count), text.into());
    }
    let gauges = [
        (WAITING, "Calls that wait for a lock now."),
        (HELD, "Leases that are held now."),
        (LEADER, "Whether this client leads the election."),
    ];
    for (name, text) in gauges {
        recorder.describe_gauge(name.into(), Some(Unit::Count), text.into());
    }
    let histograms = [
        (
            WAIT,
            Some(Unit::Seconds),
            "How long calls waited that got the lock.",
        ),
        (HOLD, Some(Unit::Seconds), "How long leases were held."),
        (
            LEFT,
            None,
            "How much of the lease was left when a renewal landed; two thirds is healthy.",
        ),
    ];
    for (name, unit, text) in histograms {
        recorder.describe_histogram(name.into(), unit, text.into());
    }
}
