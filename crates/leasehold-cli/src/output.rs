//! Output to the terminal: words on stderr, answers on stdout, and never a password.

use std::{
    borrow::Cow,
    ffi::OsString,
    io::{ErrorKind, Write},
    time::Duration,
};

use serde_json::Value;

use crate::exit::Failure;

/// Writes a line to standard error, in one piece. A failure to do so could be told nowhere.
pub(crate) fn say(line: &str) {
    let _ = anstream::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A remark of this program, beside the output of CMD: one line.
pub(crate) fn remark(message: &str) -> String {
    format!("leasehold: {}", visible(&redact(message)))
}

/// A failure, for eyes or as one line of JSON.
pub(crate) fn failure(failure: &Failure, json: bool) -> String {
    if json {
        json_line(&serde_json::json!({
            "outcome": "failed",
            "error": redact(&failure.message),
            "exit": failure.exit.code(),
        }))
    } else {
        remark(&failure.message)
    }
}

/// A document as one line of JSON, as it may be printed: JSON itself escapes only some of what a terminal obeys.
pub(crate) fn json_line(document: &Value) -> String {
    escape(&document.to_string(), is_obeyed, |c| {
        format!("\\u{:04x}", u32::from(c))
    })
}

/// The answer of a command as one line of JSON, on stdout.
pub(crate) fn answer(document: &Value) -> Result<(), Failure> {
    print(&format!("{}\n", json_line(document)))
}

/// The answer of a command, on stdout. A reader that has closed the pipe has seen enough; any other failure is the command's.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::internal("write to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Text that others wrote, as it may be printed: a terminal obeys control characters, so they are shown as in
/// `\u{1b}`.
///
/// Names and owners come from the server as any client has written them.
pub(crate) fn visible(text: &str) -> String {
    escape(text, is_obeyed, |c| c.escape_unicode().to_string())
}

fn escape(text: &str, which: impl Fn(char) -> bool, how: impl Fn(char) -> String) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if which(c) {
            escaped.push_str(&how(c));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Control characters, those that change the order in which the text around them is shown, and those that are not seen: a name with one would
/// look like another.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2064}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Takes user names and passwords out of a text: in a URL all up to its last @, or to that of a URL right behind it, since in
/// front of that a quote or a slash may belong to a password; and all that stands behind `pass=` for a Unix socket, since a & may, too.
///
/// The library keeps secrets out of its errors; this covers the name of a lock that has one in it.
pub(crate) fn redact(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(redact_word)
        .collect()
}

fn redact_word(word: &str) -> Cow<'_, str> {
    let login = word.find("://").map(|at| at + "://".len());
    let login = login.filter(|start| word[*start..].contains('@'));
    let ends = ["?pass=", "&pass="].map(|name| Some(word.find(name)? + name.len()));
    let password = ends.into_iter().flatten().min();
    let end = match (password, word.rfind('@')) {
        (None, Some(at)) => at,
        _ => word.trim_end().len(),
    };
    match login.or(password) {
        Some(start) => format!("{}***{}", &word[..start], &word[end..]).into(),
        None => word.into(),
    }
}

/// A message about the command line without those of its words that may be an address with a password, right or wrong, and
/// without the values of options that may.
pub(crate) fn without_addresses(text: String, words: impl Iterator<Item = OsString>) -> String {
    let words = words.filter_map(|word| word.into_string().ok());
    words.fold(text, |text, word| {
        let value = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => value,
            _ => &word,
        };
        if value.len() < 3 || !value.contains(['@', ':', '?', '#', '%', '/']) {
            return text;
        }
        // A message may quote it as it is, or as a string of Rust.
        let quoted = format!("{value:?}");
        let text = text.replace(value, "***");
        text.replace(quoted.trim_matches('"'), "***")
    })
}

/// A duration for eyes: two units at most, no finer than a tenth of a second once it takes seconds.
pub(crate) fn human(duration: Duration) -> String {
    let ms = duration.as_millis();
    let (seconds, tenths) = (ms / 1000, ms % 1000 / 100);
    match seconds {
        0 => format!("{ms} ms"),
        1..60 if tenths == 0 => format!("{seconds} s"),
        1..60 => format!("{seconds}.{tenths} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// ` and 2 others`, behind the first of several.
pub(crate) fn others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " and another".to_owned(),
        _ => format!(" and {count} others"),
    }
}

/// Whole milliseconds, as JSON carries them.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_hidden_wherever_they_stand() {
        for (text, clean) in [
            ("no url here", "no url here"),
            ("redis://127.0.0.1/", "redis://127.0.0.1/"),
            (
                "cannot reach redis://ada:s3cret@db:6379/0, sorry",
                "cannot reach redis://***@db:6379/0, sorry",
            ),
            (
                "'redis://:p@ss@db' and rediss://:x@y/",
                "'redis://***@db' and rediss://***@y/",
            ),
            (
                "unexpected 'redis://:s'3@c/r?e#t@db' found",
                "unexpected 'redis://***@db' found",
            ),
            (
                "redis+unix:///run/r.sock?pass=s'3/c&db=2 and redis+unix:///r?user=a&pass=b",
                "redis+unix:///run/r.sock?pass=*** and redis+unix:///r?user=a&pass=***",
            ),
            (
                "'unix:/r?db=1&pass=a&tail&pass=b' and 'unix:///r?pass=a@tail' found",
                "'unix:/r?db=1&pass=*** and 'unix://*** found",
            ),
            (
                "mail ada@example.org about redis://db",
                "mail ada@example.org about redis://db",
            ),
        ] {
            assert_eq!(redact(text), clean);
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(visible("Zoë's job, 日本"), "Zoë's job, 日本");
        assert_eq!(
            visible("\u{1b}[2J\r\n\u{9b}m\u{202e}"),
            r"\u{1b}[2J\u{d}\u{a}\u{9b}m\u{202e}"
        );
    }

    #[test]
    fn json_without_what_a_terminal_would_obey_means_the_same() {
        let document = serde_json::json!({ "owner": "\u{1b}\u{7f}\u{9b}m\u{202e}\n" });
        let line = json_line(&document);
        assert!(!line.contains(is_obeyed), "{line:?}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read, document);
    }

    #[test]
    fn durations_read_well() {
        for (ms, text) in [
            (0, "0 ms"),
            (850, "850 ms"),
            (1_000, "1 s"),
            (21_340, "21.3 s"),
            (130_000, "2 min 10 s"),
            (7_260_000, "2 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), text);
        }
    }
}
