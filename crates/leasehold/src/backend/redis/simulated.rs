//! Clients of the simulation on the real scripts: the steps are written and read as for a server, and the simulation carries them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;

use super::{
    Cluster, GivenCluster, GivenServer, Redis, Value,
    commands::Commands,
    discovery::Discovery,
    durable::DurableConnections,
    kinds::wire,
    labels::ClientLabel,
    node::NodeSteps,
    restart::{RestartLog, ServerIds},
    script_runner::ScriptRunner,
    silence::Silence,
    subscriptions::{Elsewhere, Hearing, Subscriptions, wake_up},
    target::{Login, Target},
    transport::{NodeWay, Transport},
};
use crate::{
    backend::{
        Backend, Once, Permits, Release, ReleaseReply, Sink, WakeUp,
        simulated::{
            cluster::PORT,
            keys::KeyspaceInspector,
            scripts::Scripts,
            snapshot::{Held, Snapshot},
        },
    },
    background::BackgroundRuntime,
    clock::Clock,
    config::Config,
    kind::{Access, LockKind},
    name::LockId,
    outage::Outage,
    owner::LeaseId,
};

/// The name of a client of the simulation on the wire, a uuid: scripts tell ours from others' by their form.
fn on_wire(client: &str) -> Arc<str> {
    let number = client
        .bytes()
        .fold(0_u32, |number, byte| number << 8 | u32::from(byte));
    format!("{number:08x}-0000-4000-8000-{number:012x}").into()
}

/// They connect when they are first used, which they are not.
fn commands(config: &Config, sink: &Arc<dyn Sink>) -> Commands {
    let login = Login::default();
    let target = Target::parse("redis://127.0.0.1/", &login).expect("a good URL");
    let outage = Arc::new(Outage::new(String::new(), Clock::Boot));
    let (background, restarts) = (
        BackgroundRuntime::here(),
        RestartLog::new(Arc::clone(sink), Silence::default()),
    );
    let discovery = Discovery::new(target.into(), &background, &restarts);
    Commands::new(
        (discovery, restarts),
        String::new(),
        config,
        &background,
        outage,
    )
}

fn runner(
    client: &Arc<str>,
    (label, config): (ClientLabel, &Config),
    transport: &Transport,
    sink: &Arc<dyn Sink>,
) -> ScriptRunner {
    ScriptRunner::new(client, label, config, commands(config, sink)).carried_by(transport)
}

/// A client of a server, or of a node, that is reached so.
fn redis(
    client: &Arc<str>,
    (label, config): (ClientLabel, &Config),
    transport: &Transport,
    (sink, elsewhere): (Arc<dyn Sink>, Option<Arc<dyn Elsewhere>>),
    shown: String,
) -> Redis {
    let on_wire = on_wire(client);
    let runner = runner(&on_wire, (label, config), transport, &sink);
    let received_by = (Arc::clone(&sink), elsewhere);
    let restarts = RestartLog::new(Arc::clone(&sink), Silence::default());
    let durable = DurableConnections::new(
        &runner,
        &restarts,
        &BackgroundRuntime::here(),
        config.durability_timeout,
        {
            let config = config.clone();
            move || commands(&config, &sink)
        },
    );
    Redis {
        steps: NodeSteps {
            runner,
            subscriptions: Arc::new(Subscriptions::simulated(
                transport,
                (client, &on_wire),
                config,
                received_by,
            )),
            restarts,
            durable: Some(Arc::new(durable)),
        },
        repeats: None,
        outage: Arc::new(Outage::new(String::new(), Clock::Boot)),
        shown: shown.into(),
    }
}

/// The first client on these keys inspects them from outside.
fn inspect(scripts: &Arc<Scripts>, client: &Arc<str>, config: &Config, sink: &Arc<dyn Sink>) {
    scripts.inspect_with(|| {
        let (at_once, on_wire) = (Transport::AtOnce(Arc::clone(scripts)), on_wire(client));
        let label = ClientLabel::new(&on_wire, "");
        Box::new(KeyInspector {
            runner: runner(&on_wire, (label, config), &at_once, sink),
        })
    });
}

/// A client as users get it, but for its connections.
pub(crate) fn simulated(
    scripts: &Arc<Scripts>,
    client: &Arc<str>,
    config: &Config,
    sink: Arc<dyn Sink>,
    shown: String,
) -> Box<dyn Backend> {
    inspect(scripts, client, config, &sink);
    if scripts.cluster().is_some() {
        scripts.joins(client, || {});
        return Box::new(cluster(scripts, client, config, sink));
    }
    let way = NodeWay::new(0, client, scripts, config.operation_timeout);
    let label = ClientLabel::new(&on_wire(client), "");
    let transport = Transport::Node(way);
    let one = redis(client, (label, config), &transport, (sink, None), shown);
    let (restarts, met) = (Arc::clone(&one.steps.restarts), AtomicU64::new(0));
    let meets_another = move || {
        let run_id = format!("run_id:{}", met.fetch_add(1, Ordering::Relaxed));
        restarts.after_handshake(ServerIds::of(&run_id, ""), None, false);
    };
    meets_another();
    scripts.joins(client, meets_another);
    // A majority sees to that above its servers.
    if !scripts.has_one_vote() {
        return Box::new(one.repeating(&BackgroundRuntime::here()));
    }
    Box::new(one)
}

