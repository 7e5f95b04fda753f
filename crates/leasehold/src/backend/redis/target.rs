//! Which server a client connects to, and as which user.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

#[cfg(feature = "tls")]
use super::tls::TlsDialler;
use super::unix;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::{
    address,
    connection::{ConnectionSettings, Protocol},
    credentials::Provider,
    error::{Error, Invalid},
};

/// Settings that win over the URL's.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u32>,
    pub(crate) provider: Option<Provider>,
    pub(crate) connection: ConnectionSettings,
    /// In place of the URL.
    #[cfg(feature = "redis-1")]
    pub(crate) info: Option<ConnectionInfo>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// A server and how to log in to it. Shown without secrets.
pub(crate) struct Target {
    pub(super) info: ConnectionInfo,
    pub(super) provider: Option<Provider>,
    pub(super) connection: ConnectionSettings,
    /// It is a node of a cluster.
    pub(super) in_cluster: bool,
    /// How to speak TLS, if it does. The address in `info` is without.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsDialler>,
}

impl Target {
    pub(crate) fn parse(given: &str, login: &Login) -> Result<Target, Error> {
        let (given, of_socket) = unix::without_login(given)?;
        let mut parsed = url::Url::parse(&given).map_err(|error| {
            // The URL itself may carry a password, so it is not repeated.
            Invalid::new(
                "url",
                format!("not a URL ({error})"),
                "of the form scheme://host:port/database",
            )
            .remedy(if given.contains('@') {
                ENCODING
            } else {
                "such as redis://127.0.0.1:6379/0, redis+unix:///run/redis.sock, or memory:"
            })
        })?;
        let with_tls = matches!(parsed.scheme(), "rediss" | "valkeys");
        if with_tls {
            check_tls(&parsed)?;
            // Only this library speaks TLS; the redis crate is given the rest. It knows both schemes.
            let _ = parsed.set_scheme("redis");
        }
        let scheme = parsed.scheme().to_owned();
        refuse_topologies(&scheme, &given)?;
        if !matches!(
            &*scheme,
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix"
        ) {
            return Err(Invalid::new(
                "url",
                address::scheme(&given),
                "of scheme redis, valkey, rediss, valkeys, redis-sentinel, redis-cluster, redlock, redis+unix, valkey+unix or memory",
            )
            .remedy("such as redis://127.0.0.1:6379/0")
            .into());
        }
        let is_unix = scheme.ends_with("unix");
        if !is_unix && parsed.port() == Some(0) {
            return Err(Invalid::new("port", "0", "between 1 and 65535")
                .remedy("leave it out for 6379")
                .into());
        }
        if !is_unix && parsed.host_str().is_none_or(str::is_empty) {
            return Err(Invalid::new(
                "url",
                "without a host",
                "of the form scheme://host:port/database",
            )
            .remedy("such as redis://127.0.0.1:6379/0")
            .into());
        }
        if is_unix {
            unix::in_words_of_redis(&mut parsed, of_socket);
        }
        check_rest(&parsed, is_unix)?;
        let info = parsed.into_connection_info().map_err(|error| {
            let (what, value, limit, remedy) = not_understood(&error);
            Invalid::new(what, value, limit).remedy(remedy)
        })?;
        Target::of(info, &scheme, with_tls, login)
    }

    /// The address that `host` or `host:port` names.
    pub(super) fn address_of(host: &str) -> Result<(String, u16), Error> {
        let target = Target::parse(&format!("redis://{host}/"), &Login::default())?;
        let none = || Invalid::new("the host", "missing", "a host, or a host and a port");
        target.address().ok_or_else(|| none().into())
    }

