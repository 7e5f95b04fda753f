//! A Redisson that listens at a replica (`subscriptionMode` `SLAVE`): no primary counts it, and it hears what the primary publishes.

use std::{iter, time::Duration};

use super::replicated::{Replicated, flavors};

const CHANNEL: &str = "redisson_rwlock:{name}";

/// What a subscriber hears until it has heard nothing for a while.
fn heard(subscriber: &mut redis::PubSub<'_>) -> Vec<String> {
    let next = || subscriber.get_message().ok()?.get_payload().ok();
    iter::from_fn(next).collect()
}

/// `1` passes a writer by that has just asked and is about to wait, which would sleep until the end of a lease that is no more.
#[tokio::test]
async fn a_writer_that_was_about_to_wait_is_woken_where_no_primary_counts_it() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 1);
        let client = group.builder().connect().await.unwrap();
        let mut replica = group.replicas[0].connection();
        let mut redisson = replica.as_pubsub();
        redisson.subscribe(CHANNEL).unwrap();
        let wait = Some(Duration::from_millis(500));
        redisson.set_read_timeout(wait).unwrap();
        let guard = client.rw_lock("name").write().await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(heard(&mut redisson), ["1", "0"], "{flavor}");
    }
}
