//! How each kind that `#[locked]` knows is asked for.

use std::{any::Any, future::Future, time::Duration};

use futures_util::future::Either;

use super::Demand;
use crate::{Client, Error, Exclusive, Fair, Fenced, Guard, Plain, Read, Spin, Write};

/// The markers of the kinds that `#[locked]` knows.
#[doc(hidden)]
pub trait Lockable: Sized + 'static {
    #[track_caller]
    fn ask(
        client: &Client,
        demand: &Demand,
    ) -> impl Future<Output = Result<Option<Guard<Self>>, Error>> + Send + 'static + use<Self>;

    /// A second guard beside one that a frame has; `None` if that is of another kind.
    fn beside(held: &(dyn Any + Send + Sync)) -> Option<Result<Guard<Self>, Error>> {
        held.downcast_ref::<Guard<Self>>().map(Guard::reenter)
    }
}

macro_rules! lockable {
    ($marker:ident, $make:ident, $lock:ident, $try_for:ident $(, $beside:item)?) => {
        impl Lockable for $marker {
            #[track_caller]
            fn ask(
                client: &Client,
                demand: &Demand,
            ) -> impl Future<Output = Result<Option<Guard<$marker>>, Error>> + Send + 'static + use<>
            {
                let mut lock = client.$make(&demand.name);
                if let Some(lease) = demand.lease {
                    lock = lock.lease(lease);
                }
                if let Some(lease) = demand.fixed_lease {
                    lock = lock.fixed_lease(lease);
                }
                if let Some(most) = demand.max_hold {
                    lock = lock.max_hold(most);
                }
                match demand.wait {
                    Some(wait) => Either::Left(lock.$try_for(wait)),
                    None => {
                        Either::Right(futures_util::TryFutureExt::map_ok(lock.$lock(), Some))
                    }
                }
            }
            $($beside)?
        }
    };
}

/// The kinds whose work may run once per interval.
#[doc(hidden)]
pub trait OncePer: Lockable {
    #[track_caller]
    fn once<F: Future>(
        client: &Client,
        name: &str,
        interval: Duration,
        work: F,
    ) -> impl Future<Output = Result<Option<F::Output>, Error>> + use<Self, F>;
}

macro_rules! once_per {
    ($($marker:ident $make:ident;)*) => {
        $(impl OncePer for $marker {
            #[track_caller]
            fn once<F: Future>(
                client: &Client,
                name: &str,
                interval: Duration,
                work: F,
            ) -> impl Future<Output = Result<Option<F::Output>, Error>> + use<F> {
                client.$make(name).run_once_per(interval, work)
            }
        })*
    };
}
once_per!(Exclusive mutex; Fenced fenced_mutex; Plain plain_mutex;);

lockable!(Exclusive, mutex, lock, try_lock_for);
lockable!(Fenced, fenced_mutex, lock, try_lock_for);
lockable!(Fair, fair_mutex, lock, try_lock_for);
lockable!(Plain, plain_mutex, lock, try_lock_for);
lockable!(Spin, spin_mutex, lock, try_lock_for);
lockable!(Write, rw_lock, write, try_write_for);
lockable!(
    Read,
    rw_lock,
    read,
    try_read_for,
    // A call that writes may read, too.
    fn beside(held: &(dyn Any + Send + Sync)) -> Option<Result<Guard<Read>, Error>> {
        let reads = held.downcast_ref::<Guard<Read>>().map(Guard::reenter);
        reads.or_else(|| held.downcast_ref::<Guard<Write>>().map(Guard::read))
    }
);
