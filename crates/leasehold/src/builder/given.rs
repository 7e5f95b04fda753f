//! The URL as it was given, before it is known whether it means a server or memory; and the label.

use std::borrow::Cow;

use crate::error::Invalid;

/// Characters that the parser of URLs would take out, or that were meant to be something else. The URL may carry a password, so
/// they are told without what is around them.
pub(super) fn check_characters(url: &str) -> Result<(), Invalid> {
    let is_odd = |c: char| c.is_ascii_whitespace() || c.is_ascii_control();
    let Some((at, odd)) = url.char_indices().find(|(_, c)| is_odd(*c)) else {
        return Ok(());
    };
    let what = match odd {
        ' ' => "a space",
        '\t' => "a tab",
        '\n' | '\r' => "a line break",
        _ => "a control character",
    };
    let place = match at {
        0 => "at its beginning",
        _ if url[at..].chars().all(is_odd) => "at its end",
        _ => "in it",
    };
    let limit = "without white space and control characters";
    Err(Invalid::new("url", format!("with {what} {place}"), limit)
        .remedy(format!("take it out, or write it as %{:02X}", odd as u32)))
}

/// The URL with the scheme `memory` in small letters. A scheme may be in any; those of servers the parser of URLs minds.
pub(super) fn in_small_letters(url: &str) -> Cow<'_, str> {
    match url.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("memory") => {
            format!("memory:{rest}").into()
        }
        _ => url.into(),
    }
}

/// The label that was given, or `host:pid`.
pub(super) fn label(given: Option<String>) -> Result<String, Invalid> {
    let label = given.unwrap_or_else(default_label);
    if label.len() > LABEL_MAX {
        let bytes = format!("{} bytes", label.len());
        return Err(Invalid::new("label", bytes, "at most 256 bytes")
            .remedy("it is a name for eyes; give a shorter one"));
    }
    if label.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(label);
    }
    let limit = "printable ASCII without spaces";
    Err(Invalid::new("label", format!("{label:?}"), limit)
        .remedy("the server refuses other connection names"))
}

/// The server has it in each connection's name, and under a key of the client's.
const LABEL_MAX: usize = 256;

fn default_label() -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let mut label = format!("{host}:{}", std::process::id());
    // A host's name may have other characters, which the server refuses in the name of a connection.
    label.retain(|c| c.is_ascii_graphic());
    label
}

impl std::fmt::Debug for super::ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the URL: it may carry a password.
        f.debug_struct("ClientBuilder")
            .field("config", &self.config)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
