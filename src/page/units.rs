//! Numbers as an engineer reads them: three digits and a unit.

use super::markup::at;
use std::fmt::Write;

/// A time given in milliseconds.
pub fn time(ms: f64) -> String {
    match ms {
        _ if ms <= 0.0 => "0".into(),
        _ if ms >= 999.5 => format!("{} s", digits(ms / 1e3)),
        _ if ms >= 0.9995 => format!("{} ms", digits(ms)),
        _ if ms >= 0.9995e-3 => format!("{} µs", digits(ms * 1e3)),
        _ => format!("{} ns", digits(ms * 1e6)),
    }
}

/// Lines of a plot at these times, from the first height to the second, with the times below.
pub fn time_grid(svg: &mut String, times: &[f64], scale: &impl Fn(f64) -> f64, [top, bottom]: [f64; 2]) {
    for &tick in times {
        let x = at(scale(tick));
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{x} {top}V{}\"/><text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            at(bottom),
            at(bottom + 18.0),
            time(tick)
        );
    }
}

/// A number with a decimal prefix and a unit, such as `4.25 TB/s`.
pub fn si(value: f64, unit: &str) -> String {
    let magnitude = value.abs();
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match prefixes.iter().find(|(scale, _)| magnitude >= scale * 0.9995) {
        Some((scale, prefix)) => format!("{} {prefix}{unit}", digits(value / scale)),
        None => format!("{} {unit}", digits(value)).trim_end().to_owned(),
    }
}

/// A ratio, such as `2.20×`.
pub fn ratio(value: f64) -> String {
    format!("{}×", digits(value))
}

/// A share of one as percent.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent != 0.0 && percent.abs() < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Three digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        0.0 => "0".into(),
        v if v >= 0.000_999_5 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Round numbers from 0 up to `most`, about `count` of them.
pub fn ticks(most: f64, count: usize) -> Vec<f64> {
    if most <= 0.0 || !most.is_finite() {
        return vec![0.0];
    }
    let rough = most / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|&step| step >= rough).unwrap_or(rough);
    (0..).map(|i| f64::from(i) * step).take_while(|&tick| tick <= most * 1.0001).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let times = [0.0, 0.0000123, 0.00456, 0.9999, 1.0, 12.34, 999.9, 61234.0].map(time);
        assert_eq!(times, ["0", "12.3 ns", "4.56 µs", "1.00 ms", "1.00 ms", "12.3 ms", "1.00 s", "61.2 s"]);
        assert_eq!([si(4.25e12, "B/s"), si(0.0, "B"), si(999.0, "B"), si(1500.0, "")], ["4.25 TB/s", "0 B", "999 B", "1.50 k"]);
        assert_eq!([percent(0.031), percent(0.0), percent(0.5), percent(1.0)], ["3.1 %", "0 %", "50 %", "100 %"]);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(2.3, 5), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(ticks(0.0, 5), [0.0]);
    }
}