fn cluster(
    scripts: &Arc<Scripts>,
    client: &Arc<str>,
    config: &Config,
    sink: Arc<dyn Sink>,
) -> Cluster {
    let config = Config {
        // No node of a world is asked which channels it knows (`ScriptRunner::choose`), so the choice is made here.
        sharded_channels: Some(true),
        ..config.clone()
    };
    let hosts: Vec<String> = (PORT..)
        .take(scripts.nodes())
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let url = format!("redis-cluster://{}", hosts.join(","));
    let given = GivenCluster::parse(&url, &Login::default());
    let given = given.and_then(Result::ok).expect("a good URL");
    let make = {
        let (scripts, client, config) = (Arc::clone(scripts), Arc::clone(client), config.clone());
        move |server: GivenServer, hearing: Hearing, sink| {
            let GivenServer::At(target) = server else {
                unreachable!("a node has an address");
            };
            let (shown, (_, port)) = (target.to_string(), target.address().expect("a host"));
            let node = u8::try_from(port - PORT).expect("one of a few nodes");
            let way = NodeWay::new(node, &client, &scripts, config.operation_timeout);
            let label = ClientLabel::new(&on_wire(&client), "").of_node(true);
            let received_by = (sink, hearing.elsewhere);
            redis(
                &client,
                (label, &config),
                &Transport::Node(way),
                received_by,
                shown,
            )
        }
    };
    let label = ClientLabel::new(&on_wire(client), "");
    Cluster::over(
        make,
        given,
        label,
        &config,
        sink,
        &BackgroundRuntime::here(),
    )
}

/// How long a hold that has no end is there at least, for those that look.
const NO_END: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A caller whose requests are carried out at once.
pub(crate) struct KeyInspector {
    runner: ScriptRunner,
}

impl KeyspaceInspector for KeyInspector {
    fn wake_up(&self, id: &LockId, channel: &str, payload: &[u8]) -> Option<WakeUp> {
        wake_up(id, channel, payload)
    }

    fn inspect(&self, id: &LockId, now: Duration, seen: &mut Snapshot) {
        // Ready at its first poll: on `Transport::AtOnce` a call is carried out where it is made.
        let found = wire(id.kind).inspect(&self.runner, id.clone());
        let Some(Ok(found)) = found.now_or_never() else {
            return;
        };
        for owned in found.owners {
            if let Some((client, lease)) = self.owner(id, owned.access, &owned.owner) {
                seen.held.push(Held {
                    name: id.name.shared(),
                    client,
                    lease,
                    access: owned.access,
                    holds: u32::try_from(owned.holds).unwrap_or(u32::MAX),
                    ends: now + owned.ttl.unwrap_or(NO_END),
                });
            }
        }
        for entry in found.queue {
            if let Some((client, lease)) = self.owner(id, entry.access, &entry.owner) {
                // The scripts of a fair mutex note so since when a waiter has not been heard (`fair_mutex/line.lua`).
                let silent = [b"?", entry.owner.as_bytes()].concat();
                let entry = (id.name.shared(), client, lease);
                if id.kind == LockKind::FairMutex && self.has_field(id, silent) {
                    seen.passed_over.push(entry.clone());
                }
                seen.queued.push(entry);
            }
        }
    }

    fn give_back(&self, id: &LockId, held: &Held) {
        let release = |lease: u64| Release {
            held: true,
            ..Release::giving_back(id, held.access, lease.into())
        };
        let runner = self.runner.called(&on_wire(&held.client));
        let give = |lease| {
            wire(id.kind)
                .release(&runner, release(lease))
                .now_or_never()
        };
        // A lease that the server takes for given back already is given back under an id of its own.
        if let Some(Ok(ReleaseReply::NotOurs)) = give(held.lease) {
            give(held.lease | 1 << 40);
        }
    }

    fn open(&self, id: &LockId) {
        let once = Once {
            // An operator sends no second copy for which the server would have to keep the answer.
            number: LeaseId::from(0),
            keep_ms: 1,
        };
        let deleted = wire(id.kind).permits(&self.runner, id.clone(), Permits::Delete, once);
        deleted.now_or_never();
    }
}

impl KeyInspector {
    fn has_field(&self, id: &LockId, field: Vec<u8>) -> bool {
        let Some(scripts) = self.scripts() else {
            return false;
        };
        let key = id.entries_key().to_string().into_bytes();
        let asked = "return redis.call('HEXISTS', KEYS[1], ARGV[1])";
        // Not `call`, which forgets the last snapshot: this changes no key.
        scripts.peek(asked, &[key], &[field]) == Ok(Value::Int(1))
    }

    fn scripts(&self) -> Option<&Arc<Scripts>> {
        match self.runner.transport()? {
            Transport::AtOnce(scripts) => Some(scripts),
            Transport::Node(_) => None,
        }
    }

    /// The client and the lease id of an owner. `None`: it is none of ours.
    fn owner(&self, id: &LockId, access: Access, owner: &str) -> Option<(Arc<str>, u64)> {
        let mut clients = self.scripts()?.clients().into_iter();
        if let Some((client, rest)) = owner.split_once(':') {
            // Behind a writer's lease id its field goes on with `:write`.
            let digits = rest.split(':').next()?;
            let client = clients.find(|known| *on_wire(known) == *client)?;
            return Some((client, digits.parse().ok()?));
        }
        // Permits tell their client by some of its bytes.
        let lease = u64::from_str_radix(owner.get(16..)?, 16).ok()?;
        let client = clients.find(|known| {
            let runner = self.runner.called(&on_wire(known));
            wire(id.kind).owner(&runner, access, lease.into()) == owner
        })?;
        Some((client, lease))
    }
}
