//! `GET /metrics`, for Prometheus.

use std::time::Duration;

use axum::{Router, routing::get};
use leasehold::metrics::{BUCKETS, Metrics};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use tokio::time::interval;

/// Installs the recorder of this program, of which there is one, keeps it small, and answers with what it has.
///
/// # Errors
/// There is one already.
pub fn router() -> Result<Router, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for (metric, buckets) in BUCKETS {
        let metric = Matcher::Full((*metric).to_owned());
        builder = builder.set_buckets_for_metric(metric, buckets)?;
    }
    let recorded = builder.install_recorder()?;
    let kept = recorded.clone();
    tokio::spawn(async move {
        // Else what is counted between two scrapes piles up, where nothing scrapes.
        let mut timer = interval(Duration::from_secs(5));
        loop {
            timer.tick().await;
            kept.run_upkeep();
        }
    });
    let render = get(move || async move { recorded.render() });
    Ok(Router::new().route("/metrics", render))
}

/// The beginnings of names that its client tells apart.
pub fn classes() -> Metrics {
    Metrics::new()
        .class("order:")
        .class("report")
        .class("shipping")
}
