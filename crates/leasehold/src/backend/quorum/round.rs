//! An ask of several servers at once, each with the same time to answer. A step ends its round as soon as the words that it has decide. Until
//! then a server that does not answer is waited for; once a majority has answered, no longer than servers as near as those may need.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use super::servers::Servers;
use crate::{
    backend::{Failure, Reply},
    clock::Tick,
    error::Cause,
};

/// How often a server that owes an answer is asked whether it has lost its connection.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Once a majority has answered, the others are waited for so long in all, or twice as long as the majority took.
const STRAGGLERS: Duration = Duration::from_millis(200);

/// A server's answer, or why there is none.
pub(super) enum ServerReply<T> {
    Answer(T),
    Failed(Failure),
    /// Nothing in its time; what it says later is still worth hearing.
    Silent(Cause),
    /// The request waits for a connection.
    Waits(Cause),
}

type Replies<T> = FuturesUnordered<BoxFuture<'static, (usize, Result<T, Failure>)>>;

/// The answers that are still to come.
pub(super) struct Round<T> {
    servers: Arc<Servers>,
    replies: Replies<T>,
    /// The servers that may still answer in time.
    waited_for: Vec<usize>,
    /// The servers that had no connection when they were asked.
    unreached: Vec<usize>,
    /// So many have answered.
    answered: usize,
    began: Tick,
    /// How long a server may take.
    timeout: Duration,
    /// The end of that, or an earlier one since a majority has answered.
    until: Tick,
    check: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<T: Send + 'static> Round<T> {
    pub(super) fn new(servers: &Arc<Servers>, timeout: Duration) -> Round<T> {
        let began = servers.clock.now();
        Round {
            servers: Arc::clone(servers),
            replies: FuturesUnordered::new(),
            waited_for: Vec::with_capacity(servers.len()),
            unreached: Vec::new(),
            answered: 0,
            began,
            timeout,
            until: began.after(timeout),
            check: Box::pin(servers.background.sleep(CHECK_EVERY.min(timeout))),
        }
    }

    /// It is sent with the first wait for answers.
    pub(super) fn ask(&mut self, at: usize, reply: Reply<T>) {
        self.waited_for.push(at);
        if self.servers.at(at).backend.trouble().is_some() {
            self.unreached.push(at);
        }
        self.replies
            .push(Box::pin(async move { (at, reply.await) }));
    }

    /// The next word of a server. `None`: each has said something, or its time is up.
    pub(super) async fn next(&mut self) -> Option<(usize, ServerReply<T>)> {
        loop {
            if self.waited_for.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                Some((at, answer)) = self.replies.next() => {
                    self.waited_for.retain(|it| *it != at);
                    return Some((at, self.heard(at, answer)));
                }
                () = &mut self.check => {
                    let now = self.servers.clock.now();
                    let left = self.until.since(now);
                    self.check = Box::pin(self.servers.background.sleep(CHECK_EVERY.min(left)));
                    // A single server each time: the next checks find the others, and come at once when the time is up.
                    if let Some((at, said)) = self.gone(left.is_zero()) {
                        self.waited_for.retain(|it| *it != at);
                        return Some((at, said));
                    }
                }
            }
        }
    }

    fn heard(&mut self, at: usize, answer: Result<T, Failure>) -> ServerReply<T> {
        // A server that refuses is no good coordinator either.
        self.servers.note_silent(at, answer.is_err());
        self.answered += usize::from(answer.is_ok());
        // Once, at the answer that makes the majority: how long that took says how near the servers are.
        if self.answered == self.servers.need() {
            let took = self.servers.clock.now().since(self.began);
            let enough = self.began.after(STRAGGLERS.max(took * 2));
            self.until = self.until.min(enough);
        }
        match answer {
            Ok(answer) => ServerReply::Answer(answer),
            Err(failure) => ServerReply::Failed(failure),
        }
    }

    /// A server that is not waited for any more.
    fn gone(&self, is_late: bool) -> Option<(usize, ServerReply<T>)> {
        if is_late {
            let at = *self.waited_for.first()?;
            self.servers.note_silent(at, true);
            let waited = self.servers.clock.now().since(self.began);
            let cause = self.servers.no_answer(at, waited, self.timeout);
            return Some((at, ServerReply::Silent(cause)));
        }
        let mut waited_for = self.waited_for.iter();
        waited_for.find_map(|&at| {
            let cause = self.servers.at(at).backend.trouble()?;
            // Else the request may have left on a connection that was given up since (bug 328).
            let waits = self.unreached.contains(&at);
            let said = if waits {
                ServerReply::Waits
            } else {
                ServerReply::Silent
            };
            Some((at, said(cause)))
        })
    }

    /// Sends it now, and hears the answers in the background.
    pub(super) fn begin(
        mut self,
        mut heard: impl FnMut(usize, Result<T, Failure>) + Send + 'static,
    ) {
        // Polled once here, which sends the requests. The task below polls them again, with a waker of its own.
        while let Some(Some((at, answer))) = self.replies.next().now_or_never() {
            self.servers.note_silent(at, answer.is_err());
            heard(at, answer);
        }
        self.rest(heard);
    }

    /// Hears the rest in the background.
    pub(super) fn rest(self, mut heard: impl FnMut(usize, Result<T, Failure>) + Send + 'static) {
        let Round {
            servers,
            mut replies,
            began,
            ..
        } = self;
        if replies.is_empty() {
            return;
        }
        let background = servers.background.clone();
        // Not dropped with the round: only the answers say what these servers have of the lease id (QB5).
        drop(background.handle().spawn(async move {
            while let Some((at, answer)) = replies.next().await {
                if answer.is_ok() {
                    servers.note_silent(at, false);
                    servers.note_late(at, servers.clock.now().since(began));
                }
                heard(at, answer);
            }
        }));
    }
}

/// Why too few have answered: whether anything may have been carried out, and what each has said.
#[derive(Default)]
pub(super) struct Failures {
    /// The latest word of each server, and whether it is final.
    causes: Vec<(usize, Cause, bool)>,
    is_ambiguous: bool,
}

impl Failures {
    pub(super) fn note<T>(&mut self, at: usize, said: &ServerReply<T>) {
        let (cause, is_final) = match said {
            ServerReply::Answer(_) => return,
            ServerReply::Waits(cause) => (cause, false),
            ServerReply::Silent(cause) => {
                self.is_ambiguous = true;
                (cause, false)
            }
            ServerReply::Failed(failure) => {
                self.is_ambiguous |= failure.is_ambiguous();
                (failure.cause(), failure.is_final())
            }
        };
        // Replaces its earlier word: a server that refuses in each round is one that refuses (bug 306).
        self.causes.retain(|(it, ..)| *it != at);
        self.causes.push((at, Arc::clone(cause), is_final));
    }

    /// The failure of the whole.
    pub(super) fn failure(&self, servers: &Servers) -> Failure {
        let rejected = || self.causes.iter().filter(|(.., is_final)| *is_final);
        if rejected().count() > servers.spare()
            && let Some((_, cause, _)) = rejected().next_back()
        {
            return Failure::Rejected(Arc::clone(cause));
        }
        let of = |at| {
            let mut causes = self.causes.iter();
            causes.find_map(|(it, cause, _)| (*it == at).then(|| Arc::clone(cause)))
        };
        // Ambiguous if a single server may have carried it out: the name may be taken there until that is given back.
        let cause = servers.no_majority(of);
        if self.is_ambiguous {
            Failure::Ambiguous(cause)
        } else {
            Failure::NotSent(cause)
        }
    }
}
