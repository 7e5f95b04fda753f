//! L1 and L2: every future ends, and when the faults end a waiter holds the name soon.

use std::time::Duration;

use crate::{clock::nanos, ops::LONGEST_LEASE};

/// An ask without an answer.
#[derive(Clone, Debug)]
pub(crate) struct OpenAsk {
    pub(crate) name: usize,
    pub(crate) how: String,
    pub(crate) wait: Option<u64>,
    pub(crate) at: u64,
}

/// How long is too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The client's lease.
    pub(crate) lease: Duration,
    /// The time that the machine may take on top of the library's promise.
    pub(crate) slack: Duration,
}

impl Patience {
    /// L1: from the end of the faults until a waiter holds the name.
    pub(crate) fn calm(self) -> Duration {
        self.lease * LONGEST_LEASE + Duration::from_millis(200) + self.slack
    }

    /// L2, while faults go on: much longer than the longest lease and any single fault, since a
    /// waiter has others before it and new faults come.
    pub(crate) fn storm(self) -> Duration {
        self.lease * 20 + Duration::from_secs(30)
    }

    /// Whether an ask that is open at `now` hangs. `calm_since` is when the faults ended.
    pub(crate) fn is_over(self, ask: &OpenAsk, now: u64, calm_since: Option<u64>) -> bool {
        let waited = now.saturating_sub(ask.at);
        let storm = waited > nanos(self.storm()) + ask.wait.unwrap_or(0);
        let calm = calm_since.is_some_and(|since| {
            now.saturating_sub(since.max(ask.at)) > nanos(self.calm()) + ask.wait.unwrap_or(0)
        });
        storm || calm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calm_counts_from_the_end_of_the_faults_or_from_the_ask() {
        let second = 1_000_000_000;
        let patience = Patience {
            lease: Duration::from_secs(1),
            slack: Duration::from_millis(800),
        };
        let ask = |at| OpenAsk {
            name: 0,
            how: "lock".to_owned(),
            wait: None,
            at,
        };
        assert!(!patience.is_over(&ask(0), 10 * second, None));
        assert!(!patience.is_over(&ask(0), 10 * second, Some(8 * second)));
        assert!(patience.is_over(&ask(0), 10 * second, Some(6 * second)));
        assert!(!patience.is_over(&ask(8 * second), 10 * second, Some(6 * second)));
        assert!(patience.is_over(&ask(0), 51 * second, None));
    }
}
