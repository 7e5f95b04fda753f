//! Releases that a primary has confirmed, and that the one which took its place may not know.
//!
//! A planned failover promotes a replica about a second before clients hear of it. A lock that they give back in between is given back at the
//! old primary only: at the new one it would be held until its lease ends. So the releases that were confirmed in the last seconds before a
//! server's last word are sent to the next one once more, and again to the one after that. A repetition does no harm: a lease id that was given
//! up never holds again (B4).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{node::NodeSteps, restart::Generation};
use crate::{
    backend::{Release, ReleaseReply, Reply},
    background::BackgroundRuntime,
    backoff::Backoff,
    clock::Instant,
    name::Name,
};

/// A server's replicas know what it confirmed so long before its last word.
const KEPT: Duration = Duration::from_secs(5);

/// A failover takes less than this: after that nothing is repeated.
const FAILOVER_MOST: Duration = Duration::from_secs(60);

/// The list of a server has so many at most. Of more, the oldest end with their leases.
const KEPT_MOST: usize = 10_000;

/// A batch has so many.
const AT_ONCE: usize = 200;

/// Before what failed is repeated again. A server that refuses writes costs one batch then, and may take them at any moment (L1).
const AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// The last releases that each server has confirmed, each with the number of that server.
#[derive(Default)]
pub(super) struct Lately(Mutex<LatelyState>);

#[derive(Default)]
struct LatelyState {
    /// By the server that has confirmed them: what one says does not shorten what is known of another, which may have died.
    by: BTreeMap<u64, ServerReleases>,
    /// How often servers had changed when what is due was searched for last.
    changes: u64,
    /// How many of these are due and not repeated yet.
    due: usize,
    /// When a release was repeated last.
    last: Option<Instant>,
    /// When the lists of all servers were tidied last.
    swept: Option<Instant>,
    /// The number of the latest task that repeats.
    task: u64,
}

#[derive(Default)]
struct ServerReleases {
    releases: VecDeque<Confirmed>,
    /// How many were before the first of these.
    gone: usize,
}

struct Confirmed {
    at: Instant,
    release: Release,
    repeat: Repeat,
}

/// The server that has confirmed a release, and which of those it was.
type Which = (u64, usize);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Not known to be due.
    No,
    Due,
    UnderWay,
    /// At the server that was there after so many changes. The next may not know of that, either.
    Done {
        at: Instant,
        changes: u64,
    },
}

impl Repeat {
    fn is_open(self) -> bool {
        matches!(self, Repeat::Due | Repeat::UnderWay)
    }
}

impl LatelyState {
    fn is_settled(&self, changes: u64) -> bool {
        self.changes == changes && self.due == 0
    }

    fn get_mut(&mut self, (by, number): Which) -> Option<&mut Confirmed> {
        let its = self.by.get_mut(&by)?;
        its.releases.get_mut(number.checked_sub(its.gone)?)
    }
}

impl ServerReleases {
    /// Forgets what need not be repeated any more. Returns how many of these were due.
    fn tidy(&mut self, now: Instant) -> usize {
        let last_word = self.releases.back().map(|last| last.at);
        let mut due = 0;
        while let (Some(first), Some(last_word)) = (self.releases.front(), last_word) {
            // Not by the clock alone: a server that has died has said nothing since, and its successor may take long to come.
            let is_known = last_word.saturating_duration_since(first.at) > KEPT
                || now.saturating_duration_since(first.at) > FAILOVER_MOST;
            let may_go = is_known && !first.repeat.is_open();
            if !may_go && self.releases.len() <= KEPT_MOST {
                break;
            }
            due += usize::from(first.repeat.is_open());
            self.releases.pop_front();
            self.gone += 1;
        }
        due
    }
}

impl Lately {
    /// Notes a release that a server has confirmed. `is_due`: whether servers have changed since it was sent, which it returns.
    pub(super) fn confirmed(
        &self,
        release: Release,
        by: u64,
        is_due: impl FnOnce() -> bool,
    ) -> bool {
        self.confirmed_at(Instant::now(), release, by, is_due)
    }

