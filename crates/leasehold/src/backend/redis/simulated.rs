//! Clients of the simulation on the real scripts: the steps are written and read as for a server, and the simulation carries them.

use std::{future::poll_fn, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError};

use super::{
    Redis, Value,
    caller::Caller,
    commands::Commands,
    failure::{classify, in_words},
    kinds::wire,
    labels::ClientLabel,
    script::{Call, unexpected},
    subscriptions::Subscriptions,
    target::{Login, Target},
};
use crate::{
    backend::{
        Acquire, Acquired, Backend, Count, Counted, Downgrade, Extend, Failure, Inspection, Keep,
        KeptPlaces, Once, Permits, Release, ReleaseReply, Renew, Renewal, Reply, Sink,
        fenced::{FencedRead, FencedWrite, Written},
        find::{FindPage, FoundPage},
        memory::{Memory, in_time},
    },
    clock::Clock,
    config::Config,
    error::Cause,
    home::Home,
    kind::{Access, LockKind},
    name::LockId,
    outage::Outage,
    owner::LeaseId,
    sim::{self, Held, Request, Scripts, Snapshot, Step},
};

/// Takes the place of a client's connections: its requests wait here until they are sent.
#[derive(Clone)]
pub(super) struct Carrier {
    steps: Arc<Mutex<Vec<Box<dyn Step>>>>,
    /// They are carried out at once, for a look from outside.
    at_once: Option<Arc<Scripts>>,
}

impl Carrier {
    /// A call of a script.
    pub(super) fn call<T: Clone + std::fmt::Debug + Send + 'static>(
        &self,
        call: &Call,
        read: impl Fn(&Value) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        let (script, mut keys) = call.parts();
        let args = keys.split_off(call.keys());
        let carrier = self.clone();
        Box::pin(async move {
            let answer = carrier.carry(move |scripts| {
                let reply = scripts.call(script, &keys, &args);
                let reply = reply.map_err(|error| classify(as_read(&error)))?;
                read(&reply).ok_or_else(|| Failure::Rejected(in_words(unexpected(&reply))))
            });
            answer.await
        })
    }

    /// Leaves at once.
    pub(super) fn carry<T: Clone + std::fmt::Debug + Send + 'static>(
        &self,
        carry_out: impl Fn(&Scripts) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        if let Some(scripts) = &self.at_once {
            return Box::pin(std::future::ready(carry_out(scripts)));
        }
        let (step, answer) = sim::step(move |_, scripts| {
            let scripts = scripts.expect("such clients are on such servers only");
            carry_out(scripts)
        });
        self.steps.lock().push(step);
        answer
    }
}

/// An error as it comes from a connection.
fn as_read(error: &str) -> RedisError {
    let line = format!("-{}\r\n", error.replace(['\r', '\n'], " "));
    let read = redis::parse_redis_value(line.as_bytes()).and_then(Value::extract_error);
    read.err()
        .unwrap_or_else(|| (ErrorKind::Parse, "no error").into())
}

/// One client.
#[derive(Debug)]
pub(crate) struct Simulated {
    redis: Redis,
    memory: Memory,
    client: Arc<str>,
    scripts: Arc<Scripts>,
    carrier: Carrier,
    timeout: Duration,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").finish_non_exhaustive()
    }
}

/// What a client of the simulation is called on the wire: scripts tell ours from others' by their form. A uuid.
fn on_wire(client: &str) -> Arc<str> {
    let number = client
        .bytes()
        .fold(0_u32, |number, byte| number << 8 | u32::from(byte));
    format!("{number:08x}-0000-4000-8000-{number:012x}").into()
}

