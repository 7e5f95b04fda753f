//! What a backend hears of locks.

use super::Reply;
use crate::name::LockId;

/// What is heard of locks.
pub(crate) trait WakeUpSteps {
    /// Starts to hear wake-ups for the lock. When this is answered, none is missed any more.
    fn listen(&self, id: LockId) -> Reply<()>;

    /// Stops hearing wake-ups for the lock. Asked for at once, whether or not the reply is waited for.
    fn unlisten(&self, id: &LockId) -> Reply<()>;

    /// Whether they travel on sharded channels: who uses the classic ones is not woken by ours, and does not wake ours.
    fn is_sharded(&self) -> bool {
        false
    }

    /// How many clients listen on the classic channel of the lock.
    fn classic_listeners(&self, _id: &LockId) -> Reply<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// For tests: answered when all wake-ups are heard that the server has sent until now.
    fn heard(&self) -> Reply<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
