//! Asks sentinels where the primary is, and hears from them when that changes.
//!
//! They are asked side by side, and the answer of the highest configuration epoch counts: it is the newest. In the background there is one connection
//! to each, on which it says that another server has become the primary. The first word of that counts, once it has said in which epoch, as
//! it may be late; those that were set anew announce none, and most of them decide (`majority.rs`). A client that waits for an
//! error instead locks at the old primary for ten seconds more, which takes writes on open connections for so long (redis/redis, sentinel).

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Address, Found,
    group::Group,
    known::{Known, Primary},
    majority::Tally,
    question::{ANSWER, PATIENT_ANSWER, SentinelAnswer, SilentSentinel, Unasked},
};
use crate::{
    address::shown,
    backend::{
        Failure,
        redis::{exchange::Connection, pubsub::Received, restart::RestartLog, target::Target},
        report::SentinelReport,
    },
    background::BackgroundRuntime,
    backoff::Backoff,
    user_callback,
};

/// How long a sentinel may take until it is heard.
const HEARD: Duration = Duration::from_secs(2);

/// Between attempts to hear a sentinel.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// An announcement counts once its sentinel has answered: so often it is asked.
const ASKED_AFTER_A_WORD: u32 = 6;
const AGAIN_AFTER_A_WORD: Backoff =
    Backoff::new(Duration::from_millis(10), Duration::from_millis(100));

/// The sentinels of one group.
pub(in crate::backend::redis) struct Sentinels {
    group: Group,
    restarts: Arc<RestartLog>,
    background: Handle,
    known: Mutex<Known>,
    /// A watcher for each known sentinel, from the first attempt to connect on.
    watchers: Mutex<HashMap<Address, AbortOnDropHandle<()>>>,
    /// Connections for questions, while the client is used: on a busy machine each step of a dial may take 100 ms. They live on the background
    /// runtime.
    lines: Mutex<HashMap<Address, Connection>>,
}

impl Sentinels {
    pub(super) fn new(
        group: Group,
        background: &BackgroundRuntime,
        restarts: &Arc<RestartLog>,
    ) -> Arc<Sentinels> {
        Arc::new(Sentinels {
            restarts: Arc::clone(restarts),
            background: background.handle().clone(),
            known: Mutex::new(Known::new(&group.sentinels)),
            watchers: Mutex::default(),
            lines: Mutex::default(),
            group,
        })
    }

    pub(super) fn database(&self) -> i64 {
        self.group.of_data.database()
    }

    pub(super) async fn find(self: &Arc<Self>) -> Result<Found, Failure> {
        self.watch();
        if !self.known.lock().is_fresh() {
            self.ask_all().await?;
        }
        // Together: a switch is counted under this lock.
        let known = self.known.lock();
        let primary = known.primary.as_ref();
        let primary = primary.ok_or_else(|| Failure::NotSent(Arc::new(SilentSentinel(ANSWER))))?;
        Ok(Found {
            target: Arc::new(self.group.of_data.at(&primary.address)),
            switches: self.restarts.generation().switches,
        })
    }

    /// Asks all. As soon as most of them have said the same, the others are not waited for.
    async fn ask_all(self: &Arc<Self>) -> Result<(), Failure> {
        let (all, number) = {
            let mut known = self.known.lock();
            // All questions of a round bear the same number: no answer to them is newer than another.
            (known.asked(), known.question())
        };
        let ask = async |sentinel| (sentinel, self.group.ask(sentinel).await);
        let asked: FuturesUnordered<_> = all.iter().map(ask).collect();
        let mut asked = std::pin::pin!(asked);
        let (mut told, mut primaries) = (0, BTreeSet::new());
        let (mut names, mut failures) = (None::<BTreeSet<String>>, Vec::new());
        while let Some((sentinel, said)) = asked.next().await {
            self.note(sentinel, number, &said);
            match said {
                Ok(SentinelAnswer::Primary { word, .. }) => {
                    told += 1;
                    primaries.insert(word.address);
                }
                Ok(SentinelAnswer::Unknown(its)) => names.get_or_insert_default().extend(its),
                Err(failure) => failures.push(failure),
            }
            if told > all.len() / 2 && primaries.len() == 1 {
                break;
            }
        }
        // A single answer is enough: `judged` weighs it against the words that are known of the others.
        if told > 0 {
            let mut known = self.known.lock();
            known.asked = Some(Instant::now());
            self.judge(&mut known);
            return Ok(());
        }
        // Without them all the same: the last primary that they have named may be there.
        if self.known.lock().primary.is_some() {
            return Ok(());
        }
        if let Some(names) = names {
            let master = self.group.master.clone();
            return Err(Failure::Rejected(Arc::new(NoSuchMaster { master, names })));
        }
        // A refusal says what to mend; the silence of another sentinel does not.
        let at = failures.iter().position(Failure::is_final).unwrap_or(0);
        Err(match failures.into_iter().nth(at) {
            Some(failure) => failure,
            None => Failure::NotSent(Arc::new(SilentSentinel(ANSWER))),
        })
    }

