//! Arithmetic on measurements.

use std::time::Duration;

/// A count as a number to divide by.
#[expect(
    clippy::cast_precision_loss,
    reason = "what is counted here stays far below 2^53"
)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The value below which this part (0 to 1) of the values lies.
pub(crate) fn quantile<T: Copy + PartialOrd>(values: &mut [T], part: f64) -> T {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(|a, b| a.partial_cmp(b).expect("measurements are numbers"));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of the slice"
    )]
    let at = ((values.len() - 1) as f64 * part).round() as usize;
    values[at]
}

pub(crate) fn median<T: Copy + PartialOrd>(values: &[T]) -> T {
    quantile(&mut values.to_vec(), 0.5)
}

pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN, f64::max)
}

/// Jain's index of fairness: 1 if all got the same, 1/n if one got everything.
pub(crate) fn jain(counts: &[u64]) -> f64 {
    let sum: f64 = counts.iter().copied().map(float).sum();
    let squares: f64 = counts.iter().map(|&n| float(n) * float(n)).sum();
    sum * sum / (float(counts.len() as u64) * squares)
}
