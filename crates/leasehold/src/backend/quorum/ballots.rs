//! The records of what each server may have of each lease id: its vote, and what it must still be told.
//!
//! - **QB1** A vote ends a margin before the server's end of the lease, counted from the send that it answers.
//! - **QB4** A lease id is asked for until it is given up; then never again.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;

use crate::{
    backend::{Acquired, Failure},
    clock::{Tick, margin},
    name::Name,
    owner::LeaseId,
};

/// Fewer are not worth a check.
const FEW: usize = 32;

/// The lease ids of a client that servers may know.
pub(super) struct Ballots {
    known: Mutex<KnownBallots>,
    /// How many servers there are.
    of: usize,
    /// Something may send a request twice.
    may_duplicate: bool,
}

#[derive(Default)]
struct KnownBallots {
    all: HashMap<LeaseId, Ballot>,
    /// Lease ids that were given up, and not confirmed by all servers that may have them.
    pending: HashMap<Name, Vec<LeaseId>>,
}

struct Ballot {
    servers: Vec<ServerRecord>,
    /// Of this name.
    given_up: Option<Name>,
    /// No vote of it counts later than this.
    ends: Tick,
}

/// A lease id at one server, as far as the client knows.
#[derive(Clone, Copy, Default)]
struct ServerRecord {
    /// Until when its vote counts.
    vote: Option<Tick>,
    /// So many asks have no answer yet.
    under_way: u32,
    /// So many asks may have been carried out, and left something there.
    asked: u32,
    /// A request was for an entry in its queue.
    queued: bool,
    /// A copy of an ask may still be under way, after its answer was lost.
    copies: bool,
    /// It has confirmed that it was given up; whether it had it.
    confirmed: Option<bool>,
}

impl ServerRecord {
    fn is_pending(&self) -> bool {
        self.asked > 0 && self.confirmed.is_none()
    }
}

/// A server that must be told that a lease id is given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAt {
    pub(super) at: usize,
    /// A copy of a request may still be under way (B4).
    pub(super) copies: bool,
}

impl Ballots {
    pub(super) fn new(of: usize, may_duplicate: bool) -> Ballots {
        Ballots {
            known: Mutex::default(),
            of,
            may_duplicate,
        }
    }

    fn ballot(&self) -> Ballot {
        let word = ServerRecord {
            copies: self.may_duplicate,
            ..ServerRecord::default()
        };
        Ballot {
            servers: vec![word; self.of],
            given_up: None,
            // `tidy` leaves it alone until a first vote says when it ends.
            ends: Tick::MAX,
        }
    }

    /// A request that could take the lock is about to be sent. `false`: the lease id was given up.
    pub(super) fn asks(&self, lease: LeaseId, at: usize, queued: bool) -> bool {
        let mut known = self.known.lock();
        let ballot = known.all.entry(lease).or_insert_with(|| self.ballot());
        // Also by one ask of several: an entry stays when a later ask wants none.
        ballot.servers[at].queued |= queued;
        ballot.asks(at)
    }

    /// The same for a lease id that is held: not for one of which nothing is known any more.
    pub(super) fn asks_again(&self, lease: LeaseId, at: usize) -> bool {
        let mut known = self.known.lock();
        let ballot = known.all.get_mut(&lease);
        ballot.is_some_and(|ballot| ballot.asks(at))
    }

    /// The answer to such a request, sent at `sent`. Whether it is a vote: not of a server that may not vote.
    pub(super) fn answered(
        &self,
        lease: LeaseId,
        at: usize,
        sent: Tick,
        answer: &Result<Acquired, Failure>,
        may_vote: bool,
    ) -> bool {
        let mut known = self.known.lock();
        let Some(ballot) = known.all.get_mut(&lease) else {
            return false;
        };
        let word = &mut ballot.servers[at];
        word.under_way = word.under_way.saturating_sub(1);
        let mut is_vote = false;
        match answer {
            Ok(Acquired::Granted { remaining, .. }) => {
                is_vote = may_vote && ballot.given_up.is_none();
                if is_vote {
                    ballot.moves_out(at, end_of(sent, *remaining));
                }
            }
            // The request may be carried out yet: `asked` stays as it is, so the server is told at the end.
            Err(Failure::Ambiguous(_)) => word.copies = true,
            // It says that it does not hold it. Its queue may have an entry all the same, or a copy of an ask may take the lock later (B4).
            Ok(_) if word.queued || word.copies => {}
            // It left nothing there.
            Ok(_) | Err(_) => word.asked = word.asked.saturating_sub(1),
        }
        if ballot.is_over() {
            known.forget(lease);
        }
        is_vote
    }

