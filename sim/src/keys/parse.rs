//! Numbers and limits, as Redis reads and writes them.

pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NO_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const NO_FLOAT: &str = "ERR value is not a valid float";
pub(super) const NO_LIMIT: &str = "ERR min or max is not a float";

/// A decimal number without anything around it.
pub(super) fn int(text: &[u8]) -> Result<i64, String> {
    let written = std::str::from_utf8(text).map_err(|_| NO_INTEGER)?;
    let number: i64 = written.parse().map_err(|_| NO_INTEGER)?;
    if number.to_string() == written {
        Ok(number)
    } else {
        Err(NO_INTEGER.to_owned())
    }
}

fn parsed(text: &[u8]) -> Option<f64> {
    let written = std::str::from_utf8(text).ok()?;
    let sound = !written.is_empty() && !written.starts_with(char::is_whitespace);
    let number: f64 = written.parse().ok().filter(|_| sound)?;
    (!number.is_nan()).then_some(number)
}

pub(super) fn score(text: &[u8]) -> Result<f64, String> {
    parsed(text).ok_or_else(|| NO_FLOAT.to_owned())
}

/// A limit of a range of scores: `(` before it leaves it out.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    at: f64,
    without: bool,
}

impl Limit {
    pub(super) fn read(text: &[u8]) -> Result<Limit, String> {
        let (number, without) = match text.strip_prefix(b"(") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let at = parsed(number).ok_or(NO_LIMIT)?;
        Ok(Limit { at, without })
    }

    pub(super) fn is_below(self, score: f64) -> bool {
        if self.without {
            self.at < score
        } else {
            self.at <= score
        }
    }

    pub(super) fn is_above(self, score: f64) -> bool {
        if self.without {
            self.at > score
        } else {
            self.at >= score
        }
    }
}

/// A score in words.
#[allow(
    clippy::cast_possible_truncation,
    reason = "only where nothing is lost"
)]
pub(super) fn score_in_words(score: f64) -> Vec<u8> {
    if score.is_infinite() {
        return if score > 0.0 {
            b"inf".to_vec()
        } else {
            b"-inf".to_vec()
        };
    }
    if score.fract() == 0.0 && score.abs() < 1e17 {
        return (score as i64).to_string().into_bytes();
    }
    score.to_string().into_bytes()
}

/// A range of places, the last included, counted from the end if negative; cut to what is there.
pub(super) fn range(from: i64, to: i64, length: usize) -> std::ops::Range<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let place = |at: i64| {
        if at < 0 {
            at.saturating_add(length)
        } else {
            at
        }
    };
    let (from, to) = (place(from).max(0), place(to).min(length - 1));
    if from > to || from >= length {
        return 0..0;
    }
    let at = |place: i64| usize::try_from(place).unwrap_or(0);
    at(from)..at(to) + 1
}

/// Whether a text fits a pattern of `SCAN`: `*`, `?` and `\`, of which the last takes a character as it is, and sets.
pub(super) fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| fits(rest, &text[skipped..])),
        ([b'?', rest @ ..], [_, behind @ ..]) => fits(rest, behind),
        ([b'[', rest @ ..], [first, behind @ ..]) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else {
                return false;
            };
            let (set, rest) = (&rest[..end], &rest[end + 1..]);
            let (set, not) = match set.strip_prefix(b"^") {
                Some(set) => (set, true),
                None => (set, false),
            };
            let mut has = false;
            let mut rest_of = set;
            while let [from, others @ ..] = rest_of {
                has |= match others {
                    [b'-', to, ..] => (from..=to).contains(&first),
                    _ => from == first,
                };
                rest_of = if let [b'-', _, others @ ..] = others {
                    others
                } else {
                    others
                };
            }
            (has != not) && fits(rest, behind)
        }
        ([b'\\', literal, rest @ ..] | [literal, rest @ ..], [first, behind @ ..]) => {
            literal == first && fits(rest, behind)
        }
        _ => false,
    }
}
