//! Functions that the code of `#[locked(…, blocking)]` calls.

use std::time::Duration;

use super::{
    Client,
    wait::{on_this_runtime, wait},
};
use crate::{
    Error,
    attribute::{self, Demand, Entered, Lockable, OncePer, client_of},
};

/// The client of a call, which its request names from here on.
fn client(demand: &mut Demand) -> Result<Client, Error> {
    let client = client_of(demand.client.take())?;
    demand.client = Some(client.clone());
    Ok(Client::from(client))
}

/// Waits for the lock.
#[doc(hidden)]
#[track_caller]
pub fn enter<K: Lockable>(mut demand: Demand) -> Result<Entered<K>, Error> {
    let client = client(&mut demand)?;
    wait(&client.background, attribute::enter(demand))?
}

/// Runs the body on this thread.
#[doc(hidden)]
pub fn run<K: Lockable, T>(entered: &Entered<K>, body: impl FnOnce() -> T) -> T {
    entered.run_blocking(body)
}

/// Gives the lock back. A thread is not stopped by a loss, so it is told here.
#[doc(hidden)]
pub fn leave<K: Lockable, T>(entered: Entered<K>, output: T) -> Result<T, Error> {
    // Work whose lease has ended meanwhile may not have been alone: its output does not count.
    entered.guard().ensure(Duration::ZERO)?;
    let client = Client::from(entered.client().clone());
    wait(&client.background, entered.leave(Ok(output)))?
}

/// Runs `work` on this thread at most once per interval.
#[doc(hidden)]
#[track_caller]
pub fn once<K: OncePer, T>(
    mut demand: Demand,
    interval: Duration,
    work: impl FnOnce() -> T,
) -> Result<T, Error> {
    let client = client(&mut demand)?;
    wait(
        &client.background,
        attribute::once::<K, _>(demand, interval, on_this_runtime(work)),
    )?
}
