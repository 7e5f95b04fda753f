//! The questions to one sentinel, and its answers.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::future::{Either, select_ok};
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::time::timeout;

use super::{
    Address,
    group::Group,
    known::{Other, Word},
};
use crate::{
    address::shown,
    backend::{
        Failure,
        redis::{
            connect::{DialProgress, NoConnection, SubscriptionLink},
            exchange::Connection,
            failure::{classify, in_words},
            pubsub::{Ask, PubSub, Received},
            sharding::Sharding,
        },
        report::SentinelView,
    },
    durations::humane,
    error::Cause,
};

/// How long one of them may take to answer: a sentinel whose packets are lost must not hold up a connection to the primary.
pub(super) const ANSWER: Duration = Duration::from_millis(300);

/// The same, where nothing waits for it.
pub(super) const PATIENT_ANSWER: Duration = Duration::from_secs(2);

/// An answer on a connection that is kept is late from here on. Within `ANSWER` enough is left for a dial.
const LATE: Duration = Duration::from_millis(100);

/// The channel on which a sentinel says that another server has become the primary.
const SWITCHES: &str = "+switch-master";
/// The channels on which a sentinel says that it was set anew, or begins anew.
const SET_ANEW: [&str; 3] = ["+monitor", "-monitor", "+reset-master"];

/// Where a sentinel is asked for the address of the primary.
const CURRENT: &str = "GET-MASTER-ADDR-BY-NAME";

/// The answer of one sentinel.
pub(super) enum SentinelAnswer {
    Primary {
        word: Word,
        /// Its own id, if it tells.
        id: Option<String>,
    },
    /// It does not know it, but these.
    Unknown(BTreeSet<String>),
}

/// A word that a sentinel says unasked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// Another server has the place of the one at this address.
    Switch(Address),
    /// The earlier words of this sentinel count no more.
    SetAnew,
}

impl Group {
    /// Asks one sentinel.
    pub(super) async fn ask(&self, address: &Address) -> Result<SentinelAnswer, Failure> {
        let asked = async {
            let line = self.line(address).await?;
            self.question(address, &line).await
        };
        within(ANSWER, address, asked).await
    }

    /// The same on a connection that is kept, and beside that on a new one as soon as it is late: a network may have lost track of the
    /// one that is kept. And a starved machine answers late, and would not answer sooner if it was asked anew alone (bug 312).
    /// `None`: the sentinel still says `said`.
    pub(super) async fn ask_again(
        &self,
        address: &Address,
        line: &mut Option<Connection>,
        said: Option<&Address>,
        patience: Duration,
    ) -> Result<Option<SentinelAnswer>, Failure> {
        // Taken out: a question that is given up leaves no connection behind on which the sentinel may be silent.
        let kept = line.take();
        let asked = async {
            let on_new = async {
                let line = self.line(address).await?;
                let answer = self.news(address, &line, said).await?;
                Ok((line, answer))
            };
            let Some(kept) = kept else {
                return on_new.await;
            };
            let on_kept = async {
                let answer = self.news(address, &kept, said).await?;
                Ok((kept, answer))
            };
            let mut on_kept = pin!(on_kept);
            match timeout(LATE, &mut on_kept).await {
                Ok(Ok(answered)) => Ok(answered),
                // The sentinel may have closed it.
                Ok(Err(_)) => on_new.await,
                // Neither ends the other: a refused dial does not make an answer on its way worthless.
                Err(_) => {
                    let both = [Either::Left(on_kept), Either::Right(pin!(on_new))];
                    select_ok(both).await.map(|(answered, _)| answered)
                }
            }
        };
        let (kept, answer) = within(patience, address, asked).await?;
        *line = Some(kept);
        Ok(answer)
    }

