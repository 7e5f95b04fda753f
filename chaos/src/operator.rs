//! Gives back what the dead have out of semaphores without leases, as those who run such a system must: nothing there ends by
//! itself.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use redis::{Client, Connection, RedisResult, Script};

use crate::kind::Kind;

const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// A server that is stopped or paused must not keep it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// A member of the second key is `<client uuid>:<lease id> <permits>`. Answers who has something out that was not taken back.
const TAKE_BACK: &str = r"
local gone, left, back = {}, {}, 0
for _, client in ipairs(ARGV) do gone[client] = true end
for _, member in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local client, permits = string.match(member, '^([^:]+):%S+ (%d+)$')
  if gone[client] then
    redis.call('ZREM', KEYS[2], member)
    back = back + permits
  else
    table.insert(left, member)
  end
end
if back > 0 then
  redis.call('PUBLISH', KEYS[3], redis.call('INCRBY', KEYS[1], back))
end
return left
";

/// One thread that goes on until it is dropped.
pub(crate) struct Operator {
    gone: Arc<Mutex<BTreeSet<String>>>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Operator {
    /// Looks after the semaphores among these names.
    pub(crate) fn start(url: &str, names: &[String]) -> Operator {
        let gone = Arc::<Mutex<BTreeSet<String>>>::default();
        let (stop, stopped) = mpsc::channel();
        let server = Client::open(url).expect("the url of a server of ours");
        let (names, dead) = (semaphores(names), Arc::clone(&gone));
        let thread = thread::spawn(move || {
            let mut connection = None;
            while stopped.recv_timeout(LOOKS_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                let dead = dead.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if names.is_empty() || dead.is_empty() {
                    continue;
                }
                connection = connection.or_else(|| connect(&server).ok());
                // What was not answered is asked again.
                if let Some(server) = &mut connection
                    && names
                        .iter()
                        .any(|name| take_back(server, name, &dead).is_err())
                {
                    connection = None;
                }
            }
        });
        Operator {
            gone,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// These clients are gone.
    pub(crate) fn hears_of(&self, gone: &BTreeSet<String>) {
        let mut known = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() != gone.len() {
            known.clone_from(gone);
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
    }
}

/// Takes back what these clients have out, at once. Who has something out besides them: `<name>: <owner> <permits>`.
pub(crate) fn take_back_now(
    connection: &mut Connection,
    names: &[String],
    gone: &BTreeSet<String>,
) -> Vec<String> {
    let left = semaphores(names).into_iter().flat_map(|name| {
        let left = take_back(connection, &name, gone).expect("the server answers");
        left.into_iter()
            .map(move |member| format!("{name}: {member}"))
    });
    left.collect()
}

fn semaphores(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.retain(|name| Kind::of(name) == Kind::Semaphore);
    names
}

fn connect(server: &Client) -> RedisResult<Connection> {
    let connection = server.get_connection_with_timeout(ANSWERS_WITHIN)?;
    connection.set_read_timeout(Some(ANSWERS_WITHIN))?;
    Ok(connection)
}

fn take_back(
    connection: &mut Connection,
    name: &str,
    gone: &BTreeSet<String>,
) -> RedisResult<Vec<String>> {
    let out = Kind::Semaphore.permits_out(name).expect("it has permits");
    let script = Script::new(TAKE_BACK);
    let mut call = script.key(name);
    call.key(out).key(format!("redisson_sc:{{{name}}}"));
    for client in gone {
        call.arg(client);
    }
    call.invoke(connection)
}