    /// A server has extended it, in its answer to a request sent at `sent`, by which so much was left.
    pub(super) fn extended(&self, lease: LeaseId, at: usize, sent: Tick, remaining: Duration) {
        if let Some(ballot) = self.known.lock().all.get_mut(&lease) {
            ballot.moves_out(at, end_of(sent, remaining));
        }
    }

    /// A server says that it is not ours: its vote has ended.
    pub(super) fn lost(&self, lease: LeaseId, at: usize) {
        if let Some(ballot) = self.known.lock().all.get_mut(&lease) {
            // Only the vote: the server is told at the end all the same, since an earlier ask or a repair (QB7) may hold there by then.
            ballot.servers[at].vote = None;
        }
    }

    /// When the hold ends: with the vote that is the `need`th longest (QB1). `None`: there are fewer.
    pub(super) fn end(&self, lease: LeaseId, need: usize) -> Option<Tick> {
        let known = self.known.lock();
        let mut votes: Vec<Tick> = known
            .all
            .get(&lease)?
            .servers
            .iter()
            .filter_map(|it| it.vote)
            .collect();
        votes.sort_unstable();
        votes.iter().rev().nth(need - 1).copied()
    }

    /// Gives it up. Returns the servers to tell; all, if nothing is known of it.
    pub(super) fn give_up(&self, lease: LeaseId, name: &Name) -> Vec<PendingAt> {
        let mut known = self.known.lock();
        let KnownBallots { all, pending } = &mut *known;
        // Such as a lease id whose ballot was tidied: no server may be left out (QB4).
        let unknown = || self.ballot().asked_everywhere();
        let ballot = all.entry(lease).or_insert_with(unknown);
        if ballot.given_up.replace(name.clone()).is_none() {
            pending.entry(name.clone()).or_default().push(lease);
        }
        let pending: Vec<PendingAt> = ballot.pending().collect();
        if ballot.is_over() {
            known.forget(lease);
        }
        pending
    }

    /// The servers that are still to be told that a lease id for this name is given up: what they call held may be that one.
    pub(super) fn pending_for(&self, name: &Name) -> Vec<usize> {
        let known = self.known.lock();
        let leases = known.pending.get(name).map_or(&[][..], |leases| leases);
        let ballots = leases.iter().filter_map(|lease| known.all.get(lease));
        ballots.flat_map(Ballot::pending).map(|it| it.at).collect()
    }

    /// A server has confirmed that it was given up.
    pub(super) fn confirmed(&self, lease: LeaseId, at: usize, had: bool) {
        let mut known = self.known.lock();
        if let Some(ballot) = known.all.get_mut(&lease) {
            // Told twice, it has it the first time only.
            let confirmed = &mut ballot.servers[at].confirmed;
            *confirmed = Some(had || *confirmed == Some(true));
            if ballot.is_over() {
                known.forget(lease);
            }
        }
    }

    /// Whether it may be asked for still.
    pub(super) fn is_open(&self, lease: LeaseId) -> bool {
        let known = self.known.lock();
        let ballot = known.all.get(&lease);
        ballot.is_some_and(|ballot| ballot.given_up.is_none())
    }

    /// How many servers had it that have confirmed that it was given up: a release may be repeated.
    pub(super) fn had(&self, lease: LeaseId) -> usize {
        let known = self.known.lock();
        let words = known.all.get(&lease).map_or(&[][..], |it| &it.servers);
        words.iter().filter(|it| it.confirmed == Some(true)).count()
    }

    /// A server has nothing of it any more: it was told so for long enough.
    pub(super) fn expired(&self, lease: LeaseId, at: usize) {
        if let Some(ballot) = self.known.lock().all.get_mut(&lease) {
            // A round that was dropped with its runtime never writes its answers down, and its ballot would stay for ever.
            ballot.servers[at].under_way = 0;
        }
        self.confirmed(lease, at, false);
    }

    /// Forgets holds that were left to expire. Of these nothing is told.
    pub(super) fn tidy(&self, now: Tick) {
        let is_left = |ballot: &Ballot| {
            // An ask without an answer needs its ballot still: without one `is_open` would say that the lease id was given up.
            let is_idle = ballot.servers.iter().all(|it| it.under_way == 0);
            ballot.given_up.is_none() && is_idle && ballot.ends < now
        };
        self.known.lock().all.retain(|_, ballot| !is_left(ballot));
    }

    /// Whether there may be much to tidy.
    pub(super) fn is_large(&self) -> bool {
        let all = &self.known.lock().all;
        // Just before the map would grow: a walk over all is paid for by as many acquisitions.
        all.len() > FEW && all.len() == all.capacity()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let known = self.known.lock();
        known.all.len() + known.pending.len()
    }
}

