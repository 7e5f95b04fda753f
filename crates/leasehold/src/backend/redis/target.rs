//! Which server a client connects to, and as which user.

use std::{fmt, time::Duration};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};

use crate::error::{Error, Invalid};

/// A dead peer is noticed by the kernel after `IDLE + PROBES × INTERVAL`, or when sent data stays
/// unacknowledged for `UNACKNOWLEDGED`. A lease of 30 s then still has time for renewals on a new connection.
const IDLE: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_secs(8);

/// Settings that win over the URL's.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u32>,
}

/// A server and how to log in to it. Shown without secrets.
pub(crate) struct Target {
    pub(super) info: ConnectionInfo,
}

impl Target {
    pub(crate) fn parse(given: &str, login: &Login) -> Result<Target, Error> {
        let parsed = url::Url::parse(given).map_err(|error| {
            // The URL itself may carry a password, so it is not repeated.
            Invalid::new(
                "url",
                format!("no URL ({error})"),
                "scheme://host:port/database",
            )
            .remedy("such as redis://127.0.0.1:6379/0, redis+unix:///run/redis.sock, or memory:")
        })?;
        let scheme = parsed.scheme();
        if matches!(scheme, "rediss" | "valkeys") {
            return Err(Invalid::new("url", format!("{scheme}://…"), "without TLS in this version")
                .remedy("connect through a TLS tunnel on this machine, or with redis:// in a trusted network")
                .into());
        }
        if !matches!(
            scheme,
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix"
        ) {
            return Err(Invalid::new(
                "url",
                format!("{scheme}:…"),
                "of scheme redis, valkey, redis+unix, valkey+unix or memory",
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
            return Err(
                Invalid::new("url", "without a host", "scheme://host:port/database")
                    .remedy("such as redis://127.0.0.1:6379/0")
                    .into(),
            );
        }
        let info = parsed.into_connection_info().map_err(|error| {
            Invalid::new("url", "not understood", error.to_string())
                .remedy("such as redis://user:password@127.0.0.1:6379/0")
        })?;
        let mut redis = info.redis_settings().clone();
        if let Some(username) = &login.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &login.password {
            redis = redis.set_password(password);
        }
        if let Some(database) = login.database {
            redis = redis.set_db(i64::from(database));
        }
        let redis = redis.set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        let keepalive = redis::io::tcp::socket2::TcpKeepalive::new()
            .with_time(IDLE)
            .with_interval(INTERVAL)
            .with_retries(PROBES);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            // A connection that is closed discards what it has not sent (B4).
            .set_linger_time(Duration::ZERO);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(UNACKNOWLEDGED);
        Ok(Target {
            info: info.set_redis_settings(redis).set_tcp_settings(tcp),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => write!(f, "redis://{host}:{port}")?,
            ConnectionAddr::Unix(path) => write!(f, "redis+unix://{}", path.display())?,
            other => write!(f, "{other}")?,
        }
        write!(f, "/{}", self.info.redis_settings().db())
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
            ("127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://:hush@127.0.0.1:99999/", "port"),
            ("redis://:hush@127.0.0.1:0/", "between 1 and 65535"),
            ("redis://:hush@127.0.0.1/first", "redis://"),
            ("rediss://:hush@127.0.0.1/", "TLS"),
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
        assert_eq!(unix.to_string(), "redis+unix:///run/r.sock/2");
    }
}
