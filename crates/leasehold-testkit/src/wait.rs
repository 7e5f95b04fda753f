//! Waiting for an event, with a deadline and a name for the event.

use std::time::{Duration, Instant};

/// How often a condition is looked at: far below what a test waits for, far above what a look costs.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Blocks until `condition` holds.
///
/// It blocks the thread: on a current-thread runtime, a condition that the test's own tasks must bring about
/// needs [`wait_until_async`].
///
/// # Panics
/// When `deadline` has passed first; the message names `what`.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < deadline,
            "waited {deadline:?} in vain until {what}"
        );
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until `condition` holds, and lets other tasks run meanwhile.
///
/// Its looks and its deadline follow the clock of the runtime: a paused one runs ahead.
///
/// # Panics
/// When `deadline` has passed first; the message names `what`.
pub async fn wait_until_async(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let started = tokio::time::Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < deadline,
            "waited {deadline:?} in vain until {what}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "in vain until the cows come home")]
    fn what_never_came_is_named() {
        wait_until(Duration::from_millis(5), "the cows come home", || false);
    }

    #[tokio::test]
    async fn other_tasks_run_meanwhile() {
        let task = tokio::spawn(async {});
        wait_until_async(Duration::from_secs(10), "the task ran", || {
            task.is_finished()
        })
        .await;
        task.await.expect("it has ended well");
    }
}
