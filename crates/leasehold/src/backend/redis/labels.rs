//! The labels of clients on the server: each writes its own, and one that looks at a lock reads those of the holders and of those
//! that wait.
//!
//! A label stands under the beginning of the client's uuid, which is all that the id of a permit tells of it.

use std::{collections::HashMap, time::Duration};

use futures_util::future::{OptionFuture, join, join3};
use redis::Value;

use super::{commands::Commands, script::text};
use crate::{
    backend::{ConnectedClients, Failure, Inspection, KnownClient},
    name::{OURS, label_key},
};

/// The label of one client, as it calls its connections in `CLIENT LIST`: `leasehold:<client uuid>:<label>`.
pub(super) struct ClientLabel {
    connection_name: String,
    key: String,
    /// The server is a node of a cluster: its labels, and the connections of their clients, may be at other nodes.
    pub(super) of_node: bool,
}

/// So much of a uuid is in the key: 6 random bytes.
const KEY_CHARS: usize = "01234567-89ab".len();

const UUID_CHARS: usize = "01234567-89ab-4def-8123-456789abcdef".len();

impl ClientLabel {
    pub(super) fn new(client: &str, label: &str) -> ClientLabel {
        ClientLabel {
            connection_name: format!("{OURS}:{client}:{label}"),
            key: label_key(client.get(..KEY_CHARS).unwrap_or(client)),
            of_node: false,
        }
    }

