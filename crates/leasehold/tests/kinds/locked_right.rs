//! Right uses of `#[locked]`: that they compile is most of the test. Lints are errors, so the bodies' are as without it.
#![deny(warnings, clippy::pedantic)]

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use leasehold::{Client, Error, FencedMutexGuard, Guard, ReadGuard, locked};

use crate::common::World;

// 1: a plain name, and the error of another crate.
#[locked("right")]
async fn plain() -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
    let read: u8 = "1".parse()?;
    Ok(read)
}

// 2: every option that has a value, with expressions.
const LEASE: Duration = Duration::from_secs(9);

#[locked(
    "right:{}:{id:>04}:{tenant}",
    owner.len(),
    tenant = "a",
    wait = LEASE / 3,
    lease = LEASE,
    max_hold = "1h 30m",
    kind = mutex,
    reentrant,
    guard = g,
    busy = Ok(None),
    failed = |error| Err(error.to_string()),
)]
async fn options(id: u32, owner: &str) -> Result<Option<String>, String> {
    let held: &Guard = g;
    Ok(Some(format!("{owner} {}", held.name())))
}

// 3: patterns and `mut`.
struct Json<T>(T);
struct Order {
    id: u64,
    lines: Vec<u64>,
}

#[locked("right:{id}", wait = "5s")]
async fn patterns(
    Json(Order { id, mut lines }): Json<Order>,
    (mut sum, _rest): (u64, u64),
    ref count @ (_, by): (u64, u64),
    _: String,
) -> Result<u64, Error> {
    lines.push(count.0 * by);
    for line in lines {
        sum += line;
    }
    Ok(sum)
}

// 4: generics, lifetimes, `impl Trait` in and out, a `where`.
#[locked("right:{}", key.as_ref())]
async fn generic<'a, T, const N: usize>(
    key: T,
    all: &'a [u64; N],
    also: impl IntoIterator<Item = u64>,
) -> Result<impl fmt::Display, Error>
where
    T: AsRef<str> + Clone,
{
    let first: &'a u64 = &all[0];
    let sum: u64 = all.iter().copied().chain(also).sum();
    Ok(format!("{} {sum} {first}", key.clone().as_ref()))
}

// 5: a borrowed result, and coercions at the tail and at `return`.
#[locked("right:{text}")]
async fn borrowed(text: &String) -> Result<&str, Error> {
    if text.is_empty() {
        return Ok(text);
    }
    Ok(text)
}

#[locked("right", wait = "5s")]
async fn boxed(which: bool) -> Result<Box<dyn fmt::Display + Send>, Error> {
    if which {
        return Ok(Box::new(1));
    }
    Ok(Box::new("text"))
}

// 6: each kind.
#[locked("right:fenced", kind = fenced, guard = g)]
async fn fenced() -> Result<u64, Error> {
    let held: &FencedMutexGuard = g;
    Ok(held.token())
}

#[locked("right:fair", kind = fair)]
async fn fair() -> Result<(), Error> {
    Ok(())
}

#[locked("right:rw", kind = read, guard = g)]
async fn read() -> Result<bool, Error> {
    let held: &ReadGuard = g;
    Ok(held.is_valid())
}

#[locked("right:rw", kind = write)]
async fn write() -> Result<(), Error> {
    Ok(())
}

#[locked("right:plain", kind = plain, fixed_lease = "15s")]
async fn plain_kind() -> Result<(), Error> {
    Ok(())
}

#[locked("right:spin", kind = spin)]
async fn spin() -> Result<(), Error> {
    Ok(())
}

// 7: no `Result`, but an answer to failures.
#[locked("right", failed = drop)]
async fn unit() {}

#[locked("right", wait = "0s", busy = None, failed = |_| None)]
async fn option(value: u32) -> Option<u32> {
    (value > 0).then_some(value)
}

// 8: methods with any `self`.
#[derive(Clone)]
struct Service {
    locks: Client,
    tenant: String,
    done: u32,
}

