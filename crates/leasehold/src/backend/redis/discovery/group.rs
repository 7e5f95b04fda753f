//! A group of servers as it is given: its sentinels, the name that they know its primary by, and how to log in to both.

use std::{collections::HashMap, fmt};

use url::form_urlencoded;

use super::Address;
use crate::{
    address::{self, Several, shown},
    backend::redis::target::{ENCODING, Login, Target},
    error::{Error, Invalid},
    sentinel::Sentinel,
};

/// A server, and the sentinels that know where it is.
pub(crate) struct Group {
    /// The name of the primary.
    pub(super) master: String,
    /// The sentinels that were given.
    pub(super) sentinels: Vec<Address>,
    /// How to log in to a sentinel, at whichever address.
    pub(super) of_sentinels: Target,
    /// How to log in to the primary, at whichever address.
    pub(super) of_data: Target,
    /// Where servers and sentinels are reached that are said to be elsewhere.
    elsewhere: HashMap<Address, Address>,
}

const FORM: &str =
    "of the form redis-sentinel://user:password@host:26379,host:26379/database?master=name";
const PARAMETERS: &str = "one of master, sentinel_user, sentinel_pass, protocol";
const PORT: u16 = 26_379;

impl Group {
    /// From a URL such as `redis-sentinel://user:password@host:26379,host/database?master=name`.
    pub(super) fn parse(given: &str, login: &Login) -> Result<Group, Error> {
        let (scheme, rest) = given.split_once("://").unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        let Several {
            login: user,
            hosts,
            tail,
        } = Several::of(rest)?;
        let (database, query) = tail.split_once('?').unwrap_or((tail, ""));
        // Such a character behind the hosts may end a password that was not encoded, so the error repeats nothing of it.
        if tail.contains(['#', '@']) {
            let value = format!("{scheme}://… with a #, ?, / or @ too many");
            return Err(Invalid::new("url", value, FORM).remedy(ENCODING).into());
        }
        // It is shown, and behind a wrong separator another parameter would be a part of it.
        let is_odd = |c: char| !c.is_ascii_alphanumeric() && !".-_%+".contains(c);
        let mut pairs = query.split('&');
        if pairs.any(|pair| {
            pair.strip_prefix("master=")
                .is_some_and(|it| it.contains(is_odd))
        }) {
            let limit = "letters, digits and any of .-_";
            return Err(
                Invalid::new("the url's master", "with other characters", limit)
                    .remedy("parameters are separated by &; write other characters as %3A")
                    .into(),
            );
        }
        let (mut master, mut protocol) = (None, String::new());
        // Neither user, password nor provider of the servers is sent to a sentinel: it has users of its own.
        let mut of_sentinels = Login {
            connection: login.connection.clone(),
            #[cfg(feature = "tls")]
            tls: login.tls.clone(),
            ..Login::default()
        };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let (slot, value) = match &*name {
                "master" => (&mut master, value.into_owned()),
                "sentinel_user" => (&mut of_sentinels.username, value.into_owned()),
                "sentinel_pass" => (&mut of_sentinels.password, value.into_owned()),
                "protocol" => {
                    // `Target::parse` checks it with the URL of the servers. Sentinels are spoken to as the settings say.
                    protocol = format!("?protocol={value}");
                    continue;
                }
                _ => {
                    return Err(Invalid::new("a parameter of the url", "unknown", PARAMETERS)
                        .remedy("the number of a database stands behind the hosts, as in redis-sentinel://host:26379/3?master=main; in a password write & as %26")
                        .into());
                }
            };
            // Neither of two equal parameters is preferred: the other was meant as well (bug 139).
            if slot.replace(value).is_some() {
                let twice = format!("{name:?} twice");
                return Err(Invalid::new("a parameter of the url", twice, "given once")
                    .remedy("leave out all but one")
                    .into());
            }
        }
        let with_tls = scheme.starts_with("rediss-") || scheme.starts_with("valkeys-");
        let scheme = if with_tls { "rediss" } else { "redis" };
        let master = master.filter(|master| !master.is_empty()).ok_or_else(|| {
            Invalid::new(
                "the url's master",
                "missing",
                "the name by which the sentinels know the primary",
            )
            .remedy("add it behind a ?, as in redis-sentinel://host:26379/?master=main")
        })?;
        let sentinels = sentinels(hosts)?;
        let first = shown(&sentinels[0]);
        let database = database.strip_prefix('/').unwrap_or_default();
        // The host only fills the place of the primary's, which `Target::at` puts there once it is known.
        let of_data = format!("{scheme}://{user}{first}/{database}{protocol}");
        Ok(Group {
            master,
            of_sentinels: Target::parse(&format!("{scheme}://{first}/"), &of_sentinels)?,
            of_data: Target::parse(&of_data, login)?,
            sentinels,
            elsewhere: HashMap::new(),
        })
    }

    /// From the settings of a program.
    pub(super) fn of(given: &Sentinel, login: &Login) -> Result<Group, Error> {
        if given.master.is_empty() {
            return Err(Invalid::new(
                "the master of the sentinels",
                "missing",
                "the name by which they know the primary",
            )
            .remedy("give it with Sentinel::master")
            .into());
        }
        let sentinels = sentinels(given.hosts.iter().map(String::as_str))?;
        let of_sentinels = Login {
            username: given.username.clone(),
            password: given.password.clone(),
            connection: login.connection.clone(),
            #[cfg(feature = "tls")]
            tls: given.tls.clone(),
            ..Login::default()
        };
        let target = |login: &Login| {
            #[cfg(feature = "tls")]
            let scheme = login.tls.as_ref().map_or("redis", |_| "rediss");
            #[cfg(not(feature = "tls"))]
            let scheme = "redis";
            Target::parse(&format!("{scheme}://{}/", shown(&sentinels[0])), login)
        };
        let mut elsewhere = HashMap::new();
        for (says, is_at) in &given.elsewhere {
            elsewhere.insert(whole(says)?, whole(is_at)?);
        }
        Ok(Group {
            master: given.master.clone(),
            of_sentinels: target(&of_sentinels)?,
            of_data: target(login)?,
            sentinels,
            elsewhere,
        })
    }

    /// Where the server or the sentinel is reached that is said to be there.
    pub(super) fn reached(&self, said: Address) -> Address {
        self.elsewhere.get(&said).cloned().unwrap_or(said)
    }
}