    pub(super) fn of_node(self, of_node: bool) -> ClientLabel {
        ClientLabel { of_node, ..self }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn connection_name(&self) -> &str {
        &self.connection_name
    }

    /// Whether a connection of this client is among them.
    fn is_in(&self, connections: &HashMap<&str, SeenConnection>) -> bool {
        let own = unprefixed(&self.connection_name).and_then(|name| name.split(':').next());
        own.is_some_and(|own| connections.contains_key(own))
    }
}

/// Writes the label, to last for so long.
pub(super) async fn show(
    commands: &Commands,
    label: &ClientLabel,
    lasts_ms: u64,
) -> Result<(), Failure> {
    // A server that refuses names shows the connections of this client without one. The label says so by having no prefix: then no reader
    // misses them.
    let name = label.connection_name.as_str();
    let is_named = commands.is_named().await?;
    let unnamed = unprefixed(name).filter(|_| !is_named);
    let mut command = redis::cmd("SET");
    command.arg(&label.key).arg(unnamed.unwrap_or(name));
    command.arg("PX").arg(lasts_ms);
    commands.command(&command).await.map(drop)
}

fn unprefixed(name: &str) -> Option<&str> {
    name.strip_prefix(OURS)?.strip_prefix(':')
}

/// Adds what the server knows of the clients of some locks, beside the owner fields. Facts that it does not tell are left out: a holder without
/// a label is still an answer.
pub(super) async fn add(
    commands: &Commands,
    ours: &ClientLabel,
    found: &mut [&mut Inspection],
    asks_for_connections: bool,
) {
    let begins = begins_of(found);
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let any = !begins.is_empty();
    // The role is asked for in any case: a look at a replica is told as one.
    let (labels, list, info) = join3(
        OptionFuture::from(any.then(|| labels_of(commands, &begins))),
        OptionFuture::from((any && asks_for_connections).then(|| list_of(commands))),
        commands.command(&info),
    )
    .await;
    let info = info.ok().as_ref().and_then(text).unwrap_or_default();
    let is_replica = info.contains("role:slave");
    let clients = ClientAnswers {
        labels: labels.into_iter().flatten().collect(),
        // A replica has connections of its own only, and so has a server that hides others'.
        lists: list.into_iter().collect(),
        lists_all: info.contains("role:master"),
    };
    for found in &mut *found {
        found.is_replica = is_replica;
    }
    clients.tell(ours, found);
}

/// The beginnings of the uuids of the clients that hold or wait.
pub(super) fn begins_of(found: &[&mut Inspection]) -> Vec<String> {
    let owners = found.iter().flat_map(|found| {
        let held = found.owners.iter().map(|held| held.owner.as_str());
        held.chain(found.queue.iter().map(|entry| entry.owner.as_str()))
    });
    let mut begins: Vec<String> = owners.filter_map(begin_of_client).collect();
    begins.sort();
    begins.dedup();
    begins
}

/// The labels that a server has of clients whose uuids begin so.
pub(super) async fn labels_of(commands: &Commands, begins: &[String]) -> Vec<(String, String)> {
    let labels = ask_for_labels(commands, begins).await;
    labels.unwrap_or_default()
}

/// The same; in a cluster all of one slot.
pub(super) async fn ask_for_labels(
    commands: &Commands,
    begins: &[String],
) -> Result<Vec<(String, String)>, Failure> {
    let mut labels = redis::cmd("MGET");
    for begin in begins {
        labels.arg(label_key(begin));
    }
    let Value::Array(values) = commands.command(&labels).await? else {
        return Ok(Vec::new());
    };
    let labels = begins.iter().zip(&values);
    let labels = labels.filter_map(|(begin, value)| Some((begin.clone(), text(value)?)));
    Ok(labels.collect())
}

/// The connections of a server; empty: it does not tell.
pub(super) async fn list_of(commands: &Commands) -> String {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST").arg("TYPE").arg("NORMAL");
    let list = commands.command(&list).await.ok();
    list.as_ref().and_then(text).unwrap_or_default()
}

/// The answers of servers about clients.
pub(super) struct ClientAnswers {
    /// By the beginning of its uuid: the label under that key.
    pub(super) labels: HashMap<String, String>,
    /// The connections of each server at which these clients have some.
    pub(super) lists: Vec<String>,
    /// Where a list has our own connections, it has all.
    pub(super) lists_all: bool,
}

/// The clients that are connected, as far as the server tells.
pub(super) async fn clients(
    commands: &Commands,
    ours: &ClientLabel,
) -> Result<ConnectedClients, Failure> {
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let (list, info) = join(list_of(commands), commands.command(&info)).await;
    let info = match info {
        Err(failure) if !failure.is_final() => return Err(failure),
        info => info.ok().as_ref().and_then(text).unwrap_or_default(),
    };
    let connections = connections(&list);
    Ok(ConnectedClients {
        // As in `ClientAnswers`.
        all: info.contains("role:master") && ours.is_in(&connections),
        idle: connections
            .into_iter()
            .map(|(uuid, seen)| (uuid.to_owned(), seen.idle))
            .collect(),
    })
}

impl ClientAnswers {
    /// Adds them to what was found.
    pub(super) fn tell(&self, ours: &ClientLabel, found: &mut [&mut Inspection]) {
        let lists = self.lists.iter().map(|list| connections(list));
        let lists: Vec<_> = lists.collect();
        let mut clients = KnownClients {
            labels: &self.labels,
            lists_all: self.lists_all
                && !lists.is_empty()
                && lists.iter().all(|list| ours.is_in(list)),
            connections: HashMap::new(),
        };
        for (uuid, seen) in lists.into_iter().flatten() {
            let known = clients.connections.entry(uuid).or_insert(seen);
            known.idle = known.idle.min(seen.idle);
        }
        for found in found {
            for held in &mut found.owners {
                held.client = clients.known(&held.owner);
            }
            for entry in &mut found.queue {
                entry.client = clients.known(&entry.owner);
            }
        }
    }
}

struct KnownClients<'a> {
    labels: &'a HashMap<String, String>,
    /// By uuid.
    connections: HashMap<&'a str, SeenConnection<'a>>,
    /// A client whose connections have names is among them, or has none.
    lists_all: bool,
}

impl KnownClients<'_> {
    fn known(&self, owner: &str) -> KnownClient {
        let begin = begin_of_client(owner).unwrap_or_default();
        let written = self.labels.get(begin.as_str()).map(String::as_str);
        let (is_named, written) = match written.and_then(unprefixed) {
            Some(name) => (true, Some(name)),
            None => (false, written),
        };
        // Others may have written any text under this key, so a cut within a character must not panic.
        let written = written.and_then(|name| name.split_at_checked(UUID_CHARS));
        let written = written.and_then(|(uuid, label)| Some((uuid, label.strip_prefix(':')?)));
        // The whole uuid, if the owner tells it.
        let told = owner.split_once(':').map(|(client, _)| client);
        let written = written
            // Two uuids may begin alike, and share a key: the label is then of the client that wrote last.
            .filter(|(uuid, _)| uuid.starts_with(&begin) && told.is_none_or(|told| told == *uuid));
        let uuid = written.map(|(uuid, _)| uuid);
        let connection = told.or(uuid).and_then(|uuid| self.connections.get(uuid));
        // Only a whole list of named connections shows by their absence that a client has none.
        let is_named = is_named && uuid.is_some();
        let is_missed = is_named && self.lists_all;
        KnownClient {
            uuid: uuid.map(str::to_owned),
            label: written
                .map(|(_, label)| label)
                .or(connection.map(|seen| seen.label))
                .map(str::to_owned),
            connected: (connection.is_some() || is_missed).then_some(connection.is_some()),
            idle: connection.map(|seen| seen.idle),
            is_named,
        }
    }
}

