//! `GET /metrics`, for Prometheus: the recipe of docs/metrics.md.

use axum::{Router, routing::get};
use leasehold::metrics::{BUCKETS, Metrics};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Installs the recorder of this program, of which there is one.
///
/// # Errors
/// There is one already.
pub fn record() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for (metric, buckets) in BUCKETS {
        let matcher = Matcher::Full((*metric).to_owned());
        builder = builder.set_buckets_for_metric(matcher, buckets)?;
    }
    builder.install_recorder()
}

/// The classes that the shop's client tells apart: buyers that wait for an umbrella, and requests that are sent again.
pub fn classes() -> Metrics {
    Metrics::new().class("stock:").class("idempotency:")
}

/// Answers to `/metrics` with what was recorded.
pub fn router(recorded: PrometheusHandle) -> Router {
    let render = move || {
        let recorded = recorded.clone();
        async move { recorded.render() }
    };
    Router::new().route("/metrics", get(render))
}