    fn confirmed_at(
        &self,
        at: Instant,
        release: Release,
        by: u64,
        is_due: impl FnOnce() -> bool,
    ) -> bool {
        let lately = &mut *self.0.lock();
        // Under the lock: a change that is noticed after this finds the release when it searches for what is due.
        let is_due = is_due();
        lately.due += usize::from(is_due);
        let repeat = if is_due { Repeat::Due } else { Repeat::No };
        let its = lately.by.entry(by).or_default();
        its.releases.push_back(Confirmed {
            at,
            release,
            repeat,
        });
        lately.due -= its.tidy(at);
        // A cluster may have hundreds of servers: their lists are not all looked at for each release.
        let swept = *lately.swept.get_or_insert(at);
        if at.saturating_duration_since(swept) > KEPT {
            lately.swept = Some(at);
            lately.by.retain(|_, its| {
                lately.due -= its.tidy(at);
                !its.releases.is_empty()
            });
        }
        is_due
    }

    /// A task begins to repeat. Earlier tasks leave the rest to it.
    fn begin_task(&self) -> u64 {
        let lately = &mut *self.0.lock();
        lately.task += 1;
        lately.task
    }

    fn is_latest_task(&self, task: u64) -> bool {
        self.0.lock().task == task
    }

    /// Whether a lease id of this name, which a server has confirmed as given up, may have been held at another since then (B5). Servers
    /// have changed `changes` times.
    pub(super) fn may_be_held(
        &self,
        name: &Name,
        since: Instant,
        changes: u64,
        is_due: impl Fn(&Release, u64) -> bool,
    ) -> bool {
        let lately = self.0.lock();
        if lately.is_settled(changes) && lately.last.is_none_or(|last| last < since) {
            return false; // as nearly always: all names need not be compared
        }
        lately.by.iter().any(|(by, its)| {
            let mut of_name = its.releases.iter().filter(|it| it.release.id.name == *name);
            of_name.any(|it| {
                let is_old = since.saturating_duration_since(it.at) > FAILOVER_MOST;
                match it.repeat {
                    Repeat::No => !is_old && is_due(&it.release, *by),
                    Repeat::Due | Repeat::UnderWay => true,
                    // If it was repeated since the call began, the holder may have been that lease id. And after another change it is due
                    // again (bug 296).
                    Repeat::Done { at, changes: then } => at >= since || !is_old && then != changes,
                }
            })
        })
    }

    /// Whether nothing is left to repeat after `changes` of servers.
    pub(super) fn is_settled(&self, changes: u64) -> bool {
        self.0.lock().is_settled(changes)
    }

    /// Gives back once more what is due after `changes` of servers: each release where its name is by now, says `to`. `false`: something is due
    /// still, since it has had no answer or is under way in another task.
    pub(super) async fn repeat(
        &self,
        changes: u64,
        to: impl Fn(&Release) -> Option<u64>,
        give_back: impl Fn(Release) -> Reply<ReleaseReply>,
    ) -> bool {
        let is_due = |release: &Release, by| to(release).is_some_and(|it| it != by);
        // In the same order each time: a simulation must be able to replay it.
        let mut by_server = BTreeMap::<_, Vec<_>>::new();
        for due in self.take_due(Instant::now(), changes, is_due) {
            by_server.entry(to(&due.1)).or_default().push(due);
        }
        let each = by_server.values();
        join_all(each.map(|due| self.repeat_at_one(changes, due, &give_back))).await;
        self.0.lock().due == 0
    }

