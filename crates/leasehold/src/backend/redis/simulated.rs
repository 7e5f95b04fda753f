//! Clients of the simulation on the real scripts: the steps are written and read as for a server, and the simulation carries them.

use std::{future::poll_fn, sync::Arc, time::Duration};

use futures_util::FutureExt;

use super::{
    Redis, Value,
    caller::Caller,
    commands::Commands,
    discovery::Discovery,
    epoch::EpochLog,
    kinds::wire,
    labels::ClientLabel,
    silence::Silence,
    subscriptions::{Subscriptions, wake_up},
    target::{Login, Target},
    transport::Transport,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Downgrade, Extend, FencedSteps, Inspection, Keep,
        KeptPlaces, LockSteps, NumberSteps, Once, Permits, Release, ReleaseReply, Renew, Renewal,
        Reply, ServerLink, Sink, WakeUp, WakeUpSteps,
        fenced::{FencedRead, FencedWrite, Written},
        find::{FindPage, FoundPage},
        memory::{
            Memory, in_time,
            store::look::{Held, Snapshot},
        },
        simulated::{keys::Looker, request::Request, scripts::Scripts},
    },
    clock::Clock,
    config::Config,
    error::Cause,
    home::Home,
    kind::{Access, LockKind},
    name::LockId,
    outage::Outage,
    owner::LeaseId,
};

/// One client.
#[derive(Debug)]
pub(crate) struct Simulated {
    redis: Redis,
    memory: Memory,
    client: Arc<str>,
    scripts: Arc<Scripts>,
    transport: Transport,
    timeout: Duration,
}

/// What a client of the simulation is called on the wire: scripts tell ours from others' by their form. A uuid.
fn on_wire(client: &str) -> Arc<str> {
    let number = client
        .bytes()
        .fold(0_u32, |number, byte| number << 8 | u32::from(byte));
    format!("{number:08x}-0000-4000-8000-{number:012x}").into()
}

fn caller(
    client: &Arc<str>,
    config: &Config,
    transport: &Transport,
    sink: &Arc<dyn Sink>,
) -> Caller {
    let login = Login::default();
    let target = Target::parse("redis://127.0.0.1/", &login).expect("a good URL");
    let outage = Arc::new(Outage::new(String::new(), Clock::Boot));
    // They connect when they are first used, which they are not.
    let (home, epochs) = (
        Home::here(),
        EpochLog::new(Arc::clone(sink), Silence::default()),
    );
    let discovery = Discovery::new(target.into(), &home, &epochs);
    let commands = Commands::new((discovery, epochs), String::new(), config, &home, outage);
    let client = on_wire(client);
    let label = ClientLabel::new(&client, "");
    Caller::new(&client, label, config, commands).carried_by(transport)
}

impl Simulated {
    pub(crate) fn new(
        memory: Memory,
        scripts: &Arc<Scripts>,
        client: &Arc<str>,
        config: &Config,
        sink: Arc<dyn Sink>,
    ) -> Simulated {
        let steps = Arc::default();
        let transport = Transport {
            steps,
            at_once: None,
        };
        let scripts = Arc::clone(scripts);
        let at_once = Transport {
            steps: Arc::default(),
            at_once: Some(Arc::clone(&scripts)),
        };
        scripts.joins(client);
        scripts.look_with(|| {
            Box::new(KeyLooker {
                caller: caller(client, config, &at_once, &sink),
            })
        });
        let caller = caller(client, config, &transport, &sink);
        let redis = Redis {
            caller,
            subscriptions: Arc::new(Subscriptions::simulated(
                &transport,
                (client, &on_wire(client)),
                config,
                Arc::clone(&sink),
            )),
            repeats: None,
            epochs: EpochLog::new(sink, Silence::default()),
            durable: None,
            outage: Arc::new(Outage::new(String::new(), Clock::Boot)),
            shown: String::new(),
        };
        Simulated {
            redis,
            memory,
            client: Arc::clone(client),
            scripts,
            transport,
            timeout: config.operation_timeout,
        }
    }

    fn knows(&self, id: &LockId) {
        let mut known = self.scripts.known.lock();
        let id = id.clone().on_server();
        if !known.contains(&id) {
            known.insert(id);
        }
    }

    /// Sends what waits, with its twin and in its words.
    fn send(&self, twin: &mut Option<Request>) {
        send(&self.scripts, &self.transport, twin);
    }

    fn both<T: Send + 'static>(&self, mut on_keys: Reply<T>, twin: Reply<T>) -> Reply<T> {
        let (scripts, transport) = (Arc::clone(&self.scripts), self.transport.clone());
        let (mut unsent, mut caught) = (Some(twin), None);
        let answer = poll_fn(move |cx| {
            if let Some(mut twin) = unsent.take() {
                caught = scripts.catch(|| twin.as_mut().poll(cx).is_ready());
            }
            let polled = on_keys.as_mut().poll(cx);
            send(&scripts, &transport, &mut caught);
            polled
        });
        let timeout = self.timeout;
        Box::pin(async move { in_time(timeout, answer).await })
    }
}

fn send(scripts: &Scripts, transport: &Transport, twin: &mut Option<Request>) {
    let steps: Vec<_> = transport.steps.lock().drain(..).collect();
    for step in steps {
        let twin = twin.take().expect("one call for each step");
        scripts.send_on(twin.on_keys(step));
    }
}