    pub(super) fn of(
        info: ConnectionInfo,
        scheme: &str,
        with_tls: bool,
        login: &Login,
    ) -> Result<Target, Error> {
        #[cfg(not(feature = "tls"))]
        let _ = (scheme, with_tls);
        login.connection.check()?;
        if let ConnectionAddr::Tcp(host, _) = info.addr() {
            address::check_host(host)?;
        }
        let database = info.redis_settings().db();
        // The redis crate sends a negative number as it is (bug 139).
        if database < 0 {
            let limit = "at least 0, as in redis://127.0.0.1:6379/0";
            return Err(
                Invalid::new("the database in the url", database.to_string(), limit)
                    .remedy("leave it out for 0")
                    .into(),
            );
        }
        #[cfg(feature = "tls")]
        let tls = match (info.addr(), &login.tls) {
            (ConnectionAddr::Tcp(host, _), tls) if with_tls => {
                let settings = tls.clone().unwrap_or_default();
                Some(TlsDialler::new(host, &settings)?)
            }
            (_, Some(_)) => {
                let limit = "rediss:// or valkeys:// where there are settings for TLS";
                return Err(Invalid::new("url", format!("{scheme}://…"), limit)
                    .remedy("correct the scheme, or leave the settings for TLS out")
                    .into());
            }
            _ => None,
        };
        let mut redis = info.redis_settings().clone();
        if let Some(username) = &login.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &login.password {
            redis = redis.set_password(password);
        }
        // The redis crate logs in only if there is a password. A user of the server that needs none takes any.
        if redis.password().is_none() && redis.username().is_some_and(|user| !user.is_empty()) {
            redis = redis.set_password("");
        }
        if let Some(database) = login.database {
            redis = redis.set_db(i64::from(database));
        }
        let redis = redis.set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        let redis = match login.connection.protocol {
            Some(Protocol::Resp2) => redis.set_protocol(ProtocolVersion::RESP2),
            Some(Protocol::Resp3) => redis.set_protocol(ProtocolVersion::RESP3),
            None => redis,
        };
        Ok(Target {
            info: info.set_redis_settings(redis),
            provider: login.provider.clone(),
            connection: login.connection.clone(),
            in_cluster: false,
            #[cfg(feature = "tls")]
            tls,
        })
    }
}

/// The remedy for a password that ends the URL too soon.
pub(super) const ENCODING: &str =
    "in a user name or a password write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25";

/// Checks the parts behind host and port. A part that the redis crate overlooks there was meant to be something.
fn check_rest(url: &url::Url, is_unix: bool) -> Result<(), Error> {
    let scheme = url.scheme();
    // The password of a Unix socket stands in the query, where an @ may be its own.
    let is_cut_short = url.query().is_some_and(|q| q.contains('@'));
    if url.fragment().is_some() || url.path().contains('@') || !is_unix && is_cut_short {
        let form = if is_unix {
            "of the form unix:///path?user=…&pass=…&db=0"
        } else {
            "of the form scheme://user:password@host:port/database"
        };
        let value = format!("{scheme}://… with a #, ?, / or @ too many");
        return Err(Invalid::new("url", value, form).remedy(ENCODING).into());
    }
    let (known, limit): (&[&str], _) = if is_unix {
        let limit = "one of db, user, pass, protocol";
        (&["db", "user", "pass", "protocol"], limit)
    } else {
        (&["protocol"], "protocol, the only one")
    };
    let mut seen = Vec::with_capacity(known.len());
    for (name, _) in url.query_pairs() {
        // The redis crate passes over a parameter that it does not know: `?db=3` locked in database 0 (bug 118).
        if !known.contains(&&*name) {
            return Err(Invalid::new("a parameter of the url", "unknown", limit)
                .remedy("the number of a database stands behind the port, as in redis://127.0.0.1:6379/3, or is db of a Unix socket; in a password write & as %26")
                .into());
        }
        // Of two it takes one without a word (bug 139).
        if seen.contains(&name) {
            let twice = format!("{name:?} twice");
            return Err(Invalid::new("a parameter of the url", twice, "given once")
                .remedy("leave out all but one")
                .into());
        }
        seen.push(name);
    }
    Ok(())
}

/// Schemes by which other clients ask a sentinel, or a cluster, for the server.
fn refuse_topologies(scheme: &str, given: &str) -> Result<(), Error> {
    let (limit, remedy) = if scheme.contains("sentinel") {
        (
            "of a single server, or of scheme redis-sentinel, rediss-sentinel, valkey-sentinel or valkeys-sentinel",
            "such as redis-sentinel://host:26379,host:26379/?master=main",
        )
    } else if scheme.contains("cluster") {
        (
            "of a single server, or of scheme redis-cluster, rediss-cluster, valkey-cluster or valkeys-cluster",
            "such as redis-cluster://host:port,host:port",
        )
    } else {
        return Ok(());
    };
    let invalid = Invalid::new("url", address::scheme(given), limit);
    Err(invalid.remedy(remedy).into())
}

/// Whether TLS can be spoken as the URL says.
fn check_tls(url: &url::Url) -> Result<(), Error> {
    let shown = format!("{}://…", url.scheme());
    if cfg!(not(feature = "tls")) {
        let limit = "of scheme redis or valkey, since this program was built without TLS";
        return Err(Invalid::new("url", shown, limit)
            .remedy(
                "build it with the feature `tls` of leasehold: cargo add leasehold --features tls",
            )
            .into());
    }
    // The message does not repeat the fragment, which may be the end of a password.
    if url.fragment().is_some() {
        let limit = "without a #, behind which the redis crate reads `insecure`: a server's certificate is always checked";
        return Err(Invalid::new("url", format!("{shown}#…"), limit)
            .remedy("to trust a certificate of your own, name its authority with Tls::root_file or --tls-ca; a # in a password is %23")
            .into());
    }
    Ok(())
}

