//! `cargo run -p leasehold-shop`; see README.md.

use std::{env, error::Error, path::Path, sync::Arc, time::Duration};

use futures_util::FutureExt;
use leasehold::{Client, Shutdown};
use leasehold_shop::{Shop, Stock, metrics};
use tokio::{net::TcpListener, signal, time::sleep};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let setting = |name, default: &str| env::var(name).unwrap_or(default.to_owned());
    let recorded = metrics::record()?;
    let client = Client::builder()
        .url(setting("LEASEHOLD_URL", "redis://127.0.0.1/"))
        .metrics(metrics::classes())
        .connect()
        .await?;
    let shop = Shop {
        client: client.clone(),
        stock: Stock::open(Path::new(&setting("SHOP_DATABASE", "shop.sqlite")), 10)?,
        // A bank for an example: it takes its time, and says yes.
        bank: Arc::new(|_| sleep(Duration::from_millis(300)).map(|()| true).boxed()),
    };
    let listener = TcpListener::bind(setting("SHOP_ADDRESS", "127.0.0.1:3000")).await?;
    println!("open at http://{}", listener.local_addr()?);

    let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
    let closing = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = signal::ctrl_c() => {} }
    };
    let server = axum::serve(listener, shop.router().merge(metrics::router(recorded)));
    server.with_graceful_shutdown(closing).await?;

    // A sale goes on when its buyer has hung up. It holds a guard, for which this waits.
    let grace = Duration::from_secs(10);
    client.shutdown(Shutdown::ReleaseAll { grace }).await;
    Ok(())
}