    /// The same at one server: if it takes no writes, that holds up nothing at the others.
    async fn repeat_at_one(
        &self,
        changes: u64,
        due: &[(Which, Release)],
        give_back: &impl Fn(Release) -> Reply<ReleaseReply>,
    ) {
        let mut batches = due.chunks(AT_ONCE);
        for batch in batches.by_ref() {
            let answers = batch.iter().map(|(_, release)| give_back(release.clone()));
            let answers = join_all(answers).await;
            let now = Instant::now();
            let lately = &mut *self.0.lock();
            let mut answered = 0;
            for ((which, _), answer) in batch.iter().zip(answers) {
                // A refusal for good is done with, since another try gets the same. A release without an answer is not (bug 298).
                let is_answered = answer.is_ok() || answer.is_err_and(|failure| failure.is_final());
                answered += usize::from(is_answered);
                // Servers that have changed meanwhile may be others than the one that has answered.
                let is_done = is_answered && lately.changes == changes;
                // The release may have been tidied away while its repetition was under way, and `tidy` has counted that.
                if let Some(it) = lately.get_mut(*which) {
                    it.repeat = if is_done {
                        Repeat::Done { at: now, changes }
                    } else {
                        Repeat::Due
                    };
                    lately.due -= usize::from(is_done);
                }
            }
            lately.last = Some(now);
            if answered == 0 {
                break; // it takes no writes now: the rest would fail, too
            }
        }
        let lately = &mut *self.0.lock();
        for (which, _) in batches.flatten() {
            if let Some(it) = lately.get_mut(*which) {
                it.repeat = Repeat::Due;
            }
        }
    }

    /// The newest of each server first: these are the most likely not to be known.
    fn take_due(
        &self,
        now: Instant,
        changes: u64,
        is_due: impl Fn(&Release, u64) -> bool,
    ) -> Vec<(Which, Release)> {
        let lately = &mut *self.0.lock();
        // Tasks may come here out of order, and the count never goes back.
        lately.changes = lately.changes.max(changes);
        let mut due = Vec::new();
        for (by, its) in &mut lately.by {
            for (at, it) in its.releases.iter_mut().enumerate().rev() {
                let is_old = now.saturating_duration_since(it.at) > FAILOVER_MOST;
                match it.repeat {
                    Repeat::Due if is_old => {
                        it.repeat = Repeat::Done { at: now, changes };
                        lately.due -= 1;
                        continue;
                    }
                    Repeat::No if !is_old && is_due(&it.release, *by) => lately.due += 1,
                    // The server that it was repeated at has been replaced as well, perhaps by the one that has confirmed it first.
                    Repeat::Done { changes: then, .. } if !is_old && then != changes => {
                        lately.due += 1;
                    }
                    // It is counted as due since its server confirmed it, or since a repetition failed.
                    Repeat::Due => {}
                    // Not due, done with, or under way in another task.
                    _ => continue,
                }
                it.repeat = Repeat::UnderWay;
                due.push(((*by, its.gone + at), it.release.clone()));
            }
        }
        due
    }
}

/// Servers of which one may take the place of another.
pub(super) trait Replaceable: Send + Sync + 'static {
    fn lately(&self) -> &Lately;

    fn background(&self) -> &BackgroundRuntime;

    /// How often servers have changed.
    fn changes(&self) -> u64;

    /// The number of the server that steps about this name are sent to from now on.
    fn server_of(&self, name: &Name) -> Option<u64>;

    /// The number of the server that has answered a step which was sent to this one.
    fn answered_by(&self, sent_to: u64) -> u64 {
        sent_to
    }

    /// Gives back at that server.
    fn give_back(self: &Arc<Self>, release: Release) -> Reply<ReleaseReply>;
}

fn is_at<S: Replaceable>(servers: &S, name: &Name, server: u64) -> bool {
    servers.server_of(name).is_none_or(|it| it == server)
}

/// Notes a release that the server of this number has confirmed. The one that takes its place may not know of it.
pub(super) fn confirmed<S: Replaceable>(servers: &Arc<S>, release: Release, by: u64) {
    let name = release.id.name.clone();
    // A server that stood still may have answered after its successor took its place, which knows nothing of it (bug 235).
    let is_due = || !is_at(&**servers, &name, by);
    if servers.lately().confirmed(release, by, is_due) {
        repeat(servers);
    }
}

/// Whether the server that a step was sent to may have called held, since then, what this client has given back at another.
pub(super) fn may_be_held<S: Replaceable>(
    servers: &S,
    name: &Name,
    since: Instant,
    sent_to: u64,
) -> bool {
    let answered_by = servers.answered_by(sent_to);
    let changes = if is_at(servers, name, answered_by) {
        servers.changes()
    } else {
        u64::MAX // the name has moved on since, and what is due at the server that has answered is repeated elsewhere
    };
    let is_due = |_: &Release, by| by != answered_by;
    servers.lately().may_be_held(name, since, changes, is_due)
}