    /// A connection on which one sentinel says that another server has become the primary, or that it was set anew.
    pub(super) async fn announcements(
        &self,
        address: &Address,
        within: Duration,
    ) -> Result<PubSub<SubscriptionLink, ()>, Failure> {
        let (target, progress) = (self.of_sentinels.at(address), DialProgress::default());
        let failed = |error: NoConnection| {
            let failure = match wrong_login(&error) {
                Some(wrong) => Failure::Rejected(Arc::new(wrong)),
                None => target.failure(error, within, &progress),
            };
            failure.reported_by(|cause| of_sentinel(address, cause))
        };
        let (connected, _) = target.subscriptions(&progress).await.map_err(&failed)?;
        let mut heard = PubSub::new(connected, Sharding::Classic);
        heard.ask(Ask::Subscribe, vec![SWITCHES.to_owned()], ());
        // By itself: a user that may not hear these hears of switches all the same, and the sentinel is asked now and then.
        heard.ask(Ask::Subscribe, SET_ANEW.map(str::to_owned).to_vec(), ());
        // The answer about switches only. A refusal of the other channels comes later, and is passed over as no message.
        let subscribed = answer(&mut heard).await;
        subscribed.map_err(|error| failed(error.into()))?;
        Ok(heard)
    }

    /// The word of a sentinel in a message on such a channel; `None`: the message is about another group, or cannot be read.
    pub(super) fn unasked(&self, channel: &str, message: &[u8]) -> Option<Unasked> {
        let message = std::str::from_utf8(message).ok()?;
        let words: Vec<&str> = message.split(' ').collect();
        if channel != SWITCHES {
            // Such as `master <name> <host> <port>`.
            let is_ours = words.get(1) == Some(&&*self.master);
            return is_ours.then_some(Unasked::SetAnew);
        }
        // The new address in the message is passed over: the message may be late, so the sentinel is asked for address and epoch (bug 289).
        let [name, host, port, _, _] = words[..] else {
            return None;
        };
        let old = self.reached((host.to_owned(), port.parse().ok()?));
        (name == self.master).then_some(Unasked::Switch(old))
    }

    /// Asks one sentinel how it sees the group; `None`: it does not know it.
    pub(super) async fn view(&self, address: &Address) -> Result<Option<SentinelView>, Failure> {
        let asked = async {
            let line = self.line(address).await?;
            let mut questions = redis::pipe();
            questions.cmd("SENTINEL").arg("MASTER").arg(&self.master);
            questions.cmd("SENTINEL").arg(CURRENT).arg(&self.master);
            let answers = line.commands(&questions);
            let mut answers = answers.await.map_err(classify)?.into_iter();
            let mut next = || answers.next().unwrap_or(Value::Nil).extract_error();
            let (master, current) = (next(), next());
            let master = match master {
                Ok(master) => fields(master),
                Err(error) if error.to_string().contains("No such master") => return Ok(None),
                Err(error) => return Err(classify(error)),
            };
            let current = current.map(redis::from_redis_value::<Address>);
            let current = current.ok().and_then(Result::ok);
            let number = |name: &str| {
                let number = master.get(name).and_then(|it| it.parse().ok());
                number.unwrap_or(0)
            };
            let primary = current.or_else(|| address_in(&master));
            Ok(primary.map(|primary| SentinelView {
                primary: shown(&self.reached(primary)),
                epoch: number("config-epoch"),
                sentinels: number("num-other-sentinels") + 1,
            }))
        };
        within(PATIENT_ANSWER, address, asked).await
    }

    /// Has one sentinel put a replica in the place of the primary.
    pub(super) async fn fail_over(&self, address: &Address) -> Result<(), Failure> {
        let line = within(PATIENT_ANSWER, address, self.line(address)).await?;
        let asked = async {
            let mut ask = redis::cmd("SENTINEL");
            ask.arg("FAILOVER").arg(&self.master);
            let answer = line.command(&ask).await;
            let answer = answer.and_then(Value::extract_error);
            answer.map(drop).map_err(classify)
        };
        let answer = within(PATIENT_ANSWER, address, asked).await;
        answer.map_err(|failure| match failure {
            // The sentinel may have it.
            Failure::NotSent(cause) => Failure::Ambiguous(cause),
            failure => failure,
        })
    }

    /// A connection for questions.
    async fn line(&self, address: &Address) -> Result<Connection, Failure> {
        // Without the handshake of a server, which would refuse a sentinel as unfit.
        let (target, progress) = (self.of_sentinels.at(address), DialProgress::default());
        let login = target.info.redis_settings();
        let connection = target.commands(login, &progress).await;
        connection.map_err(|error| match wrong_login(&error) {
            Some(wrong) => Failure::Rejected(Arc::new(wrong)),
            None => target.failure(error, ANSWER, &progress),
        })
    }