impl KnownBallots {
    fn forget(&mut self, lease: LeaseId) {
        let Some(name) = self.all.remove(&lease).and_then(|it| it.given_up) else {
            return;
        };
        if let Some(leases) = self.pending.get_mut(&name) {
            leases.retain(|it| *it != lease);
            if leases.is_empty() {
                self.pending.remove(&name);
            }
        }
    }
}

impl Ballot {
    /// Of a lease id that any server may have.
    fn asked_everywhere(mut self) -> Ballot {
        for word in &mut self.servers {
            // As if each had been asked, and had answered: all are told, and a tombstone stays where requests may be sent twice.
            word.asked = 1;
        }
        self
    }

    fn asks(&mut self, at: usize) -> bool {
        let word = &mut self.servers[at];
        if self.given_up.is_none() {
            word.under_way += 1;
            word.asked += 1;
        }
        self.given_up.is_none()
    }

    /// QB2: an end only moves forward.
    fn moves_out(&mut self, at: usize, until: Tick) {
        let vote = &mut self.servers[at].vote;
        *vote = (*vote).max(Some(until));
        // The initial value stands for no vote yet, and must not win as the latest end.
        self.ends = if self.ends == Tick::MAX {
            until
        } else {
            self.ends.max(until)
        };
    }

    fn pending(&self) -> impl Iterator<Item = PendingAt> {
        let words = self.servers.iter().enumerate();
        let pending = words.filter(|(_, word)| word.is_pending());
        pending.map(|(at, word)| PendingAt {
            at,
            copies: word.copies || word.under_way > 0,
        })
    }

    fn is_over(&self) -> bool {
        let is_done = |word: &ServerRecord| !word.is_pending() && word.under_way == 0;
        self.given_up.is_some() && self.servers.iter().all(is_done)
    }
}

/// When a vote ends (QB1).
fn end_of(sent: Tick, remaining: Duration) -> Tick {
    sent.after(remaining.saturating_sub(margin(remaining)))
}

/// How much is left, as a server would have to state it in an answer to a send at `sent`, for a hold that ends at `end`: with the margin
/// that the engine takes off.
pub(super) fn stated(end: Tick, sent: Tick) -> Duration {
    let left = end.since(sent) + margin(Duration::ZERO);
    // Rounded down: the engine may believe a nanosecond less than the votes, and none more.
    let nanos = left.as_nanos() * 100 / 99;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stated_is_believed_until_the_end_and_no_longer() {
        let sent = Tick::from_nanos(7_000_000_001);
        for nanos in [0, 1, 98, 99, 100, 101, 12_345_678_901, 29_698_000_000] {
            let end = sent.after(Duration::from_nanos(nanos));
            let believed = end_of(sent, stated(end, sent));
            assert!(believed <= end, "{nanos}");
            assert!(end.since(believed) <= Duration::from_nanos(1), "{nanos}");
        }
    }

    #[test]
    fn a_hold_ends_with_the_vote_that_is_the_qth_longest() {
        let (ballots, lease) = (Ballots::new(3, false), LeaseId::from(7));
        let (sent, ms) = (Tick::from_nanos(1_000_000_000), Duration::from_millis);
        for (at, left) in [1_000, 3_000, 2_000].into_iter().enumerate() {
            assert!(ballots.asks(lease, at, false));
            ballots.extended(lease, at, sent, ms(left));
        }
        assert_eq!(ballots.end(lease, 2), Some(end_of(sent, ms(2_000))));
        ballots.lost(lease, 1);
        assert_eq!(ballots.end(lease, 2), Some(end_of(sent, ms(1_000))));
        ballots.lost(lease, 0);
        assert_eq!(ballots.end(lease, 2), None);
    }

    #[test]
    fn an_id_that_was_given_up_is_asked_for_at_no_server_again() {
        let (ballots, lease) = (Ballots::new(3, false), LeaseId::from(7));
        assert!(ballots.asks(lease, 0, false));
        let name = Name::new("name").unwrap();
        let pending = ballots.give_up(lease, &name);
        assert_eq!(pending.len(), 1, "only one was asked");
        assert!(pending[0].copies, "and has not answered");
        assert!(!ballots.asks(lease, 1, false));
        assert!(!ballots.asks_again(lease, 0));
        let granted = Ok(Acquired::Granted {
            remaining: Duration::from_secs(1),
            tokens: crate::backend::fenced::Tokens::NONE,
        });
        let late = ballots.answered(lease, 0, Tick::from_nanos(1), &granted, true);
        assert!(!late, "a straggler's vote does not count");
        assert_eq!(ballots.pending_for(&name), [0]);
        ballots.confirmed(lease, 0, true);
        assert_eq!(ballots.len(), 0);
    }
}
