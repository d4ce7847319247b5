//! The time of whole runs: one bar a plan, with every run as a dot.

use super::{
    markup::at,
    units::{ticks, time, time_grid},
};
use eglu_runtime::bench::{Comparison, Measurement};
use std::fmt::Write;

const WIDTH: f64 = 1040.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 150.0;
const ROW: f64 = 66.0;
const TOP: f64 = 26.0;

/// Dots of one bar; a thousand would be a smear.
const DOTS: usize = 200;

/// Both plans on one axis from zero, with the roofline of the fused one.
pub fn chart(comparison: &Comparison) -> String {
    let plans = [("unfused", &comparison.unfused), ("fused", &comparison.fused)];
    // Runs that something else disturbed would make the bars small: their lines end in arrows.
    let reach = |plan: &Measurement| (1.25 * quantile(plan, 0.95)).min(2.5 * plan.ms.median).max(1.05 * plan.ms.median);
    let most = plans.iter().map(|(_, plan)| reach(plan)).fold(0.0, f64::max);
    let scale = |ms: f64| LEFT + (WIDTH - LEFT - RIGHT) * (ms / most.max(1e-12)).min(1.0);
    let height = TOP + 2.0 * ROW + 34.0;
    let said: Vec<String> = plans.iter().map(|(name, plan)| format!("{name} {}", time(plan.ms.median))).collect();
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Median time of a run: {}\">",
        said.join(", ")
    );
    let bottom = TOP + 2.0 * ROW;
    time_grid(&mut svg, &ticks(most, 8), &scale, [TOP, bottom]);
    for (i, (name, plan)) in plans.into_iter().enumerate() {
        bar(&mut svg, name, plan, TOP + ROW * i as f64, most, &scale);
    }
    if comparison.roofline_ms > 0.0 && comparison.roofline_ms <= most {
        let x = scale(comparison.roofline_ms);
        let (anchor, shift) = if x > WIDTH / 2.0 { ("end", -5.0) } else { ("start", 5.0) };
        let _ = write!(
            svg,
            "<path class=\"limit\" d=\"M{0} {1}V{2}\"/><text class=\"limit-text\" x=\"{3}\" y=\"{4}\" text-anchor=\"{anchor}\">roofline {5}</text>",
            at(x),
            at(TOP - 12.0),
            at(bottom),
            at(x + shift),
            at(TOP - 5.0),
            time(comparison.roofline_ms)
        );
    }
    svg + "</svg>"
}

fn bar(svg: &mut String, name: &str, plan: &Measurement, top: f64, most: f64, scale: &impl Fn(f64) -> f64) {
    let (middle, x0) = (top + ROW / 2.0, scale(0.0));
    let median = scale(plan.ms.median);
    let _ = write!(
        svg,
        "<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\
         <rect class=\"bar {name}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"30\"/>",
        at(LEFT - 12.0),
        at(middle + 4.0),
        at(x0),
        at(middle - 15.0),
        at(median - x0)
    );
    for (i, ms) in drawn_runs(plan).into_iter().enumerate().filter(|&(_, ms)| ms <= most) {
        // Spread over the bar's height in a fixed order, so that equal times do not hide each other.
        let y = middle - 11.0 + 22.0 * (i as f64 * 0.618_034).fract();
        let _ = write!(svg, "<circle class=\"run\" cx=\"{}\" cy=\"{}\" r=\"1.6\"/>", at(scale(ms)), at(y));
    }
    let beyond = plan.ms.max > most;
    let (low, high) = (scale(plan.ms.min), scale(plan.ms.max));
    let _ = write!(
        svg,
        "<path class=\"whisker\" d=\"M{0} {1}H{2}M{0} {3}V{4}{5}\"/><path class=\"median\" d=\"M{6} {7}V{8}\"/>",
        at(low),
        at(middle),
        at(high),
        at(middle - 6.0),
        at(middle + 6.0),
        if beyond {
            format!("M{0} {1}l6 5l-6 5", at(high - 2.0), at(middle - 5.0))
        } else {
            format!("M{0} {1}v12", at(high), at(middle - 6.0))
        },
        at(median),
        at(middle - 19.0),
        at(middle + 19.0)
    );
    let _ = write!(
        svg,
        "<text class=\"value\" x=\"{0}\" y=\"{1}\">{2}</text><text class=\"tick\" x=\"{0}\" y=\"{3}\">{4} to {5}</text>",
        at(WIDTH - RIGHT + 14.0),
        at(middle - 1.0),
        time(plan.ms.median),
        at(middle + 15.0),
        time(plan.ms.min),
        time(plan.ms.max)
    );
}

/// Runs to draw, ascending: all, or evenly chosen ones, the extremes among them.
fn drawn_runs(plan: &Measurement) -> Vec<f64> {
    let mut sorted = plan.runs_ms.clone();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() <= DOTS {
        return sorted;
    }
    (0..DOTS).map(|i| sorted[i * (sorted.len() - 1) / (DOTS - 1)]).collect()
}

fn quantile(plan: &Measurement, share: f64) -> f64 {
    let mut sorted = plan.runs_ms.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.get(((sorted.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(plan.ms.median)
}
