//! How one server is listened to.

use std::sync::Arc;

use redis::RedisError;

use crate::{
    backend::redis::{sharding::Chosen, silence::Silence},
    name::LockId,
};

/// Where names are listened for once a node of a cluster lets clients listen for them no more.
pub(crate) trait Elsewhere: Send + Sync {
    /// The subscription to this name has ended here unasked, or the node has refused to take it up again, in these words, since another has
    /// the slot, or none has it yet. It is forgotten here; who waits for it is still to be woken. Called by the connection: it must not wait.
    fn unheard(&self, id: &LockId, refusal: Option<&RedisError>);
}

/// On which channels names are heard, and where once they are heard here no more.
#[derive(Clone, Default)]
pub(crate) struct Hearing {
    pub(crate) chosen: Chosen,
    /// `None`: here, again.
    pub(crate) elsewhere: Option<Arc<dyn Elsewhere>>,
    /// The knowledge of silent connections, which all nodes of a cluster share.
    pub(crate) silence: Silence,
}

/// Why a caller is not subscribed that was for a moment. The end was told by itself.
#[derive(Debug, thiserror::Error)]
#[error("the server has ended the subscription at once: another node has the slot")]
pub(crate) struct EndedAtOnce;
