//! How a name stays taken for a while from its start, however the work ends. Pure arithmetic, for
//! [`Mutex::run_once_per`](crate::Mutex::run_once_per) and for `leasehold run --at-least`.
//!
//! The name must free itself that long after the start, although the work, and its process with it, has ended long before. No
//! request makes a lease end sooner (docs/rules.md, B2). So the first lease is exactly as long as that and is not
//! renewed: a hold that is left to itself ends in time, and no crash shortens it. Only when that lease comes close to its
//! end and the work still runs, it is extended, from then on like any other. If the work ends between that and the end of
//! the time, its process waits for that end and releases the name then.

use std::time::Duration;

/// A process may wait for so long, but a lease that is so short makes an end of the work for a moment of bad network. So for
/// less than this the lease is the renewed one, and the process waits.
const SHORT: Duration = Duration::from_secs(1);

/// For how long a name stays taken, and by which leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtLeast {
    time: Duration,
    lease: Duration,
    grace: Duration,
}

/// The end of a hold whose work has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The name has been taken for long enough.
    Over,
    /// The lease ends by itself when it is time, in this long.
    EndsByItself(Duration),
    /// The lease would last for longer than this.
    Outlasts(Duration),
}

impl AtLeast {
    /// Taken for `time` from the start; work that is longer has a lease of `lease` that is renewed, and needs `grace` to end.
    pub fn new(time: Duration, lease: Duration, grace: Duration) -> AtLeast {
        AtLeast { time, lease, grace }
    }

    /// How long a lease to ask for.
    pub fn first(&self) -> Duration {
        if self.time < SHORT {
            self.lease.max(self.time)
        } else {
            self.time
        }
    }

    /// The shortest lease under which the work may run.
    pub fn shortest(&self) -> Duration {
        self.first().min(self.lease)
    }

    /// Extend the first lease when no more than this is left of it.
    pub fn extend_at(&self) -> Duration {
        self.grace + self.every()
    }

    /// How often a lease is renewed.
    pub fn every(&self) -> Duration {
        self.shortest() / 3
    }

    /// The length of an extension.
    pub fn extension(&self) -> Duration {
        self.lease
    }

    /// The end of a hold that began `held` ago, and of whose lease `remaining` is left.
    pub fn rest(&self, held: Duration, remaining: Duration) -> Rest {
        // The clocks of the server and of this machine do not run at quite the same speed.
        let drift = self.time / 50;
        match self.time.saturating_sub(held) {
            Duration::ZERO => Rest::Over,
            rest if remaining <= rest + drift => Rest::EndsByItself(rest),
            rest => Rest::Outlasts(rest),
        }
    }
}
