//! How the address of a server is shown: as much of it as no password can stand in.
//!
//! People put a login where none belongs, forget its `@`, or do not encode what is odd in it. So an error repeats nothing of an input
//! but what is known to be a scheme, a host, a port or a number; all else is `…`.

use std::{borrow::Cow, net::Ipv6Addr, path::Path};

use crate::error::Invalid;

/// In place of what may be a secret.
const HIDDEN: &str = "…";

/// The scheme of a URL, with `://…`; `…` if it is none for sure.
pub(crate) fn scheme(url: &str) -> String {
    let is_odd = |c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c);
    match url.split_once("://") {
        Some((scheme, _)) if !scheme.contains(is_odd) => format!("{scheme}://{HIDDEN}"),
        _ => HIDDEN.to_owned(),
    }
}

/// Whether this can be a host. A password with its `@` missing, or in a `%40`, cannot, if it has any odd character.
fn is_host(host: &str) -> bool {
    let is_plain = |text: &str| {
        text.chars()
            .all(|c| c.is_alphanumeric() || "-._".contains(c))
    };
    // An address of IPv6 may name an interface.
    let (address, zone) = host.split_once('%').unwrap_or((host, ""));
    !host.is_empty() && (is_plain(host) || address.parse::<Ipv6Addr>().is_ok() && is_plain(zone))
}

/// Refuses a host that cannot be one.
pub(crate) fn check_host(host: &str) -> Result<(), Invalid> {
    if is_host(host) {
        return Ok(());
    }
    let (what, value) = ("the host in the url", "with a character that no host has");
    Err(Invalid::new(what, value, "a host's name or its IP address").remedy(
        "several hosts need redis-cluster://, redis-sentinel:// or redlock://; the @ between a login and the host is not encoded",
    ))
}

/// Host and port as they stand in a URL.
pub(crate) fn shown((host, port): &(String, u16)) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// `host` or `host:port` as a program gives it, for `Debug`.
pub(crate) fn given(text: &str) -> &str {
    let (host, port) = match text.rsplit_once(':') {
        // The last colon of `[::1]` stands within the address.
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (text, "0"),
    };
    let six = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_address = match six {
        Some(six) => six.parse::<Ipv6Addr>().is_ok(),
        None => is_host(host) && !host.contains(':'),
    };
    if is_address && port.parse::<u16>().is_ok() {
        text
    } else {
        HIDDEN
    }
}

/// Refuses a `host` or `host:port` that has more in it.
pub(crate) fn check_given(what: &'static str, text: &str) -> Result<(), Invalid> {
    if !text.contains(['@', '/', '?', '#', '\\', '%']) {
        return Ok(());
    }
    let limit = "a host, or a host and a port";
    Err(Invalid::new(what, "with more than these in it", limit)
        .remedy("such as host:6379; a login is for the methods username and password"))
}

/// The path of a Unix socket, unless a login may be in it.
pub(crate) fn path(path: &Path) -> Cow<'_, str> {
    let text = path.to_string_lossy();
    // A path has neither as a rule, and a login that was written into it has both (bug 277).
    if text.contains(['@', ':']) {
        HIDDEN.into()
    } else {
        text
    }
}

/// The URL of several servers, cut into its parts.
pub(crate) struct Several<'a> {
    /// With its `@`; else empty.
    pub(crate) login: &'a str,
    pub(crate) hosts: Vec<&'a str>,
    /// From the first of `/`, `?` and `#` on.
    pub(crate) tail: &'a str,
}

impl<'a> Several<'a> {
    /// `rest` is all behind `scheme://`. There is one login, before all hosts.
    pub(crate) fn of(rest: &'a str) -> Result<Several<'a>, Invalid> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        // At the first @: with a second one nothing says where the login ends, and no part may be shown as a host.
        let (login, hosts) = authority.split_at(authority.find('@').map_or(0, |at| at + 1));
        if hosts.contains('@') {
            let limit = "of the form scheme://user:password@host:port,host:port";
            return Err(Invalid::new("url", "with an @ too many", limit)
                .remedy("give one login, before all hosts; in it write @ as %40"));
        }
        Ok(Several {
            login,
            hosts: hosts.split(',').collect(),
            tail,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_and_what_may_be_more_is_not() {
        for text in [
            "cache",
            "cache.internal:6379",
            "10.0.0.1:1",
            "[::1]:7000",
            "[::1]",
        ] {
            assert_eq!(given(text), text);
        }
        for text in [
            "",
            "me:hush@cache",
            ":hush",
            "me:hush",
            "cache/hush",
            "hush%40cache:1",
            "[::1",
            "a:1:hush",
        ] {
            assert_eq!(given(text), HIDDEN, "{text}");
        }
        assert_eq!(path(Path::new("/run/r.sock")), "/run/r.sock");
        assert_eq!(path(Path::new("/me:hush@/run/r.sock")), HIDDEN);
        assert_eq!(scheme("reddis://:hush@cache"), "reddis://…");
        assert_eq!(scheme("hush:@cache"), HIDDEN);
        assert!(is_host("fe80::1%eth0") && is_host("bücher.example") && !is_host("hush%40cache"));
    }
}
