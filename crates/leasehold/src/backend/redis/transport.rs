//! In a simulation: what takes the place of a client's connections.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, Value};

use super::{
    failure::{classify, in_words},
    script::{Call, unexpected},
};
use crate::backend::{
    Failure, Reply,
    simulated::{
        request::{Step, step},
        scripts::Scripts,
    },
};

/// Takes the place of a client's connections: its requests wait here until they are sent.
#[derive(Clone)]
pub(super) struct Transport {
    pub(super) steps: Arc<Mutex<Vec<Box<dyn Step>>>>,
    /// They are carried out at once, for a look from outside.
    pub(super) at_once: Option<Arc<Scripts>>,
}

impl Transport {
    /// A call of a script.
    pub(super) fn call<T: Clone + std::fmt::Debug + Send + 'static>(
        &self,
        call: &Call,
        read: impl Fn(&Value) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        let (script, mut keys) = call.parts();
        let args = keys.split_off(call.keys().count());
        let transport = self.clone();
        Box::pin(async move {
            let answer = transport.carry(move |scripts| {
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
        let (step, answer) = step(move |_, scripts| {
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

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}
