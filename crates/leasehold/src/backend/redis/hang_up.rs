//! A proxy that hangs up at commands that it does not know, as twemproxy does. Its hang-ups look like those of a server that ends, or of one
//! that wants TLS.

use std::{
    collections::VecDeque,
    io::ErrorKind,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    connect::{DialProgress, NoConnection},
    link::Socket,
    target::Target,
};

/// Of the commands with which a connection begins, one of each sort. All of them only read.
const QUESTIONS: [&[&str]; 5] = [
    &["HELLO"],
    &["CLIENT", "GETNAME"],
    &["CLUSTER", "MYID"],
    &["INFO", "server"],
    &["SELECT", "0"],
];

/// How long to look for the command.
const SEARCH: Duration = Duration::from_millis(500);

/// How often, at one address: a server that is away is dialled again and again, and is not to be asked twice as often for this.
const SEARCH_EVERY: Duration = Duration::from_secs(60);

/// Where a search was made last, and when.
static SEARCHED: Mutex<VecDeque<(String, Instant)>> = Mutex::new(VecDeque::new());

/// So many addresses are remembered.
const REMEMBERED: usize = 64;

fn may_search(address: String) -> bool {
    let mut searched = SEARCHED.lock();
    searched.retain(|(_, at)| at.elapsed() < SEARCH_EVERY);
    if searched.len() >= REMEMBERED || searched.iter().any(|(there, _)| *there == address) {
        return false;
    }
    searched.push_back((address, Instant::now()));
    true
}

impl Target {
    /// Whether a connection that was closed in the handshake was closed at a command, by something that answers others.
    pub(super) async fn why_hung_up(&self, progress: &DialProgress) -> Option<NoConnection> {
        if !may_search(format!("{:?}", self.address())) {
            return None;
        }
        timeout(SEARCH, self.refused_command(progress))
            .await
            .ok()?
            .map(NoConnection::HangsUpAt)
    }

    /// Each is asked on a connection of its own: so it is the command, and not how many there were.
    async fn refused_command(&self, progress: &DialProgress) -> Option<&'static str> {
        // If `PING` has no answer either, the server is down, or there is none: no single command is to blame.
        if !self.answers(&["PING"], progress).await? {
            return None;
        }
        for question in QUESTIONS {
            if !self.answers(question, progress).await? {
                return Some(question[0]);
            }
        }
        None
    }

    /// Whether this has an answer; `false`: the connection is closed without one.
    async fn answers(&self, command: &[&str], progress: &DialProgress) -> Option<bool> {
        #[cfg(feature = "tls")]
        let mut stream: Box<dyn Socket> = match &self.tls {
            Some(tls) => Box::new(self.shake_hands(tls, progress).await.ok()?),
            None => self.plain().await.ok()?,
        };
        #[cfg(not(feature = "tls"))]
        let mut stream: Box<dyn Socket> = {
            let _ = progress;
            self.plain().await.ok()?
        };
        // Without a login: a server that asks for one has answered, too.
        let packed = redis::Cmd::new().arg(command).get_packed_command();
        stream.write_all(&packed).await.ok()?;
        match stream.read_u8().await {
            Ok(_) => Some(true),
            Err(error) => matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
            )
            .then_some(false),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the server answers PING and closes the connection at {0}, as proxies do that know only some commands, such as twemproxy; connect to the server behind it"
)]
pub(super) struct HangsUpAt(pub(super) &'static str);
