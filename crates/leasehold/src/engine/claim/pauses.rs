//! How long to wait before a try that failed is made again.

use std::time::Duration;

use crate::engine::env::Env;

/// Pauses between tries: 10 ms, doubling up to half a second.
#[derive(Debug, Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    pub(crate) async fn pause(&mut self, env: &Env) {
        env.sleep(self.next()).await;
    }

    pub(crate) fn next(&mut self) -> Duration {
        let ms = (10_u64 << self.0.min(6)).min(500);
        self.0 += 1;
        Duration::from_millis(ms / 2 + fastrand::u64(0..=ms / 2))
    }

    /// Of a debt that was first asked about so long ago: after a minute ever longer, up to half a minute after an hour. So a
    /// server that is back hears of it within a hundredth of the time for which it was away.
    pub(crate) fn of_debt(&mut self, ago: Duration) -> Duration {
        let minutes = ago.as_secs_f64() / 60.0;
        self.next().mul_f64(minutes.clamp(1.0, 60.0))
    }

    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }
}