macro_rules! both {
    ($self:ident, $step:ident, $($arg:expr),+) => {
        $self.both($self.redis.$step($($arg.clone()),+), $self.memory.$step($($arg),+))
    };
}

impl LockSteps for Simulated {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        self.knows(&step.id);
        both!(self, acquire, step)
    }

    fn release(&self, step: Release) -> Reply<ReleaseReply> {
        both!(self, release, step)
    }

    fn renew(&self, batch: &[Renew]) -> Reply<Vec<Renewal>> {
        self.both(self.redis.renew(batch), self.memory.renew(batch))
    }

    fn extend(&self, step: Extend) -> Reply<Option<Duration>> {
        both!(self, extend, step)
    }

    fn count(&self, step: Count) -> Reply<Counted> {
        both!(self, count, step)
    }

    fn downgrade(&self, step: Downgrade) -> Reply<bool> {
        both!(self, downgrade, step)
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        both!(self, inspect, id)
    }

    fn find(&self, step: FindPage) -> Reply<FoundPage> {
        both!(self, find, step)
    }

    fn force_unlock(&self, id: LockId) -> Reply<Vec<String>> {
        both!(self, force_unlock, id)
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        self.redis.owner(kind, access, lease)
    }

    fn keep(&self, step: Keep) -> Reply<KeptPlaces> {
        both!(self, keep, step)
    }
}

impl WakeUpSteps for Simulated {
    fn listen(&self, id: LockId) -> Reply<()> {
        self.knows(&id);
        both!(self, listen, id)
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        let mut twin = self.scripts.catch(|| self.memory.unlisten(id));
        let answer = self.redis.unlisten(id);
        self.send(&mut twin);
        answer
    }
}

impl NumberSteps for Simulated {
    fn permits(&self, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        self.knows(&id);
        both!(self, permits, id, step, once)
    }
}

impl FencedSteps for Simulated {
    fn write(&self, step: FencedWrite) -> Reply<Written> {
        both!(self, write, step)
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        both!(self, read, step)
    }
}

impl ServerLink for Simulated {
    fn show(&self, lasts_ms: u64) -> Reply<()> {
        self.memory.show(lasts_ms)
    }

    fn has_reached(&self) -> bool {
        true
    }

    fn trouble(&self) -> Option<Cause> {
        None
    }

    fn outage(&self) -> &Outage {
        self.memory.outage()
    }

    fn server(&self) -> String {
        self.memory.server()
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.scripts.disconnect(&self.client);
    }
}

/// How long a hold that has no end is there at least, for those that look.
const NO_END: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A caller whose requests are carried out at once.
pub(crate) struct KeyLooker {
    caller: Caller,
}

impl Looker for KeyLooker {
    fn wake_up(&self, id: &LockId, channel: &str, payload: &[u8]) -> Option<WakeUp> {
        wake_up(id, channel, payload)
    }

    fn look(&self, id: &LockId, now: Duration, seen: &mut Snapshot) {
        let found = wire(id.kind).inspect(&self.caller, id.clone());
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
        for place in found.queue {
            if let Some((client, lease)) = self.owner(id, place.access, &place.owner) {
                let silent = [b"?", place.owner.as_bytes()].concat();
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
        let caller = self.caller.called(&on_wire(&held.client));
        let give = |lease| {
            wire(id.kind)
                .release(&caller, release(lease))
                .now_or_never()
        };
        // What the server takes for given back already is given under an id of its own.
        if let Some(Ok(ReleaseReply::NotOurs)) = give(held.lease) {
            give(held.lease | 1 << 40);
        }
    }

    fn open(&self, id: &LockId) {
        let once = Once {
            number: LeaseId::from(0),
            keep_ms: 1,
        };
        let deleted = wire(id.kind).permits(&self.caller, id.clone(), Permits::Delete, once);
        deleted.now_or_never();
    }
}

impl KeyLooker {
    fn has_field(&self, id: &LockId, field: Vec<u8>) -> bool {
        let Some(scripts) = self.scripts() else {
            return false;
        };
        let key = id.places_key().to_string().into_bytes();
        let asked = "return redis.call('HEXISTS', KEYS[1], ARGV[1])";
        scripts.look(asked, &[key], &[field]) == Ok(Value::Int(1))
    }

    fn scripts(&self) -> Option<&Arc<Scripts>> {
        self.caller.transport()?.at_once.as_ref()
    }

    /// The client and the lease id of an owner. `None`: it is none of ours.
    fn owner(&self, id: &LockId, access: Access, owner: &str) -> Option<(Arc<str>, u64)> {
        let mut clients = self.scripts()?.clients().into_iter();
        if let Some((client, rest)) = owner.split_once(':') {
            let digits = rest.split(':').next()?;
            let client = clients.find(|known| *on_wire(known) == *client)?;
            return Some((client, digits.parse().ok()?));
        }
        // Permits tell their client by some of its bytes.
        let lease = u64::from_str_radix(owner.get(16..)?, 16).ok()?;
        let client = clients.find(|known| {
            let caller = self.caller.called(&on_wire(known));
            wire(id.kind).owner(&caller, access, lease.into()) == owner
        })?;
        Some((client, lease))
    }
}
