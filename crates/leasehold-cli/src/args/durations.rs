//! Durations as they are typed.

use std::time::Duration;

/// A renewed lease is at least as long, so that it can be renewed each millisecond.
const LEASE_MIN: Duration = Duration::from_millis(3);
/// The library takes no longer one.
const LEASE_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A duration. A plain number is seconds, as `flock -w` takes them.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text.starts_with('-') && text[1..].starts_with(|c: char| c == '.' || c.is_ascii_digit()) {
        return Err(format!(
            "{text} is negative, and a duration cannot be: write it like 30s, 500ms or \"1m 30s\""
        ));
    }
    if let Ok(seconds) = text.parse::<f64>()
        && seconds.is_finite()
    {
        return Duration::try_from_secs_f64(seconds)
            .map_err(|_| format!("{text} seconds are too many"));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like 30s, 500ms or \"1m 30s\""))
}

/// A time to wait.
pub(super) fn wait(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_nan() => duration(text),
        Ok(seconds) if seconds.is_sign_negative() => Err(format!(
            "{text} is negative, and a time to wait cannot be: 0 asks once; leave it out to wait for ever"
        )),
        Ok(seconds) => Duration::try_from_secs_f64(seconds)
            .map_err(|_| format!("{text} seconds are too many; leave it out to wait for ever")),
        Err(_) => duration(text),
    }
}

pub(super) fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(
            "a lease of zero ends before CMD starts; leave --lease out for 30s, renewed while CMD runs"
                .to_owned(),
        ),
        lease if lease < LEASE_MIN => Err(
            "a lease is at least 3ms, so that it can be renewed in time; leave --lease out for 30s".to_owned(),
        ),
        lease if lease > LEASE_MAX => Err(
            "a lease is at most 366days; it is renewed while CMD runs, so it need not last as long as CMD: \
             leave --lease out for 30s"
                .to_owned(),
        ),
        lease => Ok(lease),
    }
}

pub(super) fn at_least(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        most if most > LEASE_MAX => Err("at most 366days".to_owned()),
        least if least < LEASE_MIN => {
            Err("at least 3ms; leave it out to release NAME when CMD is done".to_owned())
        }
        at_least => Ok(at_least),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_number_is_seconds() {
        let seconds = Duration::from_secs_f64;
        for (text, is) in [("0", 0.0), ("30", 30.0), (" 0.5 ", 0.5), ("90s", 90.0)] {
            assert_eq!(wait(text), Ok(seconds(is)), "{text}");
        }
        for of in [lease, at_least, duration] {
            assert_eq!(of("30"), of("30s"));
            assert!(of("1e300").unwrap_err().contains("too many"));
        }
        for (text, word) in [
            ("-1", "negative"),
            ("-0.5s", "negative"),
            ("-inf", "negative"),
            ("1e300", "too many"),
            ("inf", "too many"),
            ("NaN", "like 30s"),
            ("-NaN", "like 30s"),
            ("-n", "like 30s"),
            ("soon", "like 30s"),
        ] {
            let error = wait(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_lease_that_the_library_would_refuse_is_refused_in_the_words_of_the_command_line() {
        for (text, word) in [
            ("0s", "zero"),
            ("2ms", "at least 3ms"),
            ("400days", "at most 366days"),
            ("-5s", "negative"),
            ("soon", "30s"),
        ] {
            let error = lease(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert_eq!(lease("3ms"), Ok(LEASE_MIN));
        assert_eq!(lease("366days"), Ok(LEASE_MAX));
        assert!(at_least("400days").unwrap_err().contains("366days"));
        assert!(at_least("0s").unwrap_err().contains("leave it out"));
    }
}
