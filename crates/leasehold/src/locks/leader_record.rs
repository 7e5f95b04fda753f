//! The record of an election on the server, beside its lock: under which value the leader leads.
//!
//! Written under the leader's fencing token, so that no value of an older leader replaces that of a newer one; and it counts only
//! while the owner that wrote it holds the lock. Keys: `docs/keys.md`.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::handle::supported;
use crate::{
    Error,
    backend::fenced::{Change, FencedPart, FencedRead, FencedWrite, Written},
    clock::Tick,
    config::millis,
    engine::core::{ClientRef, Core},
    engine::env::Env,
    kind::LockKind,
    name::Name,
};

/// The value of a leader on the server.
#[derive(Clone)]
pub(crate) struct LeaderRecord {
    core: ClientRef,
    name: Result<Name, Error>,
}

/// A value outlives its last writing by the time for which tokens are kept, and by this at least.
const LASTS_LEAST: Duration = Duration::from_secs(60);

/// The record that a leader has written, and writes again before its end.
#[derive(Clone)]
pub(super) struct WrittenRecord {
    key: Name,
    name: Name,
    token: u64,
    text: Arc<[u8]>,
    lasts: Option<Duration>,
}

/// A value, and the owner that holds the lock under it.
#[derive(Debug)]
pub(super) struct ReadRecord {
    pub(super) owner: String,
    pub(super) token: u64,
    pub(super) value: String,
    /// The rest of the lease; `None`: it has no end.
    pub(super) left: Option<Duration>,
}

impl LeaderRecord {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> LeaderRecord {
        LeaderRecord {
            core: ClientRef::new(core),
            name: Name::under(&core.config.name_prefix, name)
                .and_then(|name| supported(core, LockKind::FencedMutex, name))
                .map(|id| id.name),
        }
    }

    /// Tells the metrics that this client leads.
    pub(super) fn leads(&self, election: &str) {
        self.core.events.leads(election);
    }

    /// How this client calls itself.
    pub(super) fn label(&self) -> &str {
        &self.core.config.label
    }

    /// The record that says under which value the owner of this token leads.
    pub(super) fn text(
        &self,
        owner: &str,
        token: u64,
        value: &str,
    ) -> Result<WrittenRecord, Error> {
        let name = self.name.clone()?;
        let retention = self.core.config.token_retention;
        Ok(WrittenRecord {
            key: LeaderRecord::key(&name),
            name,
            token,
            text: format!("{owner} {token} {value}").into_bytes().into(),
            lasts: retention.map(|lasts| lasts.max(LASTS_LEAST)),
        })
    }

    /// Says it.
    pub(super) async fn take(&self, text: &WrittenRecord) -> Result<(), Error> {
        text.write(&self.core, text.set()).await
    }

    /// Says it again, in the background, each third of the time for which it lasts; until this is dropped.
    pub(super) fn keep(&self, text: WrittenRecord) -> Option<DropGuard> {
        // A value that has an end is written again before it: a long term would outlast it (bug 211).
        let every = text.lasts? / 3;
        // It keeps no client alive.
        let core = Arc::downgrade(&self.core);
        let keeps = async move {
            while let Some(rest) = core.upgrade().map(|core| core.sleep(every)) {
                rest.await;
                let Some(core) = core.upgrade() else { return };
                // A write without an answer is made up for by the next.
                let _ = text.write(&core, text.set()).await;
            }
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        self.core.spawn_apart(async move {
            stopped.run_until_cancelled(keeps).await;
        });
        Some(stop.drop_guard())
    }

    /// Carries out `end`, in the background, when the client begins to give everything back; until this is dropped.
    pub(super) fn at_closing<F>(&self, end: impl FnOnce(Arc<Env>) -> F) -> DropGuard
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let closing = self.core.closing().clone();
        let end = end(Arc::clone(&self.core));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        self.core.spawn_apart(async move {
            // `None`: the term has ended before the client.
            if stopped
                .run_until_cancelled(closing.cancelled_owned())
                .await
                .is_some()
            {
                end.await;
            }
        });
        stop.drop_guard()
    }

    /// Deletes it, unless a newer leader has written its own.
    pub(super) async fn leave(&self, text: &WrittenRecord) -> Result<(), Error> {
        text.write(&self.core, Change::Delete).await
    }

    /// Who leads, in one request.
    pub(super) async fn read(&self) -> Result<Option<ReadRecord>, Error> {
        let name = self.name.clone()?;
        let step = FencedRead {
            key: LeaderRecord::key(&name),
            name,
            part: FencedPart::OfHolder,
        };
        let text = self.core.read(step).await?;
        Ok(text.and_then(|text| ReadRecord::read(&text)))
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        self.core.check_open()
    }

    pub(super) fn now(&self) -> Tick {
        self.core.clock.now()
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.core.sleep_here(time).await;
    }

    fn key(name: &Name) -> Name {
        // The key is made of the name as the server knows it, which has the prefix already.
        Name::of_data("", &name.leader_key().to_string())
    }
}

impl WrittenRecord {
    fn set(&self) -> Change {
        Change::Set(self.text.as_ref().into(), self.lasts.map(millis))
    }

    async fn write(&self, core: &Core, change: Change) -> Result<(), Error> {
        let step = FencedWrite {
            key: self.key.clone(),
            name: self.name.clone(),
            token: self.token,
            change,
        };
        match core.write(step).await? {
            Written::Done => Ok(()),
            Written::Stale { newest } => Err(Error::Stale {
                fence: self.name.shared(),
                token: self.token,
                newest,
            }),
        }
    }
}

impl ReadRecord {
    /// `<ms> <owner> <token> <value>`. A text of another form was not written by this library, and says nothing.
    fn read(text: &[u8]) -> Option<ReadRecord> {
        // The value comes last, since it may have spaces.
        let mut words = str::from_utf8(text).ok()?.splitn(4, ' ');
        let ms = words.next()?.parse::<i64>().ok()?;
        Some(ReadRecord {
            left: u64::try_from(ms).ok().map(Duration::from_millis),
            owner: words.next()?.to_owned(),
            token: words.next()?.parse().ok()?,
            value: words.next()?.to_owned(),
        })
    }

    /// When the lock was granted, by the server's clock: a token of ours is that time in microseconds. Tokens that Redisson
    /// has counted on from a small one are not.
    pub(super) fn since(&self) -> Option<SystemTime> {
        /// 2020-01-01.
        const OLDEST: u64 = 1_577_836_800_000_000;
        let time = Duration::from_micros(self.token);
        (self.token > OLDEST).then(|| UNIX_EPOCH + time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written_and_other_texts_say_nothing() {
        let record = ReadRecord::read(b"1500 uuid:7 42 10.0.0.7:8080 and more").unwrap();
        assert_eq!((&*record.owner, record.token), ("uuid:7", 42));
        assert_eq!(record.value, "10.0.0.7:8080 and more");
        assert_eq!(record.left, Some(Duration::from_millis(1500)));
        assert_eq!(record.since(), None);
        let record = ReadRecord::read(b"-1 uuid:7 1700000000000000 ").unwrap();
        assert_eq!((&*record.value, record.left), ("", None));
        let since = record.since().unwrap().duration_since(UNIX_EPOCH);
        assert_eq!(since.unwrap().as_secs(), 1_700_000_000);
        for text in [
            &b""[..],
            b"1 uuid:7",
            b"1 uuid:7 x y",
            b"x uuid:7 1 y",
            b"1 a 1 \xff",
        ] {
            assert!(ReadRecord::read(text).is_none());
        }
    }
}