/// The fault of a URL, and what it must be, in other words than the redis crate's.
fn not_understood(
    error: &redis::RedisError,
) -> (&'static str, &'static str, &'static str, &'static str) {
    const ENCODED: &str = "UTF-8, percent-encoded";
    let said = error.to_string();
    let is_about = |word: &str| said.contains(word);
    if is_about("database") {
        (
            "the database in the url",
            "no number",
            "one, as in redis://127.0.0.1:6379/0",
            "leave it out for 0",
        )
    // Without the first letter, which the redis crate writes as a capital at the beginning of a message.
    } else if is_about("sername") {
        ("the user name in the url", "not UTF-8", ENCODED, ENCODING)
    } else if is_about("assword") {
        ("the password in the url", "not UTF-8", ENCODED, ENCODING)
    } else if is_about("protocol") {
        (
            "the protocol in the url",
            "unknown",
            "resp2 or resp3",
            "leave it out",
        )
    } else if is_about("wildcard") {
        (
            "the host in the url",
            "0.0.0.0 or ::, which is every address",
            "one host",
            "such as 127.0.0.1",
        )
    } else if is_about("path") {
        (
            "url",
            "without a path",
            "with the path of the server's socket",
            "such as redis+unix:///run/redis.sock",
        )
    } else {
        let form = "of the form scheme://host:port/database";
        (
            "url",
            "not understood",
            form,
            "such as redis://user:password@127.0.0.1:6379/0",
        )
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "tls")]
        let scheme = if self.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        #[cfg(not(feature = "tls"))]
        let scheme = "redis";
        let db = self.info.redis_settings().db();
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let address = address::shown(&(host.clone(), *port));
                write!(f, "{scheme}://{address}/{db}")
            }
            ConnectionAddr::Unix(path) if db == 0 => {
                write!(f, "redis+unix://{}", address::path(path))
            }
            ConnectionAddr::Unix(path) => {
                write!(f, "redis+unix://{}?db={db}", address::path(path))
            }
            // No such address is made here.
            _ => write!(f, "{scheme}://…/{db}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match Target::parse(url, &Login::default()) {
            Ok(target) => panic!("{url} was taken for {target}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn urls_are_refused_with_a_remedy_and_without_their_password() {
        for (url, says) in [
            ("http://127.0.0.1/", "scheme redis"),
            (
                "redis+sentinel://:hush@127.0.0.1:26379/",
                "redis-sentinel://host",
            ),
            (
                "redis+cluster://:hush@127.0.0.1:7000/",
                "redis-cluster://host",
            ),
            ("127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://:hush@127.0.0.1:99999/", "port"),
            ("redis://:hush@127.0.0.1:0/", "between 1 and 65535"),
            ("redis://:hush@127.0.0.1/first", "redis://"),
            ("redis://user:12#hush@127.0.0.1/", "# as %23"),
            ("redis://user:12?hush@127.0.0.1/", "? as %3F"),
            ("redis://user:12/hush@127.0.0.1/", "/ as %2F"),
            ("redis://127.0.0.1/?db=3", "redis://127.0.0.1:6379/3"),
            ("redis+unix:///run/r.sock?databse=3", "one of db, user"),
            ("redis://:hush@127.0.0.1/-1", "at least 0"),
            ("redis+unix:///run/r.sock?db=-1&pass=hush", "at least 0"),
            (
                "redis://:hush@127.0.0.1/?protocol=resp3&protocol=resp2",
                "twice, but must be given once",
            ),
            ("redis+unix:///run/r.sock?pass=hush&pass=hush2", "twice"),
            ("redis+unix:///run/r.sock?pass=a&hush", "& as %26"),
            ("unix:///run/r.sock?db=3&pass=a&hush=b", "& as %26"),
            #[cfg(not(feature = "tls"))]
            ("rediss://:hush@127.0.0.1/", "feature `tls`"),
            #[cfg(feature = "tls")]
            ("rediss://:hush@127.0.0.1/#insecure", "Tls::root_file"),
            ("", "redis://"),
        ] {
            let error = refused(url);
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush"), "{url}: {error}");
        }
    }

    #[test]
    fn a_target_is_shown_without_its_password() {
        let target = Target::parse("valkey://me:hush@localhost:7000/3", &Login::default()).unwrap();
        assert_eq!(target.to_string(), "redis://localhost:7000/3");
        let unix = Target::parse("redis+unix:///run/r.sock?db=2", &Login::default()).unwrap();
        assert_eq!(unix.to_string(), "redis+unix:///run/r.sock?db=2");
        let six = Target::parse("redis://[::1]:7000/", &Login::default()).unwrap();
        assert_eq!(six.to_string(), "redis://[::1]:7000/0");
    }
}
