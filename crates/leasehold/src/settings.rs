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
/// The values of the fields are checked when the client connects, as those given to the methods are.
impl<'de> Deserialize<'de> for ClientBuilder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = ClientSettings::deserialize(deserializer).map_err(|error| {
            // It repeats a text that stands in place of the settings, which may be a URL with a password.
            // Errors of serde have no kinds: this one is told by the words of `expecting`, below.
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

/// How a setting stands in a file, and what its method on the builder is given.
trait Setting {
    type Value;

    fn value(self) -> Self::Value;
}

/// A row for each method of the builder: its name, and how its argument stands in a file.
macro_rules! client_settings {
    ($($(#[$where:meta])? $name:ident: $form:ty),+ $(,)?) => {
        #[derive(Default, Deserialize)]
        #[serde(
            default,
            deny_unknown_fields,
            rename = "the settings of a client",
            expecting = "the settings of a client, each under its name"
        )]
        struct ClientSettings {
            $($(#[$where])? $name: Option<$form>),+
        }

        impl ClientSettings {
            fn builder(self) -> ClientBuilder {
                let mut builder = ClientBuilder::default();
                $(
                    $(#[$where])?
                    if let Some(setting) = self.$name {
                        builder = builder.$name(setting.value());
                    }
                )+
                builder
            }
        }
    };
}

client_settings! {
    url: Url,
    quorum: Urls,
    longest_lease: Time,
    server_timeout: Time,
    persistent_servers: bool,
    username: String,
    password: Secret,
    database: u32,
    #[cfg(feature = "tls")]
    tls: TlsSettings,
    connect_timeout: Time,
    operation_timeout: Time,
    lease: Time,
    renew_every: Time,
    poll_every: Time,
    fair_wait_timeout: Time,
    redisson_watchdog: Time,
    text_permit_ids: bool,
    linger: Time,
    handoff: HandoffSettings,
    may_duplicate: bool,
    token_retention: Retention,
    name_prefix: String,
    check_server: bool,
    scan_interval: Time,
    sharded_channels: bool,
    durability: DurabilitySettings,
    durability_timeout: Time,
    unmet: UnmetSettings,
    label: String,
}

/// Forms from which the value follows.
macro_rules! setting {
    ($($form:ty => $value:ty: |$it:ident| $of:expr;)+) => {
        $(
            impl Setting for $form {
                type Value = $value;

                fn value(self) -> $value {
                    let $it = self;
                    $of
                }
            }
        )+
    };
}

setting! {
    bool => bool: |it| it;
    u32 => u32: |it| it;
    String => String: |it| it;
    Url => String: |it| it.0;
    Urls => Vec<String>: |it| it.0;
    Secret => String: |it| it.0;
    Time => Duration: |it| it.0;
    Retention => Option<Duration>: |it| it.0;
    HandoffSettings => Handoff: |it| Handoff::new(it.max_in_row, it.max_time.0);
    UnmetSettings => Unmet: |it| match it {
        UnmetSettings::GiveBack => Unmet::GiveBack,
        UnmetSettings::Accept => Unmet::Accept,
    };
    DurabilitySettings => Durability: |it| match it {
        DurabilitySettings::Primary => Durability::Primary,
        DurabilitySettings::Replicas(replicas) => Durability::Replicas(replicas),
        DurabilitySettings::Majority => Durability::Majority,
        DurabilitySettings::Aof => Durability::Aof,
    };
}

#[cfg(feature = "tls")]
setting! {
    TlsSettings => crate::Tls: |it| it.0;
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
        // The error of serde would repeat the value, which may be a URL with a password (bug 276).
        text.map(Url)
            .map_err(|_| D::Error::custom("url must be a text, such as \"redis://127.0.0.1/\""))
    }
}

/// The same of several.
struct Urls(Vec<String>);

impl<'de> Deserialize<'de> for Urls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::deserialize(deserializer);
        // As of `Url`: the error would repeat what stands in place of the list (bug 276).
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