    /// Asks each that is known how it sees the group.
    pub(super) async fn views(&self) -> Vec<SentinelReport> {
        let all = self.known.lock().addresses();
        let views = all.iter().map(async |sentinel| SentinelReport {
            address: shown(sentinel),
            answer: self.group.view(sentinel).await,
        });
        futures_util::future::join_all(views).await
    }

    /// Asks one sentinel after the other for a failover, until one has begun it.
    pub(super) async fn fail_over(&self) -> Result<(), Failure> {
        let all = self.known.lock().addresses();
        let mut failed = None;
        for sentinel in all {
            match self.group.fail_over(&sentinel).await {
                Ok(()) => return Ok(()),
                // It may have begun: another sentinel would begin a second failover.
                Err(failure @ Failure::Ambiguous(_)) => return Err(failure),
                // A refusal says more than the silence of another.
                Err(failure) if failure.is_final() => failed = Some(failure),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        Err(failed.unwrap_or_else(|| Failure::NotSent(Arc::new(SilentSentinel(ANSWER)))))
    }

    /// Asks those that are up, on connections that are kept, whether they say something else by now.
    pub(super) async fn poll(self: &Arc<Self>) {
        let (all, number, word) = {
            let mut known = self.known.lock();
            (known.asked(), known.question(), known.reported_by_all())
        };
        // The connections to sentinels that are gone, or said to be down, are closed here.
        self.lines
            .lock()
            .retain(|sentinel, _| all.contains(sentinel));
        let answers = all
            .iter()
            .map(|sentinel| self.ask_again(sentinel, number, word.as_ref(), ANSWER));
        futures_util::future::join_all(answers).await;
        self.judge_again();
    }

    /// A connection on which a sentinel has answered.
    fn keep(&self, sentinel: &Address, line: Option<Connection>) {
        // The lock of what is known is kept: a shutdown in between would leave the connection behind (L3).
        let known = self.known.lock();
        if let Some(line) = line.filter(|_| !known.is_shut) {
            self.lines.lock().insert(sentinel.clone(), line);
        }
    }

    /// Nothing is asked for a while: an idle client keeps a connection for questions until the next poll at most. It still hears its sentinels.
    pub(super) fn rest(&self) {
        self.lines.lock().clear();
    }

    /// Notes the answer of a sentinel.
    fn note(
        self: &Arc<Self>,
        sentinel: &Address,
        number: u64,
        said: &Result<SentinelAnswer, Failure>,
    ) {
        let mut known = self.known.lock();
        let said = match said {
            Ok(SentinelAnswer::Primary { word, id }) => {
                // Of a sentinel that was known twice the second connection goes now: it may be long until this client connects again.
                let mut is_changed = known.name(sentinel, id.clone());
                for other in word.others.iter().flatten() {
                    is_changed |= known.add(other.clone());
                }
                if is_changed {
                    // `watch` takes this lock itself.
                    drop(known);
                    self.watch();
                    known = self.known.lock();
                }
                Ok(Some(word.clone()))
            }
            Ok(SentinelAnswer::Unknown(_)) => Ok(None),
            Err(_) => Err(()),
        };
        known.answered(sentinel, number, said);
    }

    /// Goes by what the sentinels say now.
    fn judge(&self, known: &mut Known) {
        if let Some(primary) = known.judged() {
            self.moves_to(known, primary);
        }
    }

    /// The same, of a client that has asked all before.
    fn judge_again(&self) {
        let mut known = self.known.lock();
        if known.primary.is_some() {
            self.judge(&mut known);
        }
    }

    /// How many sentinels name another primary than the one that is known.
    pub(super) fn tally(&self) -> Tally {
        self.known.lock().tally()
    }

    /// A sentinel says something unasked. If that is of this group, its answer counts alone, for which it is asked now.
    async fn told(self: &Arc<Self>, sentinel: &Address, channel: &str, message: &[u8]) {
        let Some(unasked) = self.group.unasked(channel, message) else {
            return;
        };
        {
            let mut known = self.known.lock();
            let number = known.question();
            // Its word of before is over, and an answer to an earlier question comes too late now.
            known.answered(sentinel, number, Ok(None));
        }
        // A sentinel that stands still just behind its word is asked again. All are asked 2 s later, as long as this client uses the server.
        let mut backoff = AGAIN_AFTER_A_WORD;
        for _ in 0..ASKED_AFTER_A_WORD {
            if self.ask_one(sentinel, Some(&unasked)).await {
                return;
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Under the lock, so that who reads where it is knows whether it counts the switch.
    fn moves_to(&self, known: &mut Known, primary: Primary) {
        // The first primary that is found is no switch.
        if known.primary.replace(primary).is_some() {
            self.restarts.switched();
        }
    }

    pub(super) fn tried(&self, target: &Target, works: bool) {
        let mut known = self.known.lock();
        if let Some(primary) = &mut known.primary
            && target.address().as_ref() == Some(&primary.address)
        {
            // After an attempt in vain the sentinels are asked again, also where one has announced this primary.
            primary.is_announced &= works;
            primary.failing = (!works).then(|| primary.failing.unwrap_or_else(Instant::now));
        }
    }

    /// Hears all that are known.
    fn watch(self: &Arc<Self>) {
        let known = self.known.lock();
        if known.is_shut {
            return;
        }
        // The lock of what is known is kept: a shutdown in between would leave these tasks behind (L3).
        let mut watchers = self.watchers.lock();
        let all = known.addresses();
        watchers.retain(|address, _| all.contains(address));
        for address in all {
            let sentinels = Arc::downgrade(self);
            watchers.entry(address).or_insert_with_key(|address| {
                let watching = watch(sentinels, address.clone());
                AbortOnDropHandle::new(self.background.spawn(watching))
            });
        }
    }

    pub(super) fn shut(&self) {
        let mut known = self.known.lock();
        known.is_shut = true;
        // A dropped handle aborts its task, and so closes the connection that hears (L3).
        self.watchers.lock().clear();
        self.lines.lock().clear();
    }

    /// Asks one where the primary is, of which it has said this. Whether it has answered.
    async fn ask_one(self: &Arc<Self>, sentinel: &Address, unasked: Option<&Unasked>) -> bool {
        // The number is taken before the question leaves, so that a word that comes during it counts as newer.
        let number = self.known.lock().question();
        let has_answered = self.ask_again(sentinel, number, None, PATIENT_ANSWER).await;
        if let Some(Unasked::Switch(old)) = unasked {
            let mut known = self.known.lock();
            if let Some(primary) = known.successor(sentinel, old) {
                self.moves_to(&mut known, primary);
            }
        }
        self.judge_again();
        has_answered
    }

    /// Asks one that may have a connection that is kept, and notes what it says, if it is not this. Whether it has answered.
    async fn ask_again(
        self: &Arc<Self>,
        sentinel: &Address,
        number: u64,
        said: Option<&Address>,
        patience: Duration,
    ) -> bool {
        // Out of the map: a question beside this one has a connection of its own.
        let mut line = self.lines.lock().remove(sentinel);
        let answer = self.group.ask_again(sentinel, &mut line, said, patience);
        let answer = answer.await;
        self.keep(sentinel, line);
        let has_answered = answer.is_ok();
        match answer.transpose() {
            Some(said) => self.note(sentinel, number, &said),
            None => self.known.lock().says_still(sentinel, number),
        }
        has_answered
    }
}

/// Hears one sentinel, until the client ends.
async fn watch(sentinels: Weak<Sentinels>, address: Address) {
    let (mut backoff, mut has_warned) = (AGAIN, false);
    loop {
        let Some(strong) = sentinels.upgrade() else {
            return;
        };
        let heard = timeout(HEARD, strong.group.announcements(&address, HEARD)).await;
        // Its words of before are lost. A sentinel that cannot be heard is asked now and then, at least.
        strong.ask_one(&address, None).await;
        // The client is not kept alive by what it may hear (L3).
        drop(strong);
        match heard {
            Ok(Ok(mut connection)) => {
                backoff.reset();
                while let Ok(heard) = connection.next().await {
                    // The answer about the other channels comes here, too; where it is a refusal, the client still hears of switches.
                    let Received::Message { channel, payload } = heard else {
                        continue;
                    };
                    let Some(sentinels) = sentinels.upgrade() else {
                        return;
                    };
                    sentinels.told(&address, &channel, &payload).await;
                }
            }
            // Warned of once: the attempts go on all the same, every 5 s at last (`AGAIN`).
            Ok(Err(failure)) if failure.is_final() && !has_warned => {
                has_warned = true;
                warn(&failure);
            }
            _ => {}
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

fn warn(failure: &Failure) {
    let cause = failure.cause();
    user_callback::catch_panic(|| {
        tracing::warn!(
            target: "leasehold",
            %cause,
            "this sentinel cannot be heard: a failover may be noticed 5 s later; its user needs the rights +subscribe and &+switch-master"
        );
    });
}

/// Without secrets.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.group.fmt(f)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the sentinels know no primary {master:?}{}", but(.names))]
struct NoSuchMaster {
    master: String,
    names: BTreeSet<String>,
}

fn but(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 8;
    if names.is_empty() {
        return ", and no other; check which sentinels they are".to_owned();
    }
    let shown: Vec<_> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("{name:?}"))
        .collect();
    format!(", but {}; correct the name of the master", shown.join(", "))
}