impl Service {
    #[locked("right:{}", self.tenant, client = self.locks)]
    async fn by_ref(&self) -> Result<u32, Error> {
        Ok(self.done)
    }

    #[locked("right:{}:{by}", self.tenant, client = self.locks)]
    async fn by_mut(&mut self, by: u32) -> Result<&u32, Error> {
        self.done += by;
        Ok(&self.done)
    }

    #[locked("right:{}", self.tenant, client = &self.locks)]
    async fn by_value(mut self) -> Result<u32, Error> {
        self.done += 1;
        Ok(self.done)
    }

    #[locked("right:{}", self.tenant, client = self.locks)]
    async fn by_arc(self: Arc<Self>) -> Result<u32, Error> {
        Ok(self.done)
    }

    #[locked("right:{}", self.tenant, client = self.locks)]
    async fn by_pin(self: Pin<&mut Self>) -> Result<u32, Error> {
        Ok(self.done)
    }
}

// 9: arguments with our names, and a body with them.
#[locked("right:{guard}:{entered}", wait = "5s")]
async fn names(guard: u32, entered: u32, output: u32, error: u32) -> Result<u32, Error> {
    let frame = guard + entered;
    Ok(frame + output + error)
}

// 10: under and above other attributes, and in a trait of one's own.
trait Named {
    async fn named(&self) -> Result<u32, Error>;
}

impl Named for Service {
    #[locked("right:named", client = self.locks)]
    async fn named(&self) -> Result<u32, Error> {
        Ok(self.done)
    }
}

/// A documented one.
#[locked("right")]
#[allow(clippy::unused_async)]
#[must_use = "a reason"]
async fn attributes() -> Result<u32, Error> {
    Ok(1)
}

// 11: an error of its own, and `?` on another error.
#[derive(Debug)]
enum Mine {
    Lock(Error),
    Parse(std::num::ParseIntError),
}

impl From<Error> for Mine {
    fn from(error: Error) -> Self {
        Mine::Lock(error)
    }
}

impl From<std::num::ParseIntError> for Mine {
    fn from(error: std::num::ParseIntError) -> Self {
        Mine::Parse(error)
    }
}

type Answer<T> = Result<T, Mine>;

#[locked("right")]
async fn own_error(text: &str) -> Answer<u32> {
    Ok(text.parse()?)
}

// 12: a constant as the name, braces that are doubled, a body that never returns by itself.
const NAME: &str = "right:constant";

#[locked("{NAME}")]
async fn constant() -> Result<(), Error> {
    Ok(())
}

#[locked("{{right}}:{}", NAME)]
async fn braces() -> Result<u32, Error> {
    loop {
        if NAME.len() > 1 {
            break Ok(1);
        }
    }
}

#[locked("right")]
async fn diverges() -> Result<u32, Error> {
    tokio::task::yield_now().await;
    return Ok(1);
}

#[locked("right:{b}")]
async fn argument_that_is_not_there(#[cfg(any())] a: u32, b: u32) -> Result<u32, Error> {
    Ok(b)
}

#[locked("right:{id:0w$}", w = 8)]
async fn width(id: u32) -> Result<u32, Error> {
    Ok(id)
}

#[locked("right:{}", r#type)]
async fn raw(r#type: u32) -> Result<(), Error> {
    Ok(())
}

#[expect(clippy::diverging_sub_expression, reason = "nothing else can be said")]
#[locked("right", failed = |error| panic!("{error}"))]
async fn never() -> ! {
    loop {
        tokio::task::yield_now().await;
    }
}

macro_rules! timed {
    ($wait:expr) => {
        #[locked("right", wait = $wait)]
        async fn timed() -> Result<u32, Error> {
            Ok(1)
        }
    };
}
timed!("5s");