/// The beginning of the uuid of an owner's client: of an owner field, or of the id of a permit.
fn begin_of_client(owner: &str) -> Option<String> {
    match owner.split_once(':') {
        Some((client, _)) => client.get(..KEY_CHARS).map(str::to_owned),
        None if owner.len() == 32 && owner.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            // The id of a permit begins with the same six bytes (`PermitId`), without the dash of the uuid.
            Some(format!("{}-{}", &owner[..8], &owner[8..12]))
        }
        None => None,
    }
}

/// The connections of a client, as a server lists them.
#[derive(Clone, Copy)]
struct SeenConnection<'a> {
    /// In the name of the connection.
    label: &'a str,
    /// Nothing has come on any of them for so long.
    idle: Duration,
}

/// The clients by their uuids, from the answer to `CLIENT LIST`.
fn connections(list: &str) -> HashMap<&str, SeenConnection<'_>> {
    let mut clients = HashMap::new();
    for line in list.lines() {
        let field = |name| line.split(' ').find_map(|field| field.strip_prefix(name));
        let Some((uuid, label)) = field("name=").and_then(|name| unprefixed(name)?.split_once(':'))
        else {
            continue;
        };
        let idle = field("idle=").and_then(|idle| idle.parse().ok());
        let idle = Duration::from_secs(idle.unwrap_or_default());
        let known = clients
            .entry(uuid)
            .or_insert(SeenConnection { label, idle });
        known.idle = known.idle.min(idle);
    }
    clients
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1";

    /// Of a client with this label, which has no connection.
    fn known(written: &str, owner: &str) -> KnownClient {
        let labels = HashMap::from([("79f0ed8b-09de".to_owned(), written.to_owned())]);
        let clients = KnownClients {
            labels: &labels,
            connections: HashMap::new(),
            lists_all: true,
        };
        clients.known(owner)
    }

    #[test]
    fn the_label_is_found_in_the_client_list_and_the_last_word_of_a_client() {
        let list = "id=3 addr=1.2.3.4:5 name=other db=0 age=9 idle=1\n\
                    id=4 addr=1.2.3.4:6 name=leasehold:ab-1:host:42 age=9 idle=7 db=0\n\
                    id=5 addr=1.2.3.4:7 name=leasehold:ab-1:host:42 age=9 idle=3 db=0\n";
        let found = connections(list);
        assert_eq!(found["ab-1"].label, "host:42");
        assert_eq!(found["ab-1"].idle, Duration::from_secs(3));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_label_outlives_its_connections_and_is_of_one_client() {
        let owner = format!("{UUID}:57584996648963");
        let permit = "79f0ed8b09de00010000345f0d8c1803";
        let written = format!("leasehold:{UUID}:host:42");
        for owner in [&owner, permit] {
            let known = known(&written, owner);
            assert_eq!(known.label.as_deref(), Some("host:42"), "{owner}");
            assert_eq!(known.uuid.as_deref(), Some(UUID), "{owner}");
            assert_eq!(known.connected, Some(false), "{owner}");
        }
        let another = known(&written, "79f0ed8b-09de-46ef-a0c4-000000000000:7");
        assert!(another.label.is_none() && another.connected.is_none());
    }

    #[test]
    fn a_client_whose_connections_have_no_name_is_not_missed() {
        let known = known(&format!("{UUID}:host:42"), &format!("{UUID}:7"));
        assert_eq!(known.label.as_deref(), Some("host:42"));
        assert_eq!(known.connected, None);
    }

    #[test]
    fn what_others_have_written_under_such_a_key_is_no_label() {
        for junk in [
            "",
            "leasehold:",
            "x",
            UUID,
            "leasehold:é",
            "é".repeat(30).as_str(),
        ] {
            let known = known(junk, &format!("{UUID}:7"));
            assert!(known.label.is_none() && known.connected.is_none(), "{junk}");
        }
    }
}
