//! Durations in the words of a person, for errors.

use std::time::Duration;

/// A duration as a person says it: `400d`, `1h 30m`, `30s`, `1.5s`, `20ms`. Exact, but for the seconds of very long ones.
pub(crate) fn humane(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = duration.as_secs();
    if seconds >= 10_000 * 86_400 {
        return format!("{}d", seconds / 86_400);
    }
    if duration.is_zero() {
        return "0s".to_owned();
    }
    if seconds < 60 || duration.subsec_nanos() > 0 {
        return format!("{duration:?}");
    }
    let mut rest = seconds;
    let parts = UNITS.iter().filter_map(|(length, unit)| {
        let (count, left) = (rest / length, rest % length);
        rest = left;
        (count > 0).then(|| format!("{count}{unit}"))
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// A duration that was measured, as exactly as it is of use; no longer than it is.
pub(crate) fn about(duration: Duration) -> String {
    let step = match duration.as_millis() {
        0..10 => Duration::from_micros(10),
        10..1_000 => Duration::from_millis(1),
        1_000..60_000 => Duration::from_millis(100),
        _ => Duration::from_secs(1),
    };
    let over = duration.as_nanos() % step.as_nanos();
    humane(duration.saturating_sub(Duration::from_nanos(u64::try_from(over).unwrap_or(0))))
}

/// A bound: the next millisecond, or the next second of a long one.
pub(crate) fn at_most(duration: Duration) -> String {
    let step = if duration.as_secs() < 60 {
        Duration::from_millis(1)
    } else {
        Duration::from_secs(1)
    };
    let less = duration.saturating_sub(Duration::from_nanos(1));
    let over = u64::try_from(less.as_nanos() % step.as_nanos()).unwrap_or(0);
    let whole = less.saturating_sub(Duration::from_nanos(over));
    humane(whole.saturating_add(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_as_a_person_says_them() {
        let ms = Duration::from_millis;
        for (duration, said) in [
            (Duration::ZERO, "0s"),
            (Duration::from_micros(999), "999µs"),
            (ms(20), "20ms"),
            (ms(1_500), "1.5s"),
            (ms(30_000), "30s"),
            (ms(90_000), "1m 30s"),
            (ms(5_400_000), "1h 30m"),
            (ms(400 * 86_400_000), "400d"),
            (Duration::MAX, "213503982334601d"),
        ] {
            assert_eq!(humane(duration), said);
        }
        for (duration, said) in [
            (Duration::from_nanos(1_239_567), "1.23ms"),
            (Duration::from_micros(123_400), "123ms"),
            (ms(4_999), "4.9s"),
            (ms(30_000), "30s"),
            (ms(90_999), "1m 30s"),
        ] {
            assert_eq!(about(duration), said);
        }
        for (duration, said) in [
            (ms(30_302), "30.302s"),
            (Duration::from_micros(1_001), "2ms"),
            (ms(60_001), "1m 1s"),
            (ms(61_000), "1m 1s"),
        ] {
            assert_eq!(at_most(duration), said);
        }
    }
}
