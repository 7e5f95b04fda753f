//! `cargo run -p leasehold-service`; see docs/service.md.

use std::{env, error::Error, path::Path, sync::Arc, time::Duration};

use futures_util::FutureExt;
use leasehold::{Client, Shutdown};
use leasehold_service::{App, data, jobs, metrics};
use tokio::{net::TcpListener, signal, time::sleep};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let setting = |name, default: &str| env::var(name).unwrap_or(default.to_owned());
    let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    warnings.with_writer(std::io::stderr).init();

    let metrics = metrics::router()?;
    let locks = Client::builder()
        .url(setting("LEASEHOLD_URL", "redis://127.0.0.1/"))
        .metrics(metrics::classes())
        .connect()
        .await?;
    let app = App {
        locks: locks.clone(),
        db: data::open(Path::new(&setting("SERVICE_DATABASE", "service.sqlite"))).await?,
        // A bank for an example: it takes its time, and never says no.
        bank: Arc::new(|_| sleep(Duration::from_millis(300)).boxed()),
    };
    tokio::spawn(jobs::report_hourly(app.clone()));
    tokio::spawn(jobs::ship(app.clone()));

    let listener = TcpListener::bind(setting("SERVICE_ADDRESS", "127.0.0.1:3000")).await?;
    println!("open at http://{}", listener.local_addr()?);
    let db = app.db.clone();
    let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
    let terminated = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = signal::ctrl_c() => {} }
    }
    .shared();
    // Requests under way are answered, each within the bank's patience. A connection that sends nothing does not hold the end up.
    let late = terminated.clone().then(|()| sleep(Duration::from_secs(7)));
    let serve = axum::serve(listener, app.router().merge(metrics));
    tokio::select! {
        served = serve.with_graceful_shutdown(terminated).into_future() => served?,
        () = late => tracing::warn!("connections are still open, and are cut off"),
    }
    // Then the leader stops at once, and a report has ten seconds to end.
    let grace = Duration::from_secs(10);
    locks.shutdown(Shutdown::ReleaseAll { grace }).await;
    db.close().await;
    Ok(())
}
