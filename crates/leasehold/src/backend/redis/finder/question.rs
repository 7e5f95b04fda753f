//! What one sentinel is asked, and what it answers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use redis::{ErrorKind, RedisResult, Value};
use tokio::time::timeout;

use super::{Address, group::Group};
use crate::{
    address::shown,
    backend::{
        Failure,
        redis::{
            connect::{DialProgress, NoConnection, SubscriptionLink},
            failure::in_words,
            pubsub::{Ask, Heard, PubSub},
            sharding::Sharding,
        },
    },
    durations::humane,
    error::Cause,
};

/// How long one of them may take to answer.
pub(super) const ANSWER: Duration = Duration::from_millis(300);

/// What it says unasked.
const SWITCHES: &str = "+switch-master";

/// The answer of one sentinel.
pub(super) enum SentinelSaid {
    Primary {
        address: Address,
        epoch: u64,
        /// Its own id, if it tells.
        id: Option<String>,
        others: Vec<Other>,
    },
    /// It does not know it, but these.
    Unknown(BTreeSet<String>),
}

/// What a sentinel says of another.
pub(super) struct Other {
    pub(super) address: Address,
    pub(super) id: Option<String>,
    pub(super) is_down: bool,
}

impl Other {
    fn of(fields: &HashMap<String, String>) -> Option<Other> {
        let flags = fields.get("flags").map_or("", String::as_str);
        Some(Other {
            address: address_in(fields)?,
            id: fields.get("runid").filter(|id| !id.is_empty()).cloned(),
            is_down: flags.contains("s_down"),
        })
    }
}

impl Group {
    /// Asks one sentinel.
    pub(super) async fn ask(&self, address: &Address) -> Result<SentinelSaid, Failure> {
        let said = timeout(ANSWER, self.question(address)).await;
        let said = said.unwrap_or_else(|_| Err(Failure::NotSent(Arc::new(SilentSentinel(ANSWER)))));
        said.map_err(|failure| match failure {
            Failure::Rejected(cause) => Failure::Rejected(of_sentinel(address, cause)),
            failure => Failure::NotSent(of_sentinel(address, Arc::clone(failure.cause()))),
        })
    }

    /// A connection on which one sentinel says that another server has become the primary.
    pub(super) async fn switches(
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
            failure.said_by(|cause| of_sentinel(address, cause))
        };
        let (connected, _) = target.subscriptions(&progress).await.map_err(&failed)?;
        let mut heard = PubSub::new(connected, Sharding::Classic);
        heard.ask(Ask::Subscribe, vec![SWITCHES.to_owned()], ());
        let subscribed = answer(&mut heard).await;
        subscribed.map_err(|error| failed(error.into()))?;
        Ok(heard)
    }

    async fn question(&self, address: &Address) -> Result<SentinelSaid, Failure> {
        let (target, progress) = (self.of_sentinels.at(address), DialProgress::default());
        let failed = |error: NoConnection| match wrong_login(&error) {
            Some(wrong) => Failure::Rejected(Arc::new(wrong)),
            None => target.failure(error, ANSWER, &progress),
        };
        let login = target.info.redis_settings();
        let connection = target.commands(login, &progress).await;
        let mut connection = connection.map_err(failed)?;
        let mut questions = redis::pipe();
        questions.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        questions.cmd("SENTINEL").arg("SENTINELS").arg(&self.master);
        questions.cmd("SENTINEL").arg("MYID");
        // From a promotion until all replicas follow, the sentinel that leads says the old address in `MASTER`, and the new one here.
        let current = "GET-MASTER-ADDR-BY-NAME";
        questions.cmd("SENTINEL").arg(current).arg(&self.master);
        let multiplexed = &mut connection.multiplexed;
        let answers = multiplexed.send_packed_commands(&questions, 0, 4).await;
        let mut answers = answers.map_err(|error| failed(error.into()))?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil).extract_error();
        let (master, others, id, current) = (next(), next(), next(), next());
        let master = match master {
            Ok(master) => fields(master),
            Err(error)
                if error
                    .detail()
                    .unwrap_or_default()
                    .contains("No such master") =>
            {
                let mut masters = redis::cmd("SENTINEL");
                let masters = multiplexed
                    .send_packed_command(masters.arg("MASTERS"))
                    .await;
                let name = |mut master: HashMap<_, _>| master.remove("name");
                let names = masters.map_or_else(|_| Vec::new(), each);
                return Ok(SentinelSaid::Unknown(
                    names.into_iter().filter_map(name).collect(),
                ));
            }
            Err(error)
                if error
                    .detail()
                    .unwrap_or_default()
                    .contains("unknown command") =>
            {
                return Err(Failure::Rejected(Arc::new(NoSentinel)));
            }
            Err(error) => return Err(failed(error.into())),
        };
        let current = match current.map(redis::from_redis_value::<Address>) {
            Ok(Ok(current)) => Some(current),
            // It refuses the question to this user.
            _ => address_in(&master),
        };
        let Some(address) = current else {
            let unread = (ErrorKind::UnexpectedReturnType, "no address of a primary");
            return Err(Failure::Rejected(in_words(unread.into())));
        };
        let epoch = master
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        Ok(SentinelSaid::Primary {
            address,
            epoch: epoch.unwrap_or(0),
            others: others
                .map_or_else(|_| Vec::new(), each)
                .iter()
                .filter_map(Other::of)
                .collect(),
            id: id.ok().and_then(|id| redis::from_redis_value(id).ok()),
        })
    }
}

/// The answer to the only thing that was asked, before which nothing else is said.
async fn answer(heard: &mut PubSub<SubscriptionLink, ()>) -> RedisResult<()> {
    loop {
        if let Heard::Answer((), answer) = heard.next().await? {
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

fn of_sentinel(address: &Address, cause: Cause) -> Cause {
    let address = shown(address);
    Arc::new(OfSentinel { address, cause })
}

/// What a sentinel says of a login that is not its own.
fn wrong_login(error: &NoConnection) -> Option<WrongLogin> {
    let NoConnection::Redis(error) = error else {
        return None;
    };
    match error.code() {
        Some("NOAUTH") => Some(WrongLogin::None),
        Some("WRONGPASS") => Some(WrongLogin::Wrong),
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