    /// The sentinel's answer; `None`: it still says `said`.
    async fn news(
        &self,
        address: &Address,
        line: &Connection,
        said: Option<&Address>,
    ) -> Result<Option<SentinelAnswer>, Failure> {
        if let Some(said) = said {
            // The address alone is asked for on each poll; the full question follows where it differs, or the answer cannot be read.
            let mut current = redis::cmd("SENTINEL");
            current.arg(CURRENT).arg(&self.master);
            let answer = line.command(&current).await;
            let answer = answer.map(redis::from_redis_value::<Address>);
            if answer.is_ok_and(|now| now.is_ok_and(|now| self.reached(now) == *said)) {
                return Ok(None);
            }
        }
        self.question(address, line).await.map(Some)
    }

    async fn question(
        &self,
        address: &Address,
        line: &Connection,
    ) -> Result<SentinelAnswer, Failure> {
        let target = self.of_sentinels.at(address);
        let failed = |error: RedisError| {
            let error = NoConnection::Redis(error);
            match wrong_login(&error) {
                Some(wrong) => Failure::Rejected(Arc::new(wrong)),
                None => target.failure(error, ANSWER, &DialProgress::default()),
            }
        };
        let mut questions = redis::pipe();
        questions.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        questions.cmd("SENTINEL").arg("SENTINELS").arg(&self.master);
        questions.cmd("SENTINEL").arg("MYID");
        // From a promotion until all replicas follow, the sentinel that leads says the old address in `MASTER`, and the new one here.
        questions.cmd("SENTINEL").arg(CURRENT).arg(&self.master);
        let answers = line.commands(&questions).await;
        let mut answers = answers.map_err(failed)?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil).extract_error();
        let (master, others, id, current) = (next(), next(), next(), next());
        let says = |error: &RedisError, words| error.detail().unwrap_or_default().contains(words);
        let master = match master {
            Ok(master) => fields(master),
            // The name may be mistyped: the error then lists the names that there are.
            Err(error) if says(&error, "No such master") => {
                let mut masters = redis::cmd("SENTINEL");
                let masters = line.command(masters.arg("MASTERS")).await;
                let name = |mut master: HashMap<_, _>| master.remove("name");
                let names = masters.map_or_else(|_| Vec::new(), each);
                return Ok(SentinelAnswer::Unknown(
                    names.into_iter().filter_map(name).collect(),
                ));
            }
            Err(error) if says(&error, "unknown command") => {
                return Err(Failure::Rejected(Arc::new(NoSentinel)));
            }
            Err(error) => return Err(failed(error)),
        };
        let current = match current.map(redis::from_redis_value::<Address>) {
            Ok(Ok(current)) => Some(current),
            // It refuses the question to this user.
            _ => address_in(&master),
        };
        let Some(current) = current else {
            let unread = (ErrorKind::UnexpectedReturnType, "no address of a primary");
            return Err(Failure::Rejected(in_words(unread.into())));
        };
        let epoch = master
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        let other = |fields: &HashMap<_, _>| self.other(fields);
        let others = others.map(|others| each(others).iter().filter_map(other).collect());
        Ok(SentinelAnswer::Primary {
            word: Word {
                address: self.reached(current),
                // Without an epoch the word is behind any that has one, as of a sentinel that was set anew.
                epoch: epoch.unwrap_or(0),
                // A refusal tells of no sentinels, which is not the same as telling of none (`Word::others`).
                others: others.ok(),
            },
            // `MYID` came with Redis 6.2, and a user may lack the right to it: the sentinel is then known by its address alone.
            id: id.ok().and_then(|id| redis::from_redis_value(id).ok()),
        })
    }

    fn other(&self, fields: &HashMap<String, String>) -> Option<Other> {
        let flags = fields.get("flags").map_or("", String::as_str);
        Some(Other {
            address: self.reached(address_in(fields)?),
            // A sentinel that has not heard the other yet lists it with an empty id.
            id: fields.get("runid").filter(|id| !id.is_empty()).cloned(),
            // This is the opinion of the sentinel that tells, and not of a quorum: it spares questions, and takes no vote.
            is_down: flags.contains("s_down"),
        })
    }
}

