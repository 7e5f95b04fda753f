//! As which user a connection logs in: as the settings say, or as the program's provider says it for each connection. A login that ends is
//! renewed before that.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

#[cfg(feature = "redis-1")]
use redis::{ConnectionAddr, ConnectionInfo};
use redis::{ErrorKind, RedisConnectionInfo, RedisError, Value};

#[cfg(feature = "redis-1")]
use super::target::Login;
use super::{
    connect::{DialProgress, NoConnection},
    exchange::{Connection, Exchange, Packed},
    target::Target,
};
#[cfg(feature = "redis-1")]
use crate::error::{Error, Invalid};
use crate::{
    backoff::Backoff,
    credentials::{Credentials, Provider},
    error::Cause,
    user_callback,
};

/// A login is renewed when so much of it has passed, in hundredths.
const RENEWED_AT: u32 = 80;
const RENEWED_AFTER_LEAST: Duration = Duration::from_millis(100);

/// Between attempts to renew a login.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// How long one attempt to renew a login may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The login of one connection.
pub(super) struct FreshLogin {
    pub(super) settings: RedisConnectionInfo,
    pub(super) renew_at: Option<Instant>,
}

impl Target {
    /// By what another library has parsed.
    #[cfg(feature = "redis-1")]
    pub(crate) fn of_info(info: ConnectionInfo, login: &Login) -> Result<Target, Error> {
        #[cfg(feature = "tls")]
        let with_tls = login.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let with_tls = false;
        let scheme = match info.addr() {
            ConnectionAddr::Tcp(..) => "redis",
            ConnectionAddr::Unix(_) => "redis+unix",
            _ => {
                let limit = "an address without TLS, which this library speaks itself";
                return Err(Invalid::new("redis_info", "an address with TLS", limit)
                    .remedy("give the same host as ConnectionAddr::Tcp, and the certificates with tls(Tls::new())")
                    .into());
            }
        };
        Target::of(info, scheme, with_tls, login)
    }

    /// How to log in on a new connection.
    pub(super) async fn login(&self, progress: &DialProgress) -> Result<FreshLogin, NoConnection> {
        let settings = self.info.redis_settings().clone();
        let Some(provider) = &self.provider else {
            return Ok(FreshLogin {
                settings,
                renew_at: None,
            });
        };
        let answer = progress.of_provider(provider.ask()).await;
        let given = answer.map_err(NoConnection::NoCredentials)?;
        let renew_at = renew_at(&given);
        let settings = match &given.username {
            Some(username) => settings.set_username(username),
            None => settings,
        };
        Ok(FreshLogin {
            settings: settings.set_password(&given.password),
            renew_at,
        })
    }

    /// Whether a connection failed by a login that the provider may have given just before it was changed.
    pub(super) fn may_be_outdated<T>(&self, made: &Result<T, NoConnection>) -> bool {
        let is_refused = |error: &RedisError| {
            error.kind() == ErrorKind::AuthenticationFailed || error.code() == Some("WRONGPASS")
        };
        self.provider.is_some()
            && matches!(made, Err(NoConnection::Redis(error)) if is_refused(error))
    }

    /// Renews the login of this connection for as long as it lives, on the runtime that it lives on.
    pub(super) fn keep_logged_in(&self, connection: &Connection, login: &FreshLogin) {
        let (Some(provider), Some(first)) = (self.provider.clone(), login.renew_at) else {
            return;
        };
        let username = self.info.redis_settings().username().map(str::to_owned);
        // A copy of the connection would keep it open for as long as this task is there.
        let (connection, ended) = (connection.borrow(), connection.ended());
        let keeping = keep(provider, username, connection, first, self.to_string());
        tokio::spawn(async move {
            tokio::select! {
                () = ended => {}
                () = keeping => {}
            }
        });
    }
}

/// When a login given just now is to be renewed, if it ends.
fn renew_at(given: &Credentials) -> Option<Instant> {
    // Divided first, since the longest duration cannot be multiplied.
    let most = given.good_for? / 100 * RENEWED_AT;
    // A provider that gives logins which are nearly over must not be asked without a pause.
    Instant::now().checked_add(most.max(RENEWED_AFTER_LEAST))
}

async fn keep(
    provider: Provider,
    username: Option<String>,
    connection: Arc<Exchange>,
    first: Instant,
    server: String,
) {
    let (mut next, mut backoff) = (Some(first), AGAIN);
    while let Some(at) = next {
        tokio::time::sleep_until(at.into()).await;
        let renewing = renew(&provider, username.as_deref(), &connection);
        // Neither the provider nor the connection has a timeout of its own.
        let failed: Cause = match tokio::time::timeout(ATTEMPT, renewing).await {
            Ok(Ok(again)) => {
                next = again;
                backoff.reset();
                user_callback::catch_panic(
                    || tracing::debug!(target: "leasehold", server, "login renewed"),
                );
                continue;
            }
            Ok(Err(cause)) => cause,
            Err(late) => Arc::new(late),
        };
        user_callback::catch_panic(|| {
            tracing::debug!(target: "leasehold", server, cause = %failed, "login not renewed, trying again");
        });
        // The server decides when it has had enough of the old one. A new connection then says what is wrong.
        next = Some(Instant::now() + backoff.next());
    }
}

/// Logs in anew on a connection. When that is to be done again.
async fn renew(
    provider: &Provider,
    username: Option<&str>,
    connection: &Exchange,
) -> Result<Option<Instant>, Cause> {
    let given = provider.ask().await?;
    let again = renew_at(&given);
    let mut auth = redis::cmd("AUTH");
    // Without a user name this writes no argument: `AUTH` with a password alone logs in as `default`.
    auth.arg(given.username.as_deref().or(username))
        .arg(&given.password);
    let answer = connection.ask(Packed::command(&auth)).await;
    match answer
        .map_err(RedisError::from)
        .and_then(Value::extract_error)
    {
        Ok(_) => Ok(again),
        Err(error) => Err(super::failure::in_words(error)),
    }
}
