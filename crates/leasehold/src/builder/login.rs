//! How the client reaches the server and logs in, beyond what a URL says.

use super::ClientBuilder;
#[cfg(feature = "redis-1")]
use crate::backend::redis::ConnectionInfo;
use crate::{
    CredentialsProvider, Error,
    backend::redis::{GivenServer, Login},
    connection::ConnectionSettings,
    credentials::Provider,
};

impl ClientBuilder {
    /// Asks this for the login of each connection, in place of the URL's and of [`password`](ClientBuilder::password): for passwords that
    /// change, and tokens that end.
    ///
    /// The provider is asked whenever a connection is made, and nothing of its answers is kept but for that connection. If they are
    /// [good for](crate::Credentials::good_for) a time, it is asked again when 80 % of it have passed. Connections for commands then send
    /// `AUTH`, and the one for wake-ups is replaced by a new one, so that the server need close none. The server may refuse a login that
    /// was changed after the provider gave it. The provider is then asked once more, at once.
    ///
    /// A provider that fails, or does not answer within the [`connect_timeout`](ClientBuilder::connect_timeout), is as a server that cannot
    /// be reached. `connect()` and `try_lock()` fail with [`Error::NotSent`], which has the provider's words; `lock()` waits,
    /// and the provider is asked again. A provider that fails when a login is to be renewed costs nothing as long as the server keeps the
    /// old login. A provider that panics has failed.
    ///
    /// It is polled on the runtime that makes the connection, and on the thread that renews leases: **it must not block**. Its future is
    /// dropped if the connect timeout ends first. It is not asked for a client of `memory:`.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # async fn signed_token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// use std::time::Duration;
    /// use leasehold::{Client, Credentials};
    ///
    /// let provider = || async {
    ///     let token = signed_token().await?; // such as one of IAM
    ///     Ok::<_, std::io::Error>(Credentials::new("orders", token).good_for(Duration::from_secs(900)))
    /// };
    /// let client = Client::builder().url("rediss://cache.internal/").credentials(provider).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `Config#setCredentialsResolver`; Lettuce `RedisCredentialsProvider`.
    #[doc(alias("CredentialsResolver", "setCredentialsResolver"))]
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.login.provider = Some(Provider::new(provider));
        self
    }

    /// How TCP connections are set up, and which protocol is spoken; [`ConnectionSettings`] has the choices and their defaults. Values that the
    /// kernel does not take are refused when the client connects.
    pub fn connection(mut self, settings: ConnectionSettings) -> Self {
        self.login.connection = settings;
        self
    }

    /// Where the server is, and how to log in, as the crate `redis` has it: in place of a URL. Feature `redis-1`.
    ///
    /// Its address, user, password, database and protocol are used; of its TCP settings none, for which there is
    /// [`connection`](ClientBuilder::connection). An address with TLS is refused when the client connects: this library speaks TLS itself, to an
    /// address without it, if there are settings for `tls`.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use redis::IntoConnectionInfo;
    ///
    /// let info = "redis://cache.internal/3".into_connection_info()?;
    /// let client = Client::builder().redis_info(info).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    #[cfg(feature = "redis-1")]
    pub fn redis_info(mut self, info: ConnectionInfo) -> Self {
        self.login.info = Some(info);
        self
    }
}

/// Whether a server is named there, in place of a URL.
pub(super) fn names_server(login: &Login) -> bool {
    #[cfg(feature = "redis-1")]
    let names = login.info.is_some();
    #[cfg(not(feature = "redis-1"))]
    let names = {
        let _ = login;
        false
    };
    names
}

/// The server that was named, or the default one.
pub(super) fn server(url: Option<&str>, login: &Login) -> Result<GivenServer, Error> {
    #[cfg(feature = "redis-1")]
    if let Some(info) = &login.info {
        if url.is_some() {
            let limit = "the only place that names the server";
            let invalid = crate::Invalid::new("redis_info", "given beside a URL", limit);
            return Err(invalid.remedy("leave the URL out").into());
        }
        return GivenServer::of_info(info.clone(), login);
    }
    GivenServer::parse(url.unwrap_or(super::DEFAULT_URL), login)
}
