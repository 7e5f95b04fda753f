//! In a simulation: a connection whose socket and whose turns are the simulation's. All between the two is what users get.

use std::{
    os::fd::AsFd,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::Context,
    time::Duration,
};

use redis::{Pipeline, RedisError, Value};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
};

use super::{Connection, ConnectionOwner, Exchange, Link, Packed, Reader};

/// The answers that a caller gets to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// The answer to its first command.
    First,
    /// The answer to the second of two.
    Second,
    /// All answers.
    All,
}

/// A connection whose reader is polled by hand.
pub struct PlayedConnection {
    /// Until its last owner has left.
    owner: Option<Connection>,
    exchange: Arc<Exchange>,
    /// Until it or its runtime has ended.
    reader: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl PlayedConnection {
    /// So many requests have their answers in one turn.
    pub const PORTION: usize = super::PORTION;
    /// Or as many of those that were sent as it takes this many turns.
    pub const TURNS: usize = super::TURNS;
    /// Behind a request this old all have theirs.
    pub const STALE: Duration = super::STALE;
    /// Also when the reader comes back as late as this.
    pub const AWAY: Duration = super::AWAY;

    /// On the runtime that the caller has entered. It has logged in.
    pub fn new<S>(stream: S) -> PlayedConnection
    where
        S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static,
    {
        let link = Link::new(Box::new(stream) as _);
        let exchange = Arc::new(Exchange::on(link, Handle::current().id()));
        PlayedConnection {
            owner: Some(Connection(Arc::new(ConnectionOwner(Arc::clone(&exchange))))),
            reader: Some(Box::pin(Reader::new(Arc::clone(&exchange)).run())),
            exchange,
        }
    }

    /// Sends by the first poll. An error comes with whether the request was never sent.
    pub fn ask(
        &self,
        form: AnswerForm,
        commands: &Pipeline,
    ) -> impl Future<Output = Result<Value, (RedisError, bool)>> + use<> {
        let exchange = Arc::clone(&self.exchange);
        let packed = match (form, commands.cmd_iter().next()) {
            (AnswerForm::First, Some(command)) => Packed::command(command),
            (AnswerForm::Second, _) => Packed::second(commands),
            _ => Packed::all(commands),
        };
        async move {
            let answer = exchange.ask(packed).await;
            answer.map_err(|none| (none.error, none.is_unsent))
        }
    }

    /// The reader is polled once, unless it has ended. Whether it has, by this.
    pub fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let reader = self.reader.as_mut();
        let is_over = reader.is_none_or(|reader| reader.as_mut().poll(cx).is_ready());
        if is_over {
            self.reader = None;
        }
        is_over
    }

    /// Its runtime ends, and the reader with it.
    pub fn end_runtime(&mut self) {
        self.reader = None;
    }

    /// Its last owner leaves.
    pub fn leave(&mut self) {
        self.owner = None;
    }

    /// An owner ends it.
    pub fn close(&self) {
        if let Some(owner) = &self.owner {
            owner.close();
        }
    }

    /// An owner ends it, and takes back what no caller has read yet.
    pub fn void(&self) {
        if let Some(owner) = &self.owner {
            owner.downgrade().void();
        }
    }

    /// Tells whether it was voided, from anywhere.
    pub fn is_void(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let exchange = Arc::clone(&self.exchange);
        move || exchange.is_void.load(Ordering::Acquire)
    }

    /// So many requests were gathered to be written, and have no answer.
    pub fn sent(&self) -> usize {
        self.exchange.traffic.lock().sent.len()
    }

    /// So many requests it knows of at all.
    pub fn known(&self) -> usize {
        let traffic = self.exchange.traffic.lock();
        traffic.sent.len() + traffic.waiting.len() + traffic.gone.len()
    }
}