/// Gives back where the name is by now, in the background, what was given back at a server that is not there any more.
pub(super) fn repeat<S: Replaceable>(servers: &Arc<S>) {
    let until_all = until_all(Arc::downgrade(servers));
    drop(servers.background().handle().spawn(until_all));
}

/// Repeats again and again, until nothing is due, another task has begun with that, or the client has ended.
async fn until_all<S: Replaceable>(client: Weak<S>) {
    let Some(task) = client.upgrade().map(|client| client.lately().begin_task()) else {
        return;
    };
    let mut backoff = AGAIN;
    while let Some(client) = client.upgrade() {
        // Else a task would be added for each change, as long as nothing has an answer.
        if !client.lately().is_latest_task(task) || repeat_once(&client).await {
            return;
        }
        let background = client.background().clone();
        drop(client);
        background.sleep(backoff.next()).await;
    }
}

async fn repeat_once<S: Replaceable>(servers: &Arc<S>) -> bool {
    let to = |release: &Release| servers.server_of(&release.id.name);
    let give_back = |release| servers.give_back(release);
    // Read before the first is sent: a change while they are under way must leave these to be looked at again.
    let changes = servers.changes();
    servers.lately().repeat(changes, to, give_back).await
}

/// The servers of which one at a time is the primary.
pub(super) struct Repeats {
    steps: NodeSteps,
    background: BackgroundRuntime,
    lately: Lately,
}

impl Repeats {
    /// Repeats whenever another server answers a handshake, as long as this lives.
    pub(super) fn new(steps: &NodeSteps, background: &BackgroundRuntime) -> Arc<Repeats> {
        let repeats = Arc::new(Repeats {
            steps: steps.clone(),
            background: background.clone(),
            lately: Lately::default(),
        });
        let following = follow(Arc::downgrade(&repeats), steps.restarts.changes());
        background.handle().spawn(following);
        repeats
    }
}

impl Replaceable for Repeats {
    fn lately(&self) -> &Lately {
        &self.lately
    }

    fn background(&self) -> &BackgroundRuntime {
        &self.background
    }

    /// A server is called after them.
    fn changes(&self) -> u64 {
        self.steps.restarts.generation().changes()
    }

    fn server_of(&self, _: &Name) -> Option<u64> {
        Some(self.changes())
    }

    /// The step may have been sent once more, to the server that is there by now.
    fn answered_by(&self, _: u64) -> u64 {
        self.changes()
    }

    fn give_back(self: &Arc<Self>, release: Release) -> Reply<ReleaseReply> {
        self.steps.release(release)
    }
}

async fn follow(repeats: Weak<Repeats>, mut changes: watch::Receiver<Generation>) {
    while changes.changed().await.is_ok() && repeats.strong_count() > 0 {
        until_all(Weak::clone(&repeats)).await;
    }
}

