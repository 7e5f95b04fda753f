//! Names that only one caller each uses, taken and given back again and again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::Client;
use tokio::{task::JoinSet, time::sleep};

use super::{
    kinds::{ROWS, Row},
    soon,
};

/// The callers. `None` is what each looks out for.
pub struct OwnNames {
    is_over: Arc<AtomicBool>,
    callers: JoinSet<Vec<String>>,
}

impl OwnNames {
    /// So many callers, each of the next kind. Permits are no leases of a name's own, and what a server forgot of them is another matter.
    pub async fn of(client: &Client, tag: &str, count: usize) -> OwnNames {
        let kinds = ROWS
            .into_iter()
            .filter(|row| !matches!(row, Row::Count | Row::Permit | Row::Multi));
        let mut all = OwnNames {
            is_over: Arc::default(),
            callers: JoinSet::new(),
        };
        for (at, row) in kinds.cycle().take(count).enumerate() {
            let name = format!("{tag}:{row:?}:{at}");
            row.prepare(client, &name).await;
            let (lock, is_over) = (row.lock(client, &name), Arc::clone(&all.is_over));
            all.callers.spawn(async move {
                let mut nones = Vec::new();
                let mut last = String::from("nothing");
                while !is_over.load(Ordering::Relaxed) {
                    match lock.try_lock().await {
                        Ok(Some(guard)) => {
                            sleep(Duration::from_millis(fastrand::u64(..30))).await;
                            last = format!("{:?}", guard.release().await);
                        }
                        Ok(None) => nones.push(format!("{name}, after {last}")),
                        // Nobody can be asked meanwhile.
                        Err(error) => assert!(error.is_unreachable(), "{error}"),
                    }
                    sleep(Duration::from_millis(fastrand::u64(1..20))).await;
                }
                nones
            });
        }
        all
    }

    /// Which names were told held, and after what.
    pub async fn told_held(self) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        soon("the callers end", self.callers.join_all())
            .await
            .concat()
    }
}
