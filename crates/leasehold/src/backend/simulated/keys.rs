//! The keys of a world on the real scripts, and an inspection of them from outside.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        WakeUp,
        simulated::snapshot::{Held, Snapshot},
    },
    name::LockId,
};

/// A message that was published, for one of those that listened then.
#[derive(Clone, Debug)]
pub struct Published {
    /// Who listened.
    pub client: Arc<str>,
    /// On which channel.
    pub channel: String,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Keys, and an interpreter of scripts.
pub trait ScriptServer: Send {
    /// Runs a script: its answer, or its error as a server writes it.
    fn call(
        &mut self,
        script: &'static str,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, String>;
    /// It is so late on its clock.
    fn set_clock(&mut self, now: Duration);
    /// A client listens on a channel.
    fn subscribe(&mut self, client: &Arc<str>, channel: &str);
    /// It does not any more.
    fn unsubscribe(&mut self, client: &str, channel: &str);
    /// It listens on no channel.
    fn disconnect(&mut self, client: &str);
    /// The messages that were published since the last time.
    fn take_messages(&mut self) -> Vec<Published>;
    /// Every key, in any order.
    fn keys(&mut self) -> Vec<Vec<u8>>;
    /// How many replicas have all that was written.
    fn acknowledge(&mut self) -> u32;
    /// When the next key ends.
    fn next_end(&self) -> Option<Duration>;
    /// It has lost its data.
    fn forget(&mut self);
    /// The same keys at another server, to which no client listens.
    fn copied(&self) -> Box<dyn ScriptServer>;
}

/// Inspects the keys from outside, as a client inspects a lock, and changes them for the operator of a world.
pub(crate) trait KeyspaceInspector: Send + Sync {
    fn inspect(&self, id: &LockId, now: Duration, seen: &mut Snapshot);

    /// The wake-up that a message is to the waiters of this lock.
    fn wake_up(&self, id: &LockId, channel: &str, payload: &[u8]) -> Option<WakeUp>;

    /// Gives back the permits of a holder.
    fn give_back(&self, id: &LockId, held: &Held);

    /// Ends a latch.
    fn open(&self, id: &LockId);
}
