//! Asks sentinels where the primary is, and hears from them when that changes.
//!
//! They are asked side by side, and the answer of the highest configuration epoch counts: it is the newest. At home there is one connection
//! to each, on which it says that another server has become the primary. The first word of that counts. A client that waits for an
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
    known::{Known, KnownSentinel, Primary},
    question::{ANSWER, Other, SentinelSaid, SilentSentinel},
};
use crate::{
    backend::{
        Failure,
        redis::{epoch::EpochLog, pubsub::Heard, target::Target},
    },
    callout,
    home::Home,
};

/// How long one may take until it is heard.
const HEARD: Duration = Duration::from_secs(2);

/// Between attempts to hear one: this, doubled up to the most.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(5);

/// After so long without a connection to the primary that is known, older words than that of it are believed, too: the sentinels may have
/// been set up anew, and count from zero. Sentinels that know each other agree sooner.
const OUTDATED: Duration = Duration::from_secs(15);

/// The sentinels of one group.
pub(in crate::backend::redis) struct Sentinels {
    group: Group,
    epochs: Arc<EpochLog>,
    home: Handle,
    known: Mutex<Known>,
    /// One for each that is known, from the first attempt to connect on.
    watchers: Mutex<HashMap<Address, AbortOnDropHandle<()>>>,
}

impl Sentinels {
    pub(super) fn new(group: Group, home: &Home, epochs: &Arc<EpochLog>) -> Arc<Sentinels> {
        Arc::new(Sentinels {
            epochs: Arc::clone(epochs),
            home: home.handle().clone(),
            known: Mutex::new(Known {
                sentinels: group.sentinels.iter().map(KnownSentinel::given).collect(),
                asked: None,
                primary: None,
                is_shut: false,
            }),
            watchers: Mutex::default(),
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
            switches: self.epochs.ground().switches,
        })
    }

