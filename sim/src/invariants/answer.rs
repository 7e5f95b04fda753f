//! **Answer** An answer that says that a hold is there (a grant, a count, an extension, a renewal) is true when it is written. No answer
//! says that the count of a latch is below zero. A lease id that is given up, or holds, stands in no
//! queue.

use leasehold::{LockKind, sim::Kind};

use crate::{
    shared::{LETTERS, NAMES},
    wire::Asked,
    world::World,
};

fn says_held(kind: Kind, answer: &str) -> bool {
    match kind {
        Kind::Acquire => answer.starts_with("Ok(Granted"),
        Kind::Count => answer == "Ok(Written)" || answer == "Ok(OthersWait)",
        Kind::Extend => answer.starts_with("Ok(Some("),
        Kind::Renew => {
            let rest = answer.replace("Extended", "").replace(", ", "");
            rest == "Ok([])"
        }
        _ => false,
    }
}

/// It has been carried out, and is answered so.
pub fn executed(world: &mut World, asked: &Asked, answer: &str) {
    let is_latch = world.config.kind == LockKind::Latch;
    if is_latch && answer.starts_with("Ok(-") && world.watch.asks("answer") {
        let what = format!("a request about a count is answered {answer}");
        let mut shared = world.shared.lock();
        shared.breach("answer", "below zero", what);
    }
    waits_no_more(world, asked, answer);
    let holds_nothing = [LockKind::Semaphore, LockKind::Latch];
    // A primary of a cluster that was replaced answers from keys that are no more: B1 looks at what is believed of that.
    if world.config.nodes > 0
        || holds_nothing.contains(&world.config.kind)
        || !says_held(asked.kind, answer)
        || !world.watch.asks("answer")
    {
        return;
    }
    let letter = LETTERS[usize::from(asked.client)];
    let server = &world.servers[world.of_lane(asked.server)];
    let wrong = asked.about.iter().find(|(name, lease)| {
        let held = server.holders(NAMES[usize::from(*name)]);
        let mut its = held.iter();
        !its.any(|held| *held.client == *letter && held.lease == *lease)
    });
    if let Some((name, lease)) = wrong {
        let what = format!(
            "{letter} asks about #{lease} of {}, and the server has no such hold: {answer}",
            NAMES[usize::from(*name)]
        );
        let kind = format!("{:?} of nothing", asked.kind);
        world.shared.lock().breach("answer", kind, what);
    }
}

fn waits_no_more(world: &mut World, asked: &Asked, answer: &str) {
    let kind = match asked.kind {
        Kind::Release if answer.starts_with("Ok(") => "given up and queued",
        Kind::Acquire if answer.starts_with("Ok(Granted") => "held and queued",
        _ => return,
    };
    if !world.watch.asks("answer") {
        return;
    }
    let letter = LETTERS[usize::from(asked.client)];
    let server = &world.servers[world.of_lane(asked.server)];
    let queued = server.snapshot().queued;
    let stays = queued.iter().find(|(name, client, lease)| {
        let mut about = asked.about.iter();
        **client == *letter && about.any(|it| *NAMES[usize::from(it.0)] == **name && it.1 == *lease)
    });
    if let Some((name, _, lease)) = stays {
        let what = format!("#{lease} of {letter} is {kind} for {name}: {answer}");
        world.shared.lock().breach("answer", kind, what);
    }
}
