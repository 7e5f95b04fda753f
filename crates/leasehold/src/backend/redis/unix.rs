//! The URL of a Unix socket: as the redis crate has it, and as redis-py has it.
//!
//! redis-py knows `unix://user:password@/path?db=0`, and calls the parameters `username` and `password`.

use std::borrow::Cow;

use redis::IntoConnectionInfo;
use url::Url;

use super::target::ENCODING;
use crate::error::Invalid;

const SCHEMES: [&str; 3] = ["unix", "redis+unix", "valkey+unix"];

/// The login that stands before the path.
#[derive(Default)]
pub(super) struct SocketLogin {
    username: Option<String>,
    password: Option<String>,
}

/// The URL without the login before the path of a socket, which the parser of URLs takes for that of a host without a name.
pub(super) fn without_login(given: &str) -> Result<(Cow<'_, str>, SocketLogin), Invalid> {
    let none = || Ok((given.into(), SocketLogin::default()));
    let Some((scheme, rest)) = given.split_once("://") else {
        return none();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    // Only where no host stands behind the login: a host is refused later, in words that do not repeat the URL.
    let (true, Some((login, ""))) = (
        SCHEMES.iter().any(|it| it.eq_ignore_ascii_case(scheme)),
        // At the last @, as the parser of URLs does: one in the password is a part of the login.
        authority.rsplit_once('@'),
    ) else {
        return none();
    };
    // As the login of some host, so that the parser decodes it as it does all others.
    let parsed = Url::parse(&format!("redis://{login}@host/"));
    let info = parsed.ok().and_then(|url| url.into_connection_info().ok());
    let info = info.ok_or_else(|| {
        let form = "of the form unix://user:password@/path?db=0";
        Invalid::new("the login in the url", "not understood", form).remedy(ENCODING)
    })?;
    let settings = info.redis_settings();
    let login = SocketLogin {
        username: settings.username().map(str::to_owned),
        password: settings.password().map(str::to_owned),
    };
    Ok((format!("{scheme}://{path}").into(), login))
}

/// Says all in the parameters that the redis crate reads.
pub(super) fn in_words_of_redis(url: &mut Url, login: SocketLogin) {
    let name = |name: Cow<'_, str>| match &*name {
        "username" => "user".to_owned(),
        "password" => "pass".to_owned(),
        _ => name.into_owned(),
    };
    let before = [("user", login.username), ("pass", login.password)];
    let before = before
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let given = url
        .query_pairs()
        .map(|(it, value)| (name(it), value.into_owned()));
    let pairs: Vec<_> = before.chain(given).collect();
    if !pairs.is_empty() {
        // A login that is given in both places stands here twice, and `check_rest` refuses it.
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::{Login, Target};

    #[test]
    fn a_socket_is_named_as_the_redis_crate_and_as_redis_py_name_it() {
        for url in [
            "unix:///run/r.sock?db=1&user=me&pass=hu%40sh",
            "redis+unix:///run/r.sock?db=1&user=me&pass=hu%40sh",
            "unix:///run/r.sock?db=1&username=me&password=hu%40sh",
            "unix://me:hu%40sh@/run/r.sock?db=1",
            "Unix://me@/run/r.sock?db=1&password=hu%40sh",
        ] {
            let target = Target::parse(url, &Login::default());
            let target = target.unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(target.to_string(), "redis+unix:///run/r.sock?db=1");
            let settings = target.info.redis_settings();
            assert_eq!(settings.username(), Some("me"), "{url}");
            assert_eq!(settings.password(), Some("hu@sh"), "{url}");
        }
        for (url, says) in [
            ("unix://me:hush@/run/r.sock?pass=hush", "twice"),
            ("unix://me:hush@host/run/r.sock", "with the path"),
            ("unix:///me:hush@/run/r.sock", "@ too many"),
            ("unix:/run/r.sock?hush", "is unknown"),
        ] {
            let refused = Target::parse(url, &Login::default()).err();
            let said = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(
                said.contains(says) && !said.contains("hush"),
                "{url}: {said}"
            );
        }
    }
}