/// The answer to what was asked first, before which nothing else is said.
async fn answer(heard: &mut PubSub<SubscriptionLink, ()>) -> RedisResult<()> {
    loop {
        if let Received::Answer((), answer) = heard.next().await? {
            return answer;
        }
    }
}

/// An answer of names and values.
fn fields(answer: Value) -> HashMap<String, String> {
    redis::from_redis_value(answer).unwrap_or_default()
}

/// An answer of several of these.
fn each(answer: Value) -> Vec<HashMap<String, String>> {
    redis::from_redis_value(answer).unwrap_or_default()
}

fn address_in(fields: &HashMap<String, String>) -> Option<Address> {
    let host = fields.get("ip").filter(|host| !host.is_empty())?;
    Some((host.clone(), fields.get("port")?.parse().ok()?))
}

/// Waits this long for the dial and the answer of a sentinel.
async fn within<T>(
    limit: Duration,
    address: &Address,
    asked: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let said = timeout(limit, asked).await;
    let said = said.unwrap_or_else(|_| Err(Failure::NotSent(Arc::new(SilentSentinel(limit)))));
    said.map_err(|failure| match failure {
        Failure::Rejected(cause) => Failure::Rejected(of_sentinel(address, cause)),
        // Never ambiguous: a question changes nothing.
        failure => Failure::NotSent(of_sentinel(address, Arc::clone(failure.cause()))),
    })
}

fn of_sentinel(address: &Address, cause: Cause) -> Cause {
    let address = shown(address);
    Arc::new(OfSentinel { address, cause })
}

/// A sentinel's refusal of a login that is not its own.
fn wrong_login(error: &NoConnection) -> Option<WrongLogin> {
    let NoConnection::Redis(error) = error else {
        return None;
    };
    match error.code() {
        Some("NOAUTH") => Some(WrongLogin::None),
        Some("WRONGPASS") => Some(WrongLogin::Wrong),
        // The redis crate has an error of its own for a refused login, in which the code of the server is missing.
        _ if error.kind() == ErrorKind::AuthenticationFailed => Some(WrongLogin::Wrong),
        _ => None,
    }
}

#[derive(Debug, thiserror::Error)]
enum WrongLogin {
    #[error(
        "it wants a password (NOAUTH); give it as sentinel_pass in the URL, or with Sentinel::password"
    )]
    None,
    #[error(
        "it refuses the user name or the password; correct sentinel_user and sentinel_pass in the URL, or what Sentinel::username and \
         Sentinel::password say"
    )]
    Wrong,
}

/// Which sentinel an error comes from.
#[derive(Debug, thiserror::Error)]
#[error("the sentinel at {address}: {cause}")]
struct OfSentinel {
    address: String,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "it is no sentinel; give the addresses of sentinels, or redis:// and the address of the server itself"
)]
struct NoSentinel;

#[derive(Debug, thiserror::Error)]
#[error("no answer within {}", humane(*.0))]
pub(super) struct SilentSentinel(pub(super) Duration);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::target::Login;

    #[test]
    fn a_word_of_a_sentinel_names_the_group_and_the_old_address() {
        let url = "redis-sentinel://one/?master=main";
        let group = Group::parse(url, &Login::default()).unwrap();
        let said = |channel, message: &str| group.unasked(channel, message.as_bytes());
        assert_eq!(
            said("+switch-master", "main 10.0.0.1 6379 10.0.0.2 6380"),
            Some(Unasked::Switch(("10.0.0.1".to_owned(), 6379)))
        );
        let other = "other 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(said("+switch-master", other), None);
        assert_eq!(said("+switch-master", "main 10.0.0.1"), None);
        for (channel, message, is_ours) in [
            ("+monitor", "master main 10.0.0.2 6380 quorum 2", true),
            ("-monitor", "master main 10.0.0.2 6380", true),
            ("+reset-master", "master main 10.0.0.2 6380", true),
            ("+monitor", "master other 10.0.0.2 6380 quorum 2", false),
            ("+monitor", "", false),
        ] {
            let ours = is_ours.then_some(Unasked::SetAnew);
            assert_eq!(said(channel, message), ours, "{message}");
        }
    }
}
