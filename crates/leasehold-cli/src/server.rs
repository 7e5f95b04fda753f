//! The server that a command talks to, and the certificates for it: from the options, else from the environment.

#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::{ffi::OsString, time::Duration};

use clap::Args as ClapArgs;
use leasehold::{Client, ClientBuilder, MemoryServer};
use serde::{Deserialize, Serialize};

use crate::{
    args::duration,
    exit::{Exit, Failure},
    output,
};

const URL: &str = "Server to use; rediss:// speaks TLS, redis-sentinel://HOST,HOST/?master=NAME asks where the primary is, redis-cluster://HOST,HOST is a cluster by some of its nodes, redlock://A,B,C is a majority of several [default: $LEASEHOLD_URL, else $REDIS_URL, else redis://127.0.0.1/]";
const PREFIX: &str = "Put this before each name on the server, such as app: [default: $LEASEHOLD_PREFIX, else nothing]";
const QUORUM: &str = "Several servers, for redlock://";
/// A client's own, by default.
const LEASE: Duration = Duration::from_secs(30);
const URL_DEFAULT: &str = "redis://127.0.0.1/";
#[cfg(feature = "tls")]
const TLS: &str = "TLS, for rediss://";
#[cfg(feature = "tls")]
const CA: &str =
    "Trust the authorities in this PEM file, and not the system's [default: $LEASEHOLD_TLS_CA]";
#[cfg(feature = "tls")]
const CERT: &str =
    "Show this certificate to a server that asks for one, in PEM [default: $LEASEHOLD_TLS_CERT]";
#[cfg(feature = "tls")]
const KEY: &str = "The private key of --tls-cert, in PEM [default: $LEASEHOLD_TLS_KEY]";
#[cfg(feature = "tls")]
const PIN: &str = "Believe a server whose public key has this SHA-256 (hex or base64), and nothing else of its certificate; several with commas [default: $LEASEHOLD_TLS_PIN]";
#[cfg(feature = "tls")]
const NAME: &str = "Expect a certificate for this name, and not for the URL's host [default: $LEASEHOLD_TLS_SERVER_NAME]";

/// Which server.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Server {
    #[arg(long, value_name = "URL", help = URL)]
    url: Option<String>,
    /// How long to try to connect [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    connect_timeout: Option<Duration>,
    #[command(flatten)]
    prefix: NamePrefix,
    #[command(flatten)]
    quorum: QuorumOptions,
    #[command(flatten)]
    tls: TlsOptions,
}

/// Options about which all clients of several servers must agree.
#[derive(Clone, Debug, Default, ClapArgs, Serialize, Deserialize)]
pub(crate) struct QuorumOptions {
    /// The longest lease of all clients, for which a server that has restarted has no vote [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = QUORUM)]
    longest_lease: Option<Duration>,
    /// How long each server may take to answer [default: a tenth of the lease, and at most 2s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = QUORUM)]
    server_timeout: Option<Duration>,
    /// The servers forget nothing when they restart (appendfsync always)
    #[arg(long, help_heading = QUORUM)]
    persistent_servers: bool,
}

/// The text before each name on the server, which is not shown.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NamePrefix {
    #[arg(long = "prefix", value_name = "PREFIX", help = PREFIX)]
    given: Option<String>,
}

impl NamePrefix {
    /// An empty prefix on the command line counts: there is none then, also if the environment has one.
    pub(crate) fn text(&self) -> Result<String, Failure> {
        match &self.given {
            Some(prefix) => Ok(prefix.clone()),
            None => Ok(text_of_environment("LEASEHOLD_PREFIX", "--prefix")?.unwrap_or_default()),
        }
    }
}

impl Server {
    pub(crate) fn prefix(&self) -> Result<String, Failure> {
        self.prefix.text()
    }

    pub(crate) fn address(&self) -> Result<Address, Failure> {
        let mut url = self.url.clone();
        for variable in ["LEASEHOLD_URL", "REDIS_URL"] {
            if url.is_none() {
                url = text_of_environment(variable, "--url")?;
            }
        }
        let is_default = url.is_none();
        Ok(Address {
            is_default,
            connect_timeout: self.connect_timeout,
            name_prefix: self.prefix()?,
            quorum: self.quorum.clone(),
            ..Address::new(url.unwrap_or_else(|| URL_DEFAULT.to_owned()), &self.tls)?
        })
    }
}

