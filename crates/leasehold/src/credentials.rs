//! Logins that end: who gives them, and what they are.

use std::{error::Error as StdError, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use crate::{error::Cause, user_callback};

/// A login for the server, for [`ClientBuilder::credentials`](crate::ClientBuilder::credentials). Its `Debug` shows no password.
#[derive(Clone)]
#[must_use = "give it to the client, as the answer of a CredentialsProvider"]
pub struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: String,
    pub(crate) good_for: Option<Duration>,
}

impl Credentials {
    /// A password, for the user of the URL or of [`username`](crate::ClientBuilder::username), else for the server's default user.
    pub fn password(password: impl Into<String>) -> Credentials {
        Credentials {
            username: None,
            password: password.into(),
            good_for: None,
        }
    }

    /// A user and its password.
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials {
            username: Some(username.into()),
            ..Credentials::password(password)
        }
    }

    /// How long they are good for, from the answer of the provider on. The client logs in anew when 80 % of it have passed, at the earliest
    /// after 100 ms. Default: until the connection ends.
    pub fn good_for(mut self, time: Duration) -> Credentials {
        self.good_for = Some(time);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .field("good_for", &self.good_for)
            .finish_non_exhaustive()
    }
}

/// Gives the login for each connection; see [`ClientBuilder::credentials`](crate::ClientBuilder::credentials).
///
/// Any `Fn() -> impl Future<Output = Result<Credentials, E>>` is one. This trait is for providers with state:
///
/// ```
/// use std::{error::Error, path::PathBuf, time::Duration};
/// use leasehold::{Credentials, CredentialsProvider};
///
/// /// A secret that an agent writes into a file, each hour.
/// struct SecretFile(PathBuf);
///
/// impl CredentialsProvider for SecretFile {
///     async fn credentials(&self) -> Result<Credentials, Box<dyn Error + Send + Sync>> {
///         let password = std::fs::read_to_string(&self.0)?;
///         Ok(Credentials::new("orders", password.trim()).good_for(Duration::from_secs(3600)))
///     }
/// }
/// ```
pub trait CredentialsProvider: Send + Sync + 'static {
    /// The login for the next connection.
    ///
    /// The text of an error is shown in errors and warnings: it must hold no secret.
    fn credentials(
        &self,
    ) -> impl Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send;
}

impl<F, Answer, E> CredentialsProvider for F
where
    F: Fn() -> Answer + Send + Sync + 'static,
    Answer: Future<Output = Result<Credentials, E>> + Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    async fn credentials(&self) -> Result<Credentials, Box<dyn StdError + Send + Sync>> {
        self().await.map_err(Into::into)
    }
}

/// A provider of any type.
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn AnyProvider>);

trait AnyProvider: Send + Sync {
    fn ask(&self) -> BoxFuture<'_, Result<Credentials, Box<dyn StdError + Send + Sync>>>;
}

impl<P: CredentialsProvider> AnyProvider for P {
    fn ask(&self) -> BoxFuture<'_, Result<Credentials, Box<dyn StdError + Send + Sync>>> {
        // The call itself is inside, so that its panic is the future's.
        Box::pin(async move { self.credentials().await })
    }
}

impl Provider {
    pub(crate) fn new(provider: impl CredentialsProvider) -> Provider {
        Provider(Arc::new(provider))
    }

    /// The answer of the provider. A panic of its code is a failure as any other: a task that reconnects must not end by it.
    pub(crate) async fn ask(&self) -> Result<Credentials, Cause> {
        // A provider that panics must not end the attempt to connect, for which others wait: it has failed, and is asked again.
        match AssertUnwindSafe(self.0.ask()).catch_unwind().await {
            Ok(Ok(credentials)) => Ok(credentials),
            Ok(Err(why)) => Err(Arc::new(NoCredentials(why))),
            Err(payload) => {
                // Its drop is the user's code, too.
                user_callback::catch_panic(move || drop(payload));
                Err(Arc::new(NoCredentials("it panicked".into())))
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the credentials provider failed: {0}")]
struct NoCredentials(Box<dyn StdError + Send + Sync>);

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer(provider: impl CredentialsProvider) -> String {
        match Provider::new(provider).ask().await {
            Ok(credentials) => format!("{credentials:?}"),
            Err(cause) => cause.to_string(),
        }
    }

    #[tokio::test]
    async fn a_provider_is_asked_and_its_secret_is_not_shown() {
        let gives = || async { Ok::<_, String>(Credentials::new("me", "hush")) };
        let said = answer(gives).await;
        assert!(said.contains("me") && !said.contains("hush"), "{said}");
        let fails = || async { Err("the vault is sealed") };
        let said = answer(fails).await;
        assert_eq!(said, "the credentials provider failed: the vault is sealed");
    }

    #[tokio::test]
    async fn a_provider_that_panics_has_failed() {
        #[allow(clippy::unused_async, reason = "a provider is one")]
        async fn breaks() -> Result<Credentials, String> {
            panic!("as planned")
        }
        let said = answer(breaks).await;
        assert_eq!(said, "the credentials provider failed: it panicked");
        let at_once = || -> std::future::Ready<Result<Credentials, String>> { panic!("at once") };
        assert!(answer(at_once).await.ends_with("it panicked"));
    }
}
