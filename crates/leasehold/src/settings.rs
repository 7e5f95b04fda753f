//! The settings of a client in a configuration file. Feature `serde`.

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Expected, Unexpected, Visitor},
};

use crate::{ClientBuilder, Durability, Handoff, Unmet};

/// Each setting of a [`ClientBuilder`] under the name of its method; what is left out has its default. A field that is not known is
/// refused. Sentinels are given by their `url`; `connection` and what is no data (credentials providers, observers) in the program alone.
///
/// What the fields say is checked when the client connects, as what the methods say.
impl<'de> Deserialize<'de> for ClientBuilder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = ClientSettings::deserialize(deserializer).map_err(|error| {
            // It repeats a text that stands in place of the settings, which may be a URL with a password.
            let is_of_another_type = error.to_string().contains(SETTINGS);
            if is_of_another_type {
                let said = format_args!("invalid type, expected {SETTINGS}, each under its name");
                return D::Error::custom(said);
            }
            error
        });
        settings.map(ClientSettings::builder)
    }
}

const SETTINGS: &str = "the settings of a client";

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename = "the settings of a client",
    expecting = "the settings of a client, each under its name"
)]
struct ClientSettings {
    url: Option<Url>,
    quorum: Option<Urls>,
    longest_lease: Option<Time>,
    server_timeout: Option<Time>,
    persistent_servers: Option<bool>,
    username: Option<String>,
    password: Option<Secret>,
    database: Option<u32>,
    #[cfg(feature = "tls")]
    tls: Option<TlsSettings>,
    connect_timeout: Option<Time>,
    operation_timeout: Option<Time>,
    lease: Option<Time>,
    renew_every: Option<Time>,
    poll_every: Option<Time>,
    fair_wait_timeout: Option<Time>,
    redisson_watchdog: Option<Time>,
    text_permit_ids: Option<bool>,
    linger: Option<Time>,
    handoff: Option<HandoffSettings>,
    may_duplicate: Option<bool>,
    token_retention: Option<Retention>,
    name_prefix: Option<String>,
    check_server: Option<bool>,
    scan_interval: Option<Time>,
    sharded_channels: Option<bool>,
    durability: Option<DurabilitySettings>,
    durability_timeout: Option<Time>,
    unmet: Option<UnmetSettings>,
    label: Option<String>,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    rename = "a hand-off",
    expecting = "a hand-off, such as { max_in_row = 64, max_time = \"20ms\" }"
)]
struct HandoffSettings {
    max_in_row: u32,
    max_time: Time,
}

#[derive(Deserialize)]
#[serde(
    rename_all = "snake_case",
    expecting = "\"primary\", \"majority\", \"aof\", or { replicas = 1 }"
)]
enum DurabilitySettings {
    Primary,
    Replicas(u8),
    Majority,
    Aof,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum UnmetSettings {
    GiveBack,
    Accept,
}

#[cfg(feature = "tls")]
#[derive(Deserialize)]
#[serde(try_from = "TlsFields")]
struct TlsSettings(crate::Tls);

#[cfg(feature = "tls")]
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    rename = "the settings for TLS",
    expecting = "the settings for TLS, each under its name"
)]
struct TlsFields {
    root_file: Option<std::path::PathBuf>,
    #[serde(default)]
    pinned: Vec<String>,
    client_cert_file: Option<std::path::PathBuf>,
    client_key_file: Option<std::path::PathBuf>,
    server_name: Option<String>,
}

impl ClientSettings {
    fn builder(self) -> ClientBuilder {
        let builder = ClientBuilder::default();
        let builder = with(builder, self.url.map(|it| it.0), ClientBuilder::url);
        let builder = with(builder, self.quorum.map(|it| it.0), ClientBuilder::quorum);
        let builder = with(
            builder,
            self.longest_lease.map(|time| time.0),
            ClientBuilder::longest_lease,
        );
        let builder = with(
            builder,
            self.server_timeout.map(|time| time.0),
            ClientBuilder::server_timeout,
        );
        let builder = with(
            builder,
            self.persistent_servers,
            ClientBuilder::persistent_servers,
        );
        let builder = with(builder, self.username, ClientBuilder::username);
        let builder = with(
            builder,
            self.password.map(|it| it.0),
            ClientBuilder::password,
        );
        let builder = with(builder, self.database, ClientBuilder::database);
        #[cfg(feature = "tls")]
        let builder = with(builder, self.tls.map(|it| it.0), ClientBuilder::tls);
        let time = |time: Option<Time>| time.map(|time| time.0);
        let builder = with(
            builder,
            time(self.connect_timeout),
            ClientBuilder::connect_timeout,
        );
        let builder = with(
            builder,
            time(self.operation_timeout),
            ClientBuilder::operation_timeout,
        );
        let builder = with(builder, time(self.lease), ClientBuilder::lease);
        let builder = with(builder, time(self.renew_every), ClientBuilder::renew_every);
        let builder = with(builder, time(self.poll_every), ClientBuilder::poll_every);
        let builder = with(
            builder,
            time(self.fair_wait_timeout),
            ClientBuilder::fair_wait_timeout,
        );
        let builder = with(
            builder,
            time(self.redisson_watchdog),
            ClientBuilder::redisson_watchdog,
        );
        let as_text = self.text_permit_ids;
        let builder = with(builder, as_text, ClientBuilder::text_permit_ids);
        let builder = with(builder, time(self.linger), ClientBuilder::linger);
        let handoff = |it: HandoffSettings| Handoff::new(it.max_in_row, it.max_time.0);
        let builder = with(builder, self.handoff.map(handoff), ClientBuilder::handoff);
        let builder = with(builder, self.may_duplicate, ClientBuilder::may_duplicate);
        let retention = self.token_retention.map(|it| it.0);
        let builder = with(builder, retention, ClientBuilder::token_retention);
        let builder = with(builder, self.name_prefix, ClientBuilder::name_prefix);
        let builder = with(builder, self.check_server, ClientBuilder::check_server);
        let scan = time(self.scan_interval);
        let builder = with(builder, scan, ClientBuilder::scan_interval);
        let sharded = self.sharded_channels;
        let builder = with(builder, sharded, ClientBuilder::sharded_channels);
        let builder = with(
            builder,
            self.durability.map(Into::into),
            ClientBuilder::durability,
        );
        let builder = with(
            builder,
            time(self.durability_timeout),
            ClientBuilder::durability_timeout,
        );
        let unmet = self.unmet.map(|it| match it {
            UnmetSettings::GiveBack => Unmet::GiveBack,
            UnmetSettings::Accept => Unmet::Accept,
        });
        let builder = with(builder, unmet, ClientBuilder::unmet);
        with(builder, self.label, ClientBuilder::label)
    }
}

