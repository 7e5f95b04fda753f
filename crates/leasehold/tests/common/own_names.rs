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
    kinds::{AnyLock, ROWS, Row},
    soon,
};

/// The kinds whose names are leases of their own. Permits are not, and what a server forgot of them is another matter.
fn kinds() -> impl Iterator<Item = Row> + Clone {
    let has_lease = |row: &Row| !matches!(row, Row::Count | Row::Permit | Row::Multi);
    ROWS.into_iter().filter(has_lease)
}

/// A name of each kind that the server has confirmed as given back, but may have again.
pub struct GivenBack(pub Vec<(String, AnyLock)>);

impl GivenBack {
    /// Takes them, has the server `remember` that, and gives them back.
    pub async fn after(client: &Client, tag: &str, remember: impl FnOnce()) -> GivenBack {
        let mut held = Vec::new();
        for row in kinds() {
            let name = format!("{tag}:{row:?}");
            row.prepare(client, &name).await;
            let lock = row.lock(client, &name);
            held.push((name, lock.lock().await.unwrap(), lock));
        }
        remember();
        let mut all = Vec::new();
        for (name, guard, lock) in held {
            guard.release().await.unwrap();
            all.push((name, lock));
        }
        GivenBack(all)
    }

    /// Takes each again: no answer is `None`.
    pub async fn are_had_again(&self) {
        for (name, lock) in &self.0 {
            loop {
                match lock.try_lock().await {
                    Ok(Some(guard)) => break drop(guard),
                    Ok(None) => panic!("{name} is held by another, it says"),
                    // No server can be asked yet, or what holds it is being given back.
                    Err(error) => assert!(error.is_unreachable(), "{error}"),
                }
            }
        }
    }
}

/// The callers. `None` is what each looks out for.
pub struct OwnNames {
    is_over: Arc<AtomicBool>,
    callers: JoinSet<Vec<String>>,
}

impl OwnNames {
    /// So many callers, each of the next kind.
    pub async fn of(client: &Client, tag: &str, count: usize) -> OwnNames {
        let mut all = OwnNames {
            is_over: Arc::default(),
            callers: JoinSet::new(),
        };
        for (at, row) in kinds().cycle().take(count).enumerate() {
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