    /// Asks all. As soon as most of them have said where it is, the others are not waited for.
    async fn ask_all(self: &Arc<Self>) -> Result<(), Failure> {
        let all = self.known.lock().asked();
        let ask = async |address| (address, self.group.ask(address).await);
        let asked: FuturesUnordered<_> = all.iter().map(ask).collect();
        let mut asked = std::pin::pin!(asked);
        let (mut told, mut newest) = (0, None);
        let (mut names, mut failures) = (None::<BTreeSet<String>>, Vec::new());
        while let Some((sentinel, said)) = asked.next().await {
            match said {
                Ok(SentinelSaid::Primary {
                    address,
                    epoch,
                    id,
                    others,
                }) => {
                    self.add(sentinel, id, others);
                    told += 1;
                    newest = newest.max(Some((epoch, address)));
                }
                Ok(SentinelSaid::Unknown(its)) => names.get_or_insert_default().extend(its),
                Err(failure) => failures.push(failure),
            }
            if told > all.len() / 2 {
                break;
            }
        }
        if let Some((epoch, address)) = newest {
            self.learn(address, epoch);
            self.known.lock().asked = Some(Instant::now());
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
        let at = failures.iter().position(Failure::is_final).unwrap_or(0);
        Err(match failures.into_iter().nth(at) {
            Some(failure) => failure,
            None => Failure::NotSent(Arc::new(SilentSentinel(ANSWER))),
        })
    }

    /// A sentinel was asked, and has named this server. Its word may be older than what is known.
    fn learn(&self, address: Address, epoch: u64) {
        let mut known = self.known.lock();
        if let Some(primary) = &mut known.primary {
            let is_outdated = primary
                .failing
                .is_some_and(|since| since.elapsed() > OUTDATED);
            // The same epoch with another address is news: sentinels that were told by hand count from the same number.
            if epoch < primary.epoch && !is_outdated {
                return;
            }
            if primary.address == address {
                primary.epoch = epoch;
                return;
            }
        }
        self.moves_to(&mut known, Primary::new(address, epoch));
    }

    /// A sentinel says that another server is the primary now; whether it is of this group.
    fn announced(&self, message: &[u8]) -> bool {
        let Some((old, new)) = announced(message, &self.group.master) else {
            return false;
        };
        let mut known = self.known.lock();
        if let Some(primary) = known.successor(&old, new) {
            self.moves_to(&mut known, primary);
        }
        true
    }

    /// Under the lock, so that who reads where it is knows whether it counts the switch.
    fn moves_to(&self, known: &mut Known, primary: Primary) {
        if known.primary.replace(primary).is_some() {
            self.epochs.switched();
        }
    }

    pub(super) fn tried(&self, target: &Target, works: bool) {
        let mut known = self.known.lock();
        if let Some(primary) = &mut known.primary
            && target.address().as_ref() == Some(&primary.address)
        {
            if primary.is_announced && !works {
                // A word that came late: what sentinels answer is believed again.
                primary.is_announced = false;
                primary.epoch = primary.epoch.saturating_sub(1);
            }
            primary.failing = (!works).then(|| primary.failing.unwrap_or_else(Instant::now));
        }
    }

    /// One sentinel of the group has told its id, and of the others.
    fn add(self: &Arc<Self>, sentinel: &Address, id: Option<String>, others: Vec<Other>) {
        let mut known = self.known.lock();
        known.name(sentinel, id);
        let mut is_changed = false;
        for other in others {
            is_changed |= known.add(other);
        }
        drop(known);
        if is_changed {
            self.watch();
        }
    }

    /// Hears all that are known.
    fn watch(self: &Arc<Self>) {
        let known = self.known.lock();
        if known.is_shut {
            return;
        }
        let mut watchers = self.watchers.lock();
        let all = known.addresses();
        watchers.retain(|address, _| all.contains(address));
        for address in all {
            let sentinels = Arc::downgrade(self);
            watchers.entry(address).or_insert_with_key(|address| {
                let watching = watch(sentinels, address.clone());
                AbortOnDropHandle::new(self.home.spawn(watching))
            });
        }
    }

    pub(super) fn shut(&self) {
        let mut known = self.known.lock();
        known.is_shut = true;
        self.watchers.lock().clear();
    }

    /// Asks one where the primary is.
    async fn ask_one(self: &Arc<Self>, sentinel: &Address) {
        let said = self.group.ask(sentinel).await;
        if let Ok(SentinelSaid::Primary {
            address,
            epoch,
            id,
            others,
        }) = said
        {
            self.add(sentinel, id, others);
            self.learn(address, epoch);
        }
    }
}

/// Hears one sentinel, until the client ends.
async fn watch(sentinels: Weak<Sentinels>, address: Address) {
    let (mut pause, mut has_warned) = (PAUSE_FIRST, false);
    loop {
        let Some(strong) = sentinels.upgrade() else {
            return;
        };
        let heard = timeout(HEARD, strong.group.switches(&address, HEARD)).await;
        // What it said before is lost. One that cannot be heard is asked now and then, at least.
        strong.ask_one(&address).await;
        drop(strong);
        match heard {
            Ok(Ok(mut connection)) => {
                pause = PAUSE_FIRST;
                while let Ok(heard) = connection.next().await {
                    let Heard::Message { payload, .. } = heard else {
                        continue;
                    };
                    let Some(sentinels) = sentinels.upgrade() else {
                        return;
                    };
                    if sentinels.announced(&payload) {
                        // For its epoch, which the word does not tell.
                        sentinels.ask_one(&address).await;
                    }
                }
            }
            Ok(Err(failure)) if failure.is_final() && !has_warned => {
                has_warned = true;
                warn(&failure);
            }
            _ => {}
        }
        tokio::time::sleep(pause / 2 + pause.mul_f64(fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(PAUSE_MOST);
    }
}

fn warn(failure: &Failure) {
    let cause = failure.cause();
    callout::quietly(|| {
        tracing::warn!(
            target: "leasehold",
            %cause,
            "this sentinel cannot be heard: a failover may be noticed 5 s later; its user needs the rights +subscribe and &+switch-master"
        );
    });
}

/// The old and the new address in `<name> <old host> <old port> <new host> <new port>`; `None`: it is about another group.
fn announced(message: &[u8], master: &str) -> Option<(Address, Address)> {
    let message = std::str::from_utf8(message).ok()?;
    let [name, host, port, new_host, new_port] = message.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let address = |host: &str, port: &str| Some((host.to_owned(), port.parse().ok()?));
    (name == master).then_some((address(host, port)?, address(new_host, new_port)?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_switch_names_the_group_and_the_new_address() {
        let address = |host: &str, port| (host.to_owned(), port);
        let told = announced(b"main 10.0.0.1 6379 10.0.0.2 6380", "main");
        let both = (address("10.0.0.1", 6379), address("10.0.0.2", 6380));
        assert_eq!(told, Some(both));
        assert_eq!(
            announced(b"other 10.0.0.1 6379 10.0.0.2 6380", "main"),
            None
        );
        assert_eq!(announced(b"main 10.0.0.1", "main"), None);
    }
}