impl From<DurabilitySettings> for Durability {
    fn from(given: DurabilitySettings) -> Durability {
        match given {
            DurabilitySettings::Primary => Durability::Primary,
            DurabilitySettings::Replicas(replicas) => Durability::Replicas(replicas),
            DurabilitySettings::Majority => Durability::Majority,
            DurabilitySettings::Aof => Durability::Aof,
        }
    }
}

/// The builder with this setting, if there is one.
fn with<T>(
    builder: ClientBuilder,
    setting: Option<T>,
    set: impl FnOnce(ClientBuilder, T) -> ClientBuilder,
) -> ClientBuilder {
    match setting {
        Some(value) => set(builder, value),
        None => builder,
    }
}

#[cfg(feature = "tls")]
impl TryFrom<TlsFields> for TlsSettings {
    type Error = &'static str;

    fn try_from(fields: TlsFields) -> Result<Self, Self::Error> {
        let mut tls = crate::Tls::new();
        if let Some(file) = fields.root_file {
            tls = tls.root_file(file);
        }
        for sha256 in fields.pinned {
            tls = tls.pinned(sha256);
        }
        match (fields.client_cert_file, fields.client_key_file) {
            (Some(certificates), Some(key)) => tls = tls.client_cert_file(certificates, key),
            (None, None) => {}
            _ => {
                return Err(
                    "client_cert_file and client_key_file belong together: give both, or neither",
                );
            }
        }
        if let Some(name) = fields.server_name {
            tls = tls.server_name(name);
        }
        Ok(TlsSettings(tls))
    }
}

/// A duration as people write it.
struct Time(Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TimeVisitor)
    }
}

/// `None`: for ever.
struct Retention(Option<Duration>);

impl<'de> Deserialize<'de> for Retention {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(RetentionVisitor)
    }
}

struct RetentionVisitor;

impl Visitor<'_> for RetentionVisitor {
    type Value = Retention;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration in quotes, such as \"7days\", or \"forever\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Retention, E> {
        match text {
            "forever" => Ok(Retention(None)),
            text => duration(text, &self).map(|time| Retention(Some(time))),
        }
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration in quotes, such as \"10s\", \"500ms\" or \"1m 30s\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
        duration(text, &self).map(Time)
    }
}

fn duration<E: serde::de::Error>(text: &str, expected: &dyn Expected) -> Result<Duration, E> {
    // Months and years have no fixed length, and an `M` was most likely meant to be a minute.
    let units = text.split(|c: char| !c.is_alphabetic());
    let is_vague = |unit: &str| {
        matches!(
            unit,
            "M" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years"
        )
    };
    if let Some(unit) = units.into_iter().find(|unit| is_vague(unit)) {
        return Err(E::custom(format_args!(
            "{text:?} is in months or years ({unit}), but must be in weeks, days or less; a minute is `m`, and a year \"365days\""
        )));
    }
    humantime::parse_duration(text).map_err(|_| E::invalid_value(Unexpected::Str(text), expected))
}

/// It may contain a password, so no error repeats what stands there.
struct Url(String);

impl<'de> Deserialize<'de> for Url {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer);
        text.map(Url)
            .map_err(|_| D::Error::custom("url must be a text, such as \"redis://127.0.0.1/\""))
    }
}

/// The same of several.
struct Urls(Vec<String>);

impl<'de> Deserialize<'de> for Urls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::deserialize(deserializer);
        texts.map(Urls).map_err(|_| {
            D::Error::custom("quorum must be a list of texts, each the URL of a server")
        })
    }
}

/// A text that no error repeats.
struct Secret(String);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer);
        // The error would repeat a password of digits that lacks its quotes.
        text.map(Secret)
            .map_err(|_| D::Error::custom("the password must be a text; put it in quotes"))
    }
}