fn caller(client: &Arc<str>, config: &Config, carrier: &Carrier) -> Caller {
    let login = Login::default();
    let target = Target::parse("redis://127.0.0.1/", &login).expect("a good URL");
    let outage = Arc::new(Outage::new(String::new(), Clock::Boot));
    // They connect when they are first used, which they are not.
    let commands = Commands::new(
        Arc::new(target),
        String::new(),
        config,
        &Home::here(),
        outage,
    );
    let client = on_wire(client);
    let label = ClientLabel::new(&client, "");
    Caller::new(&client, label, config, commands).carried_by(carrier)
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
        let carrier = Carrier {
            steps,
            at_once: None,
        };
        let scripts = Arc::clone(scripts);
        let at_once = Carrier {
            steps: Arc::default(),
            at_once: Some(Arc::clone(&scripts)),
        };
        scripts.joins(client);
        scripts.look_with(|| Looker {
            caller: caller(client, config, &at_once),
        });
        let redis = Redis {
            caller: caller(client, config, &carrier),
            subscriptions: Subscriptions::simulated(
                &carrier,
                (client, &on_wire(client)),
                config,
                sink,
            ),
            outage: Arc::new(Outage::new(String::new(), Clock::Boot)),
            shown: String::new(),
        };
        Simulated {
            redis,
            memory,
            client: Arc::clone(client),
            scripts,
            carrier,
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
        send(&self.scripts, &self.carrier, twin);
    }

    fn both<T: Send + 'static>(&self, mut on_keys: Reply<T>, twin: Reply<T>) -> Reply<T> {
        let (scripts, carrier) = (Arc::clone(&self.scripts), self.carrier.clone());
        let (mut unsent, mut caught) = (Some(twin), None);
        let answer = poll_fn(move |cx| {
            if let Some(mut twin) = unsent.take() {
                caught = scripts.catch(|| twin.as_mut().poll(cx).is_ready());
            }
            let polled = on_keys.as_mut().poll(cx);
            send(&scripts, &carrier, &mut caught);
            polled
        });
        let timeout = self.timeout;
        Box::pin(async move { in_time(timeout, answer).await })
    }
}

fn send(scripts: &Scripts, carrier: &Carrier, twin: &mut Option<Request>) {
    let steps: Vec<_> = carrier.steps.lock().drain(..).collect();
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

impl Backend for Simulated {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        self.knows(&step.id);
        both!(self, acquire, step)
    }

    fn release(&self, step: Release) -> Reply<ReleaseReply> {
        both!(self, release, step)
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
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

    fn show(&self, lasts_ms: u64) -> Reply<()> {
        self.memory.show(lasts_ms)
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        self.redis.owner(kind, access, lease)
    }

    fn keep(&self, step: Keep) -> Reply<KeptPlaces> {
        both!(self, keep, step)
    }

    fn permits(&self, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        self.knows(&id);
        both!(self, permits, id, step, once)
    }

    fn write(&self, step: FencedWrite) -> Reply<Written> {
        both!(self, write, step)
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        both!(self, read, step)
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

impl Drop for Simulated {
    fn drop(&mut self) {
        self.scripts.disconnect(&self.client);
    }
}

/// How long a hold that has no end is there at least, for those that look.
const NO_END: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Looks at the keys from outside, as a client looks at a lock, and changes them for the operator of a world.
pub(crate) struct Looker {
    caller: Caller,
}

impl Looker {
    pub(crate) fn look(&self, id: &LockId, now: Duration, seen: &mut Snapshot) {
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

    fn has_field(&self, id: &LockId, field: Vec<u8>) -> bool {
        let Some(scripts) = self.scripts() else {
            return false;
        };
        let key = id.places_key().to_string().into_bytes();
        let asked = "return redis.call('HEXISTS', KEYS[1], ARGV[1])";
        scripts.look(asked, &[key], &[field]) == Ok(Value::Int(1))
    }

    fn scripts(&self) -> Option<&Arc<Scripts>> {
        self.caller.carrier()?.at_once.as_ref()
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

    /// Gives back the permits of a holder.
    pub(crate) fn give_back(&self, id: &LockId, held: &Held) {
        let release = Release {
            id: id.clone(),
            access: held.access,
            lease: held.lease.into(),
            next: None,
            tombstone_ms: None,
            listening: false,
            holds: None,
        };
        let caller = self.caller.called(&on_wire(&held.client));
        wire(id.kind).release(&caller, release).now_or_never();
    }

    /// Ends a latch.
    pub(crate) fn open(&self, id: &LockId) {
        let once = Once {
            number: LeaseId::from(0),
            keep_ms: 1,
        };
        let deleted = wire(id.kind).permits(&self.caller, id.clone(), Permits::Delete, once);
        deleted.now_or_never();
    }
}