/// The options of TLS. Variables of the environment count where the URL speaks TLS.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, Default, ClapArgs, Serialize, Deserialize)]
pub(crate) struct TlsOptions {
    #[arg(long = "tls-ca", value_name = "FILE", help = CA, help_heading = TLS)]
    ca: Option<PathBuf>,
    #[arg(long = "tls-cert", value_name = "FILE", help = CERT, help_heading = TLS)]
    cert: Option<PathBuf>,
    #[arg(long = "tls-key", value_name = "FILE", help = KEY, help_heading = TLS)]
    key: Option<PathBuf>,
    #[arg(long = "tls-pin", value_name = "SHA256", help = PIN, help_heading = TLS)]
    pin: Option<String>,
    #[arg(long = "tls-server-name", value_name = "NAME", help = NAME, help_heading = TLS)]
    server_name: Option<String>,
}

/// This program was built without TLS.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug, Default, ClapArgs, Serialize, Deserialize)]
pub(crate) struct TlsOptions {}

/// A server, and how to speak to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    /// It may contain a password.
    pub(crate) url: String,
    tls: TlsOptions,
    connect_timeout: Option<Duration>,
    name_prefix: String,
    quorum: QuorumOptions,
    /// The user has named none.
    is_default: bool,
}

impl Address {
    pub(crate) fn new(url: String, tls: &TlsOptions) -> Result<Address, Failure> {
        let scheme = url.split(':').next().unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        // Also of several: rediss-sentinel, rediss-cluster.
        let of_server = scheme.split('-').next().unwrap_or_default();
        let tls = if ["rediss", "valkeys", "redlocks"].contains(&of_server) {
            tls.or_of_environment()?
        } else {
            tls.clone()
        };
        Ok(Address {
            url,
            tls,
            connect_timeout: None,
            name_prefix: String::new(),
            quorum: QuorumOptions::default(),
            is_default: false,
        })
    }

    /// The same server by another way.
    pub(crate) fn at(&self, url: String) -> Address {
        Address {
            url,
            ..self.clone()
        }
    }

    /// Whether the leases would live in the memory of this process.
    pub(crate) fn is_memory(&self) -> bool {
        (self.url.get(..7)).is_some_and(|scheme| scheme.eq_ignore_ascii_case("memory:"))
    }

    /// Refuses locks in the memory of one process, which exclude no other process: they can only be a mistake.
    pub(crate) fn refuse_memory(&self) -> Result<(), Failure> {
        if self.is_memory() {
            return Err(Failure::new(
                Exit::Usage,
                "memory: lives in one process and would exclude no other process; give the --url of a server",
            ));
        }
        Ok(())
    }

    /// Connects to the server.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.connect_by(self.builder()?).await
    }

    /// With settings that began as those of `builder`.
    pub(crate) async fn connect_by(&self, builder: ClientBuilder) -> Result<Client, Failure> {
        let client = builder.connect().await;
        client.map_err(|error| {
            let mut failure = Failure::from(error);
            if self.is_default && failure.exit == Exit::Unreachable {
                failure.message +=
                    "; no server was named: say which with --url, or in LEASEHOLD_URL";
            }
            failure
        })
    }

    /// A client's settings for this server. Memory is told about: it holds nothing that another process has locked.
    pub(crate) fn builder(&self) -> Result<ClientBuilder, Failure> {
        if self.is_memory() {
            output::say(&output::remark(
                "memory: is empty and ends with this command; give the --url of a server to see its locks",
            ));
            return Ok(ClientBuilder::default().memory(&MemoryServer::new()));
        }
        let builder = ClientBuilder::default().url(&self.url);
        let mut builder = builder.name_prefix(&self.name_prefix);
        if let Some(most) = self.connect_timeout {
            builder = builder.connect_timeout(most);
        }
        if let Some(longest) = self.quorum.longest_lease {
            // Each command says its own lease. The client's, which no command takes, must not exceed the longest.
            builder = builder.longest_lease(longest).lease(longest.min(LEASE));
        }
        if let Some(timeout) = self.quorum.server_timeout {
            builder = builder.server_timeout(timeout);
        }
        if self.quorum.persistent_servers {
            builder = builder.persistent_servers(true);
        }
        self.tls.given_to(builder)
    }
}

#[cfg(feature = "tls")]
impl TlsOptions {
    fn or_of_environment(&self) -> Result<TlsOptions, Failure> {
        let file = |name| from_environment(name).map(PathBuf::from);
        let server_name = match &self.server_name {
            Some(name) => Some(name.clone()),
            None => text_of_environment("LEASEHOLD_TLS_SERVER_NAME", "--tls-server-name")?,
        };
        let pin = match &self.pin {
            Some(pin) => Some(pin.clone()),
            None => text_of_environment("LEASEHOLD_TLS_PIN", "--tls-pin")?,
        };
        Ok(TlsOptions {
            pin,
            ca: self.ca.clone().or_else(|| file("LEASEHOLD_TLS_CA")),
            cert: self.cert.clone().or_else(|| file("LEASEHOLD_TLS_CERT")),
            key: self.key.clone().or_else(|| file("LEASEHOLD_TLS_KEY")),
            server_name,
        })
    }

