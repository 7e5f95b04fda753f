//! What others than the server have of a guard's lock.

use super::guard::Guard;
use crate::Acknowledged;

impl<K> Guard<K> {
    /// What replicas, or the disk, have acknowledged of this hold, and when. No I/O.
    ///
    /// [`Durability`](crate::Durability) says what that is worth. Each renewal is acknowledged anew.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Durability};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// let durability = guard.durability();
    /// assert_eq!((durability.policy, durability.at), (Durability::Primary, None));
    /// # Ok(()) }
    /// ```
    pub fn durability(&self) -> Acknowledged {
        self.hold().acknowledged()
    }
}
