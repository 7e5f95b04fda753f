//! A subscriber of `tracing` that panics is the trouble of its owner: renewals, losses and reconnecting go on (bug 63).

mod common;

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use common::{SOON, release, servers, soon};
use leasehold::Client;
use leasehold_testkit::{Proxy, wait_until_async};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
};

static PANICS: AtomicU32 = AtomicU32::new(0);

/// Panics at each event of the library.
struct Panics;

fn panic_on_purpose() {
    PANICS.fetch_add(1, Ordering::SeqCst);
    panic!("a subscriber that panics on purpose");
}

impl<S: tracing::Subscriber> Layer<S> for Panics {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("leasehold") {
            panic_on_purpose();
        }
    }

    fn on_enter(&self, _: &tracing::span::Id, _: Context<'_, S>) {
        panic_on_purpose();
    }

    fn on_exit(&self, _: &tracing::span::Id, _: Context<'_, S>) {
        panic_on_purpose();
    }

    fn on_close(&self, _: tracing::span::Id, _: Context<'_, S>) {
        panic_on_purpose();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_panics_costs_no_other_hold_and_no_reconnect() {
    // The reports of the panics would fill the log.
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("on purpose") {
            eprintln!("{info}");
        }
    }));
    let registry = tracing_subscriber::registry().with(Panics);
    tracing::subscriber::set_global_default(registry).unwrap();
    for server in servers() {
        let case = server.flavor().to_string();
        let proxy = Proxy::start(server.addr());
        let lease = Duration::from_millis(600);
        let builder = Client::builder().url(proxy.url()).lease(lease);
        let client = builder.connect().await.unwrap();
        let stays = client.mutex("stays").lock().await.unwrap();
        let goes = client.mutex("goes").lock().await.unwrap();
        client.force_unlock("goes").await.unwrap();
        soon(&case, goes.lost()).await;
        proxy.cut();
        let seen = PANICS.load(Ordering::SeqCst);
        soon(&case, async {
            while client.status("stays").await.is_err() {}
        })
        .await;
        wait_until_async(SOON, "the subscriber panics", || {
            PANICS.load(Ordering::SeqCst) > seen
        })
        .await;
        tokio::time::sleep(lease * 2).await; // the time in which it must be renewed
        assert!(stays.is_valid(), "{case}");
        let worked = soon(&case, stays.run(async { 42 })).await;
        assert_eq!(worked.unwrap(), 42);
        drop(goes);
        release(stays).await;
        release(soon(&case, client.mutex("goes").lock()).await.unwrap()).await;
    }
}

impl fmt::Debug for Panics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Panics")
    }
}