    fn given_to(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        let TlsOptions {
            ca,
            cert,
            key,
            pin,
            server_name,
        } = self;
        let files = [ca, cert, key];
        if files.iter().all(|file| file.is_none()) && pin.is_none() && server_name.is_none() {
            return Ok(builder);
        }
        let mut tls = leasehold::Tls::new();
        if let Some(name) = server_name {
            tls = tls.server_name(name);
        }
        for pin in pin.iter().flat_map(|pins| pins.split(',')) {
            tls = tls.pinned(pin);
        }
        if let Some(ca) = ca {
            tls = tls.root_file(ca);
        }
        match (cert, key) {
            (Some(cert), Some(key)) => tls = tls.client_cert_file(cert, key),
            (None, None) => {}
            (Some(_), None) => return Err(without("--tls-cert", "--tls-key")),
            (None, Some(_)) => return Err(without("--tls-key", "--tls-cert")),
        }
        Ok(builder.tls(tls))
    }
}

#[cfg(feature = "tls")]
fn without(one: &str, other: &str) -> Failure {
    let message = format!(
        "{one} is given without {other}: a certificate is shown together with a proof by its key; give both, or neither"
    );
    Failure::new(Exit::Usage, message)
}

#[cfg(not(feature = "tls"))]
impl TlsOptions {
    #[expect(clippy::unnecessary_wraps, reason = "as with TLS")]
    fn or_of_environment(&self) -> Result<TlsOptions, Failure> {
        Ok(self.clone())
    }

    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as with TLS")]
    fn given_to(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        Ok(builder)
    }
}

/// A variable that is empty counts as one that is not there.
fn from_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// A variable that this program cannot read does not count as absent: the lock would be taken on another server, or be another.
pub(crate) fn text_of_environment(name: &str, option: &str) -> Result<Option<String>, Failure> {
    let text = from_environment(name)
        .map(OsString::into_string)
        .transpose();
    // Not with its value, which may contain a password.
    text.map_err(|_| {
        let message = format!("{name} is not UTF-8, but must be: correct it, or give {option}");
        Failure::new(Exit::Usage, message)
    })
}

#[cfg(test)]
#[path = "../../leasehold/tests/common/addresses.rs"]
mod addresses;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{
        addresses::{self, Random, SECRET},
        *,
    };
    use crate::args::{Args, Command};

    /// The command's answer to this command line, if it has one before it asks the server for a lock.
    async fn said(words: &[String]) -> String {
        let args = match Args::try_parse_from(words) {
            Ok(args) => args,
            Err(error) => {
                let text = error.render().ansi().to_string();
                return output::without_addresses(text, words.iter().map(OsString::from));
            }
        };
        let Command::Status(status) = args.command else {
            return String::new();
        };
        let connected = async {
            let address = status.server.address()?;
            if address.is_memory() {
                return Ok(());
            }
            address.connect().await.map(drop)
        };
        match connected.await {
            Ok(()) => String::new(),
            Err(failure) => output::failure(&failure, false) + &output::failure(&failure, true),
        }
    }

    #[tokio::test]
    async fn no_form_of_an_address_shows_what_stands_where_a_password_may() {
        const SEED: u64 = 14;
        println!("seed {SEED}");
        let mut random = Random(SEED);
        let (mut leaks, mut reached) = (Vec::new(), 0);
        for _ in 0..10_000 {
            let url = addresses::url(&mut random);
            let named = format!("--url={url}");
            let misspelt = format!("--ulr={url}");
            let is_no_name = url.to_lowercase().starts_with("redis://");
            let words: &[&str] = match random.below(10) {
                0 => &["status", "job", &url],
                1 => &["status", &misspelt, "job"],
                2 => &["status", "--kind", &url, "job"],
                3 => &["run", "--lease", &url, "job", "true"],
                4 => &[&url],
                5 if is_no_name => &["status", &url],
                _ => &["status", "--connect-timeout=0.05", &named, "job"],
            };
            let words: Vec<_> = ["leasehold"]
                .iter()
                .chain(words)
                .map(|it| (*it).to_owned())
                .collect();
            let said = said(&words).await;
            reached += usize::from(said.contains("127.0.0.1:1"));
            if said.to_lowercase().contains(SECRET) {
                leaks.push((words, said));
            }
        }
        let some = &leaks[..leaks.len().min(20)];
        assert!(leaks.is_empty(), "{} of 10,000: {some:#?}", leaks.len());
        assert!(reached > 300, "{reached}");
    }
}
