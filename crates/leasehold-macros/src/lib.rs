//! The attribute of [leasehold](https://docs.rs/leasehold), which hands it on as `leasehold::locked`.
//!
//! `parse` reads what stands in the brackets, and tells what is wrong at its token. `expand` writes the function that locks. All that
//! can be done without tokens is in `leasehold::attribute`, which the written function calls.

mod expand;
mod params;
mod parse;

use proc_macro::TokenStream;

/// Above a function, `#[locked(name, options)]` takes the lock of that name before its body runs, and gives it back when it returns.
///
/// The name is written as for `format!`: a text, and the values for its braces. Options follow:
///
/// | option | | left out |
/// |---|---|---|
/// | `wait = "5s"` | waits up to that for the lock; `"0s"` asks once | as long as it takes |
/// | `lease = "15s"` | the length of the lease, which is renewed while the function runs | the client's |
/// | `fixed_lease = "15s"` | a lease that is not renewed | it is renewed |
/// | `max_hold = "10m"` | an end to the renewals | none |
/// | `kind = fenced` | `mutex`, `fenced`, `fair`, `read`, `write`, `plain`, `spin` | `mutex` |
/// | `client = self.locks` | the client: a `Client`, or what derefs to one (of a `blocking::Client` it is `Client::from(…)`) | that of `client.scope(future)` around the call, else that of `leasehold::set_global(client)` |
/// | `guard = g` | the body's name for its guard, a `&Guard`: `g.token()`, `g.ensure(d)` | |
/// | `busy = expression` | what the function returns when `wait` is over, or the name is taken for its interval | `Error::Busy`, as every failure |
/// | `failed = \|error\| …` | what the function returns when the lock fails | `Err(error.into())` |
/// | `reentrant` | enters a name that a `#[locked]` function around it holds | `Error::Reentered` |
/// | `once_per = "1h"` | at most once in this time, among all processes: `run_once_per` | |
/// | `blocking` | for a plain `fn`, which blocks its thread | for an `async fn` |
///
/// Times are a text with a unit (`"200ms"`, `"5s"`, `"1h 30m"`), or an expression of type `Duration`. A text that is no time
/// is refused where it stands, when the program is compiled; a time that is too short or too long, when the function is called.
///
/// # Errors
/// The function's return type says them: a `Result` whose error is made `From<leasehold::Error>`. Else say `failed`. The body was not
/// begun, except with `Lost`:
/// - `Error::Busy`: `wait` was over, and another held the name.
/// - `Error::Reentered`: a `#[locked]` function around this call holds the name; it says where. Without this answer the call would wait for itself.
/// - `Error::Lost`: the lease was lost in the middle. The body was dropped at an `.await`, as [`Guard::run`] does; do not conclude that
///   nothing of it happened.
/// - `Error::Invalid`: there is no client, or the name or a time is not valid; nothing was sent.
/// - Any other, as `Mutex::lock`.
///
/// A lost lease drops the arguments with the body, so `failed`, and `busy` beside `once_per`, can only use those that it may copy; references are.
/// Under `#[async_trait]` take plain arguments: the names within a pattern are not known to the name of the lock there.
///
/// # Calls inside calls
/// A call on a name that a `#[locked]` call around it holds, by the same client, is refused at once; with `reentrant` on the inner function it enters.
/// The nesting of calls counts, not the task. So the branches of a `join!` exclude each other; but under one holder,
/// branches that say `reentrant` are inside together, as their holder is. A task that is spawned inside is on its own: it waits for the
/// name, and if the function waits for the task, both wait for ever. Inside of `Owner::scope` all calls are of the scope's owner: there
/// siblings enter together, as all re-entry by that owner does.
///
/// # Transactions
/// The lock is given back when the function returns. A transaction that came in as `&mut` is committed later, by the caller: then the
/// next holder does not see what was written. Begin and commit inside of the function.
///
/// # Cancel safety
/// Dropping the future of the call drops the body where it stands, and gives the lock back in the background. The arguments are dropped while
/// the lock is held; those parts of one that a pattern binds to no name are dropped after it.
///
/// # Other attributes
/// It works on methods with any `self`, on generic functions, on axum's handlers, and inside of `#[async_trait]` and tonic's services. An attribute above it sees a plain
/// `async fn`. The signature stays as it is.
///
/// [`Guard::run`]: https://docs.rs/leasehold/latest/leasehold/struct.Guard.html#method.run
#[proc_macro_attribute]
pub fn locked(options: TokenStream, function: TokenStream) -> TokenStream {
    expand::locked(options.into(), &function.into()).into()
}
