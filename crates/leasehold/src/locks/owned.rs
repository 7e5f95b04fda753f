//! The settings of locks that an owner may enter again.

/// The settings of kinds whose owner may enter again.
macro_rules! owner_settings {
    ($kind:ident) => {
        impl $kind {
            /// The same lock, which refuses re-entry with [`Error::Reentered`](crate::Error::Reentered) if `false`.
            ///
            /// Redisson's `RNonReentrantLock`. Default: `true`.
            pub fn reentrant(&self, reentrant: bool) -> $kind {
                $kind {
                    handle: self.handle.with(|settings| settings.reentrant = reentrant),
                }
            }

            /// The same lock, taken by this owner, which may enter it again.
            ///
            /// The nested guard shares the lease of the outer one, even if it asks for another, and the hold count is
            /// written to the server as Redisson does.
            ///
            /// # Examples
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
            /// let client = leasehold::Client::connect("memory:").await?;
            /// let owner = leasehold::Owner::new();
            /// let mutex = client.mutex("order:42").owned_by(&owner);
            /// let outer = mutex.lock().await?;
            /// let inner = mutex.lock().await?; // the same owner: it enters again
            /// assert_eq!(inner.owner(), outer.owner());
            /// assert!(mutex.reentrant(false).lock().await.is_err());
            /// # Ok(()) }
            /// ```
            pub fn owned_by(&self, owner: &crate::Owner) -> $kind {
                $kind {
                    handle: self
                        .handle
                        .with(|settings| settings.owner = Some(owner.id())),
                }
            }
        }
    };
}
pub(super) use owner_settings;