/// An address with its port: servers and sentinels have different ones.
fn whole(given: &str) -> Result<Address, Error> {
    address::check_given("an address of Sentinel::reached_at", given)?;
    if !has_port(given) {
        return Err(Invalid::new(
            "an address of Sentinel::reached_at",
            "without a port",
            "a host and a port",
        )
        .remedy("such as 10.0.0.1:6379")
        .into());
    }
    Target::address_of(given)
}

fn has_port(host: &str) -> bool {
    // An IPv6 address has colons of its own, but without a port it ends with its bracket.
    host.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && !port.ends_with(']'))
}

/// The addresses of sentinels, at least one.
fn sentinels<'a>(hosts: impl IntoIterator<Item = &'a str>) -> Result<Vec<Address>, Error> {
    let mut sentinels = Vec::new();
    for host in hosts {
        if host.is_empty() || host.starts_with(':') {
            // The text behind a colon may be a password whose @ is missing.
            let value = if host.is_empty() {
                "empty"
            } else {
                "without a host"
            };
            let limit = "a host, or a host and a port";
            return Err(Invalid::new("the address of a sentinel", value, limit)
                .remedy("such as host:26379, with commas between several; a login stands before them all, with an @ behind it")
                .into());
        }
        address::check_given("the address of a sentinel", host)?;
        let address = if has_port(host) {
            Target::address_of(host)?
        } else {
            Target::address_of(&format!("{host}:{PORT}"))?
        };
        // Until its id is known, a sentinel that is listed twice would count as two voters (`Known::voters`).
        if !sentinels.contains(&address) {
            sentinels.push(address);
        }
    }
    if sentinels.is_empty() {
        return Err(Invalid::new(
            "the sentinels",
            "none",
            "at least one, and best all of them",
        )
        .remedy("such as Sentinel::new([\"host:26379\"])")
        .into());
    }
    Ok(sentinels)
}