/// The repetition of this release, if it may be repeated.
pub(super) fn again(step: &Release) -> Option<Release> {
    // The server keeps no holders of such a kind: it would give back more than there is.
    (!step.id.kind.never_ends()).then(|| Release {
        // This `next` was answered for, and may have been given up since: a repetition takes nothing for it (B4).
        next: None,
        holds: None,
        ..step.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::Failure,
        kind::{Access, LockKind},
        name::LockId,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn release(name: &str) -> Release {
        let id = LockId::new(LockKind::Mutex, Name::new(name).unwrap());
        Release::giving_back(&id, Access::Exclusive, 7.into())
    }

    fn names(due: &[(Which, Release)]) -> Vec<String> {
        due.iter().map(|(_, it)| it.id.name.wire().into()).collect()
    }

    /// Of servers that count up: what another has confirmed is due at this one.
    fn not(server: u64) -> impl Fn(&Release, u64) -> bool {
        move |_, by| by != server
    }

    async fn repeat(lately: &Lately, server: u64, answer: Result<(), ()>) -> bool {
        let give_back = |_| -> Reply<ReleaseReply> {
            Box::pin(std::future::ready(match answer {
                Ok(()) => Ok(ReleaseReply::NotOurs),
                Err(()) => Err(Failure::Ambiguous(Arc::new(std::fmt::Error))),
            }))
        };
        lately.repeat(server, |_| Some(server), give_back).await
    }

    #[tokio::test]
    async fn a_release_is_repeated_at_each_server_that_takes_the_place_of_another() {
        let (lately, name) = (Lately::default(), Name::new("x").unwrap());
        lately.confirmed(release("x"), 1, || false);
        for server in [2, 3, 4] {
            assert!(lately.may_be_held(&name, Instant::now(), server, not(server)));
            let names = Mutex::new(Vec::new());
            let give_back = |release: Release| -> Reply<ReleaseReply> {
                names.lock().push(release.id.name.wire().to_owned());
                Box::pin(std::future::ready(Ok(ReleaseReply::NotOurs)))
            };
            assert!(lately.repeat(server, |_| Some(server), give_back).await);
            assert_eq!(*names.lock(), ["x"], "at server {server}");
            assert!(!lately.may_be_held(&name, Instant::now(), server, not(server)));
            assert!(lately.is_settled(server));
        }
    }

    #[tokio::test]
    async fn a_repetition_without_an_answer_is_due_still() {
        let (lately, name) = (Lately::default(), Name::new("x").unwrap());
        lately.confirmed(release("x"), 1, || false);
        assert!(!repeat(&lately, 2, Err(())).await);
        assert!(lately.may_be_held(&name, Instant::now(), 2, not(2)) && !lately.is_settled(2));
        assert!(repeat(&lately, 2, Ok(())).await && lately.is_settled(2));
    }

    /// The server is replaced once more while it is asked, and what it says then is not what its successor knows.
    #[tokio::test]
    async fn an_answer_that_comes_after_another_change_settles_nothing() {
        let (lately, name) = (Lately::default(), Name::new("x").unwrap());
        lately.confirmed(release("x"), 1, || false);
        let change = |_: Release| -> Reply<ReleaseReply> {
            assert_eq!(names(&lately.take_due(Instant::now(), 3, not(3))), [""; 0]);
            Box::pin(std::future::ready(Ok(ReleaseReply::NotOurs)))
        };
        assert!(!lately.repeat(2, |_| Some(2), change).await);
        assert!(lately.may_be_held(&name, Instant::now(), 3, not(3)));
        assert!(repeat(&lately, 3, Ok(())).await);
        assert!(!lately.may_be_held(&name, Instant::now(), 3, not(3)));
    }

    /// A primary without its replicas refuses writes (`min-replicas-to-write`): it is tried with one batch.
    #[tokio::test]
    async fn a_server_that_refuses_all_is_asked_for_one_batch_and_later_for_all() {
        let lately = Lately::default();
        for _ in 0..3 * AT_ONCE {
            lately.confirmed(release("x"), 1, || false);
        }
        let asked = Mutex::new(0);
        let refuse = |_: Release| -> Reply<ReleaseReply> {
            *asked.lock() += 1;
            let failure = Failure::NotNow(Arc::new(std::io::Error::other("too few replicas")));
            Box::pin(std::future::ready(Err(failure)))
        };
        assert!(!lately.repeat(2, |_| Some(2), refuse).await);
        assert_eq!(*asked.lock(), AT_ONCE);
        assert!(repeat(&lately, 2, Ok(())).await && lately.is_settled(2));
    }

    /// Bug 327: of two shards that were replaced, one refuses writes.
    #[tokio::test]
    async fn a_server_that_refuses_all_holds_up_nothing_at_another() {
        let lately = Lately::default();
        for _ in 0..2 * AT_ONCE {
            for (name, by) in [("x", 1), ("y", 2)] {
                lately.confirmed(release(name), by, || false);
            }
        }
        let to = |release: &Release| Some(if release.id.name.wire() == "x" { 3 } else { 4 });
        let asked = Mutex::new(BTreeMap::<_, usize>::new());
        let give_back = |release: Release| -> Reply<ReleaseReply> {
            let server = to(&release);
            *asked.lock().entry(server).or_default() += 1;
            let failure = Failure::NotNow(Arc::new(std::io::Error::other("too few replicas")));
            let refuses = server == Some(3);
            let answer = if refuses {
                Err(failure)
            } else {
                Ok(ReleaseReply::NotOurs)
            };
            Box::pin(std::future::ready(answer))
        };
        assert!(!lately.repeat(2, to, give_back).await);
        let expected = [(Some(3), AT_ONCE), (Some(4), 2 * AT_ONCE)];
        assert_eq!(*asked.lock(), BTreeMap::from(expected));
        assert_eq!(lately.0.lock().due, 2 * AT_ONCE, "at the first alone");
    }

    #[test]
    fn the_last_words_of_a_dead_server_outlast_what_others_confirm_meanwhile() {
        let (lately, began) = (Lately::default(), Instant::now());
        lately.confirmed_at(began, release("old"), 1, || false);
        lately.confirmed_at(began + 6 * SECOND, release("last"), 1, || false);
        // A busy one.
        for after in 0..2 * u32::try_from(KEPT_MOST).unwrap() {
            let at = began + 7 * SECOND + after * SECOND / 1000;
            lately.confirmed_at(at, release("other"), 2, || false);
        }
        let due = lately.take_due(began + 30 * SECOND, 2, not(2));
        assert_eq!(names(&due), ["last"]);
        // A release that is under way stays. All others go in the end.
        lately.confirmed_at(began + 90 * SECOND, release("other"), 2, || false);
        assert_eq!(
            names(&lately.take_due(began + 91 * SECOND, 3, not(2))),
            [""; 0]
        );
    }

    #[test]
    fn a_server_that_lives_keeps_no_more_than_its_last_seconds() {
        let (lately, began) = (Lately::default(), Instant::now());
        for tenth in 0..1000 {
            let at = began + tenth * SECOND / 10;
            lately.confirmed_at(at, release("x"), 1, || false);
        }
        assert!(lately.0.lock().by[&1].releases.len() <= 52);
    }

    /// A client whose second server answers from the `answers`-th try on, and how often it was asked.
    struct Asked {
        lately: Lately,
        background: BackgroundRuntime,
        tries: Mutex<u32>,
        answers: u32,
    }

    impl Asked {
        fn new(answers: u32) -> Arc<Asked> {
            let lately = Lately::default();
            lately.confirmed(release("x"), 1, || false);
            Arc::new(Asked {
                lately,
                background: BackgroundRuntime::here(),
                tries: Mutex::default(),
                answers,
            })
        }

        fn until_all(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
            until_all(Arc::downgrade(self))
        }
    }

    impl Replaceable for Asked {
        fn lately(&self) -> &Lately {
            &self.lately
        }

        fn background(&self) -> &BackgroundRuntime {
            &self.background
        }

        fn changes(&self) -> u64 {
            2
        }

        fn server_of(&self, _: &Name) -> Option<u64> {
            Some(2)
        }

        fn give_back(self: &Arc<Self>, _: Release) -> Reply<ReleaseReply> {
            let mut tries = self.tries.lock();
            *tries += 1;
            let answer = if *tries >= self.answers {
                Ok(ReleaseReply::NotOurs)
            } else {
                Err(Failure::NotSent(Arc::new(std::fmt::Error)))
            };
            Box::pin(std::future::ready(answer))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_is_repeated_until_it_has_an_answer_and_then_no_more() {
        let asked = Asked::new(4);
        let all = tokio::time::timeout(60 * SECOND, asked.until_all());
        all.await.expect("it ends");
        assert!(asked.lately.is_settled(2));
        assert_eq!(*asked.tries.lock(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn of_the_tasks_that_repeat_the_latest_goes_on_alone_and_ends_with_its_client() {
        let asked = Asked::new(u32::MAX);
        let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(asked.until_all())).collect();
        tokio::time::sleep(30 * SECOND).await;
        let running = tasks.iter().filter(|task| !task.is_finished()).count();
        assert_eq!(running, 1);
        // Some thirty pauses of up to 1 s, and the first tries of the others.
        assert!(*asked.tries.lock() < 60, "{}", asked.tries.lock());
        drop(asked);
        tokio::time::sleep(6 * SECOND).await;
        assert!(tasks.iter().all(tokio::task::JoinHandle::is_finished));
    }
}