#[tokio::test]
async fn right_uses_compile_and_run() {
    let client = World::all().swap_remove(0).client().await;
    let service = Service {
        locks: client.clone(),
        tenant: "a".to_owned(),
        done: 1,
    };
    let all = async move {
        assert_eq!(plain().await.unwrap(), 1);
        let said = options(7, "me").await.unwrap();
        assert_eq!(said.unwrap(), "me right:2:0007:a");
        let order = Order {
            id: 1,
            lines: vec![1],
        };
        let sum = patterns(Json(order), (1, 0), (2, 3), String::new()).await;
        assert_eq!(sum.unwrap(), 8);
        let said = generic("key", &[1, 2], [3]).await.unwrap();
        assert_eq!(said.to_string(), "key 6 1");
        assert_eq!(borrowed(&"text".to_owned()).await.unwrap(), "text");
        assert_eq!(boxed(true).await.unwrap().to_string(), "1");
        assert_eq!(boxed(false).await.unwrap().to_string(), "text");
        assert!(fenced().await.unwrap() > 0);
        fair().await.unwrap();
        assert!(read().await.unwrap());
        write().await.unwrap();
        plain_kind().await.unwrap();
        spin().await.unwrap();
        unit().await;
        assert_eq!(option(3).await, Some(3));
        assert_eq!(service.by_ref().await.unwrap(), 1);
        assert_eq!(*service.clone().by_mut(2).await.unwrap(), 3);
        assert_eq!(service.clone().by_value().await.unwrap(), 2);
        assert_eq!(Arc::new(service.clone()).by_arc().await.unwrap(), 1);
        assert_eq!(Pin::new(&mut service.clone()).by_pin().await.unwrap(), 1);
        assert_eq!(service.named().await.unwrap(), 1);
        assert_eq!(names(1, 2, 3, 4).await.unwrap(), 10);
        assert_eq!(attributes().await.unwrap(), 1);
        assert_eq!(own_error("5").await.unwrap(), 5);
        let wrong = own_error("x").await.unwrap_err();
        let Mine::Parse(wrong) = wrong else {
            panic!("{wrong:?}");
        };
        assert!(wrong.to_string().contains("digit"));
        constant().await.unwrap();
        assert_eq!(braces().await.unwrap(), 1);
        assert_eq!(diverges().await.unwrap(), 1);
        assert_eq!(argument_that_is_not_there(2).await.unwrap(), 2);
        assert_eq!(width(3).await.unwrap(), 3);
        raw(4).await.unwrap();
        assert_eq!(timed().await.unwrap(), 1);
        drop(never());
    };
    // A future of these goes to another thread.
    let scoped = client.clone();
    tokio::spawn(async move { scoped.scope(all).await })
        .await
        .unwrap();
    let none = own_error("5").await.unwrap_err();
    assert!(matches!(none, Mine::Lock(Error::Invalid(_))), "{none:?}");
}

/// Bodies that are clean without it, under the strictest lints.
#[deny(clippy::nursery)]
mod strict {
    use leasehold::{Client, Error, FencedMutexGuard, locked};

    // 30: items before all statements.
    #[locked("right:{id}", client = client, guard = guard, kind = fenced)]
    pub(super) async fn with_items(client: Client, id: u32) -> Result<u64, Error> {
        const STEP: u64 = 2;
        use std::convert::identity;
        const fn twice(number: u64) -> u64 {
            number.saturating_mul(STEP)
        }

        let held: &FencedMutexGuard = guard;
        Ok(identity(twice(u64::from(id)).min(held.token())))
    }

    // 31: and in a method, of a result that is nothing.
    pub(super) struct Shop {
        pub(super) locks: Client,
    }

    impl Shop {
        #[locked("right", client = self.locks, busy = Ok(()), wait = "1s")]
        pub(super) async fn closes(&self) -> Result<(), Error> {
            const CLOSED: &str = "closed";
            assert_eq!(CLOSED.len(), 6);
            Ok(())
        }
    }
}

#[tokio::test]
async fn items_of_a_body_stay_in_front() {
    let client = Client::connect("memory:").await.unwrap();
    assert_eq!(strict::with_items(client.clone(), 21).await.unwrap(), 42);
    strict::Shop { locks: client }.closes().await.unwrap();
}
