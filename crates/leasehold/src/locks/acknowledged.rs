//! Acknowledgements of a guard's lock by replicas, or by the disk.

use super::guard::Guard;
use crate::Acknowledged;

impl<K> Guard<K> {
    /// The acknowledgements of this hold by replicas, or by the disk, and when they came. No I/O.
    ///
    /// [`Durability`](crate::Durability) says what they are worth. Each renewal is acknowledged anew.
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
