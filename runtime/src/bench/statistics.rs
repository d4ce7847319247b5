//! Medians.

use serde::Serialize;

/// Median and extremes of some times, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one.
    #[serde(rename = "ms")]
    pub median: f64,
    /// The shortest.
    #[serde(rename = "ms_min")]
    pub min: f64,
    /// The longest.
    #[serde(rename = "ms_max")]
    pub max: f64,
}

impl Spread {
    /// Of times in seconds; zeros where there are none.
    pub fn of_seconds(times: &[f64]) -> Spread {
        let mut sorted: Vec<f64> = times.iter().map(|seconds| seconds * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let Some((&min, &max)) = sorted.first().zip(sorted.last()) else { return Spread::default() };
        Spread { median: median(&sorted), min, max }
    }
}

/// The middle of ascending numbers; 0 where there are none.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of_seconds(&[0.003, 0.001, 0.002]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert_eq!(Spread::of_seconds(&[]), Spread::default());
    }
}