/// As a URL, without secrets.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Shown as Redis also where the URL said Valkey: the two schemes mean the same.
        let scheme = if self.of_data.speaks_tls() {
            "rediss"
        } else {
            "redis"
        };
        let hosts: Vec<_> = self.sentinels.iter().map(shown).collect();
        let (hosts, database) = (hosts.join(","), self.of_data.database());
        write!(
            f,
            "{scheme}-sentinel://{hosts}/{database}?master={}",
            self.master
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Group, Error> {
        Group::parse(url, &Login::default())
    }

    #[test]
    fn a_group_is_read_from_its_url_and_shown_without_secrets() {
        let url =
            "redis-sentinel://me:hush@one:7000,two,[::1]:7002/3?master=main&sentinel_pass=hush2";
        let group = parse(url).unwrap();
        let shown = "redis-sentinel://one:7000,two:26379,[::1]:7002/3?master=main";
        assert_eq!(group.to_string(), shown);
        assert_eq!(group.of_data.info.redis_settings().password(), Some("hush"));
        assert_eq!(
            group.of_sentinels.info.redis_settings().password(),
            Some("hush2")
        );
        assert_eq!(group.of_sentinels.database(), 0);
        let valkey = parse("VALKEY-sentinel://one?master=main").unwrap();
        assert_eq!(
            valkey.to_string(),
            "redis-sentinel://one:26379/0?master=main"
        );
    }

    #[test]
    fn where_a_server_is_reached_is_an_address_and_no_login() {
        for (says, is_at) in [("me:hush@one:1", "two:2"), ("one:1", "me:hush@two:2")] {
            let given = Sentinel::new(["one"]).master("main");
            let Err(error) = Group::of(&given.reached_at(says, is_at), &Login::default()) else {
                panic!("{says} was taken")
            };
            let error = error.to_string();
            assert!(
                error.contains("reached_at") && !error.contains("hush"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_wrong_with_the_url_of_a_group_is_said_without_its_secrets() {
        for (url, says) in [
            ("redis-sentinel://:hush@one,two/", "?master=main"),
            ("redis-sentinel://:hush@one,two/?master=", "?master=main"),
            (
                "redis-sentinel://:hush@one/?master=a&master=b",
                "given once",
            ),
            (
                "redis-sentinel://:hush@one/?master=a&db=3",
                "/3?master=main",
            ),
            (
                "redis-sentinel://one/?master=a&sentinel_pass=a&hush",
                "& as %26",
            ),
            (
                "redis-sentinel://:hush@one:0/?master=a",
                "between 1 and 65535",
            ),
            ("redis-sentinel://:hush@/?master=a", "a host"),
            ("redis-sentinel://:hush@one,/?master=a", "a host"),
            ("redis-sentinel://:hush@one/-1?master=a", "at least 0"),
            ("redis-sentinel://:hush,one/?master=a", "an @ behind it"),
            (
                "redis-sentinel://me:hush@one,me:hush@two/?master=a",
                "@ too many",
            ),
            ("redis-sentinel://:12#hush@one/?master=a", "# as %23"),
            ("redis-sentinel://:12/hush@one/?master=a", "/ as %2F"),
            (
                "redis-sentinel://one/?master=a?sentinel_pass=hush",
                "separated by &",
            ),
            ("redis-sentinel://one/?master=a&hush", "is unknown"),
        ] {
            let Err(error) = parse(url) else {
                panic!("{url} was taken")
            };
            let error = error.to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush"), "{url}: {error}");
        }
    }
}
