//! How often a hold was entered, as the server is told.

use std::sync::Arc;

use crate::{
    backend::{Count, Counted, Failure},
    engine::hold::Hold,
    engine::queue::map::Queues,
};

/// Only for readers of the server's keys: the count there decides nothing.
pub(crate) fn write_count_in_background(core: &Arc<Queues>, hold: &Arc<Hold>, count: Option<u32>) {
    if count.is_some() && !hold.is_over() {
        let (client, counted) = (Arc::clone(core), Arc::clone(hold));
        core.spawn(async move {
            let _ = write_count(&client, &counted).await;
        });
    }
}

pub(crate) async fn write_count(core: &Queues, hold: &Arc<Hold>) -> Result<Counted, Failure> {
    let count = Count {
        id: hold.id().clone(),
        access: hold.spec().access,
        lease: hold.lease,
        holds: hold.counted(),
        reads: hold.readers(),
        listening: core.is_listening(hold.id()),
    };
    core.backend.count(count).await
}
