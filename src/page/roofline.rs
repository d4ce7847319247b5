//! The roofline: each step by its arithmetic intensity and the rate it reached, under the device's peak rates.

use super::{
    groups::Groups,
    markup::{at, escape, shortened},
    units::{percent, si, time},
};
use eglu_runtime::bench::{Comparison, StepReport};
use std::fmt::Write;

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 52.0;
/// Room at the left for steps without arithmetic.
const GUTTER: f64 = 62.0;

/// Steps that are named in the plot.
const NAMED: usize = 6;

/// Steps of one plan that are drawn; of more, those that take most.
const MOST: usize = 800;

/// A logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let share = (value.max(1e-30).log10() - self.low) / (self.high - self.low);
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power))
    }
}

struct Point<'a> {
    step: &'a StepReport,
    class: &'static str,
    x: f64,
    y: f64,
    radius: f64,
    fused: bool,
}

/// The plot.
pub fn chart(comparison: &Comparison, groups: &Groups) -> String {
    let rates = &comparison.rates;
    let steps = || comparison.unfused.each.iter().chain(&comparison.fused.each);
    let intensity = |step: &StepReport| step.flops / step.bytes.max(1.0);
    let rate = |step: &StepReport| step.flops / (step.ms.median / 1e3);
    let ridge = rates.matrix_flops / rates.bandwidth;
    let counted = || steps().filter(|step| step.flops > 0.0 && step.ms.median > 0.0);
    let low = counted().map(intensity).fold(0.1, f64::min);
    let high = counted().map(intensity).fold(10.0 * ridge, f64::max);
    let x = Axis { low: low.log10().floor(), high: high.log10().ceil(), from: LEFT + GUTTER, to: WIDTH - RIGHT };
    let start = 10f64.powf(x.low);
    // A step without arithmetic is placed by its share of the bandwidth, at the intensity of the left edge.
    let rate_of = |step: &StepReport| if step.flops > 0.0 { rate(step) } else { start * step.bytes / (step.ms.median / 1e3) };
    let slowest = steps().filter(|step| step.ms.median > 0.0).map(rate_of).fold(start * rates.bandwidth, f64::min).max(1e3);
    let y =
        Axis { low: slowest.log10().floor(), high: (rates.matrix_flops * 1.5).log10().ceil(), from: HEIGHT - BOTTOM, to: TOP };
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Roofline: rate over arithmetic intensity of each step; \
         the fused plan reaches {} of it\">",
        percent(comparison.share_of_roofline)
    );
    grid(&mut svg, &x, &y);
    roofs(&mut svg, comparison, &x, &y, start);
    let mut points = Vec::new();
    for (plan, fused) in [(&comparison.unfused, false), (&comparison.fused, true)] {
        let longest = plan.each.iter().map(|step| step.ms.median).fold(0.0, f64::max).max(1e-12);
        let mut order: Vec<&StepReport> = plan.each.iter().filter(|step| step.ms.median > 0.0).collect();
        order.sort_by(|a, b| b.ms.median.total_cmp(&a.ms.median));
        for step in order.into_iter().take(MOST) {
            points.push(Point {
                step,
                class: if fused { groups.class_after(&step.name) } else { groups.class_before(&step.name) },
                x: if step.flops > 0.0 { x.at(intensity(step)) } else { LEFT + GUTTER / 2.0 },
                y: y.at(rate_of(step)),
                radius: 3.0 + 9.0 * (step.ms.median / longest).sqrt(),
                fused,
            });
        }
    }
    for point in &points {
        let plan = if point.fused { "fused" } else { "unfused" };
        let moved = si(point.step.bytes / (point.step.ms.median / 1e3), "B/s");
        let _ = write!(
            svg,
            "<circle class=\"point {plan} k-{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"><title>{} ({}, {plan})\n{}, {}, {moved}\n{} of its roofline</title></circle>",
            point.class,
            at(point.x),
            at(point.y),
            at(point.radius),
            escape(&point.step.name),
            escape(&point.step.kind),
            time(point.step.ms.median),
            si(rate(point.step), "FLOP/s"),
            percent(point.step.share_of_roofline),
        );
    }
    names(&mut svg, &points);
    svg + "</svg>"
}

fn grid(svg: &mut String, x: &Axis, y: &Axis) {
    let bottom = HEIGHT - BOTTOM;
    for value in x.decades() {
        let at_x = at(x.at(value));
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{at_x} {TOP}V{bottom}\"/><text class=\"tick\" x=\"{at_x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            power(value)
        );
    }
    for value in y.decades() {
        let at_y = y.at(value);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {0}H{1}\"/><text class=\"tick\" x=\"{2}\" y=\"{3}\" text-anchor=\"end\">{4}</text>",
            at(at_y),
            WIDTH - RIGHT,
            LEFT - 8.0,
            at(at_y + 4.0),
            si(value, "")
        );
    }
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"end\">FLOP per byte</text><text class=\"axis\" x=\"{LEFT}\" y=\"{}\">FLOP/s</text>\
         <text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">no arithmetic</text>",
        WIDTH - RIGHT,
        HEIGHT - 12.0,
        TOP - 8.0,
        at(LEFT + GUTTER / 2.0),
        bottom + 34.0,
    );
}

fn roofs(svg: &mut String, comparison: &Comparison, x: &Axis, y: &Axis, start: f64) {
    let rates = &comparison.rates;
    let bandwidth = start * rates.bandwidth;
    let _ = write!(svg, "<path class=\"limit\" d=\"M{LEFT} {0}H{1}\"/>", at(y.at(bandwidth)), at(x.from));
    for (rate, what) in [(rates.vector_flops, "arithmetic"), (rates.matrix_flops, "products")] {
        let ridge = rate / rates.bandwidth;
        let from = if what == "products" { (x.from, y.at(bandwidth)) } else { (x.at(ridge), y.at(rate)) };
        let _ = write!(
            svg,
            "<path class=\"limit\" d=\"M{} {}L{} {}H{}\"/><text class=\"limit-text\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{} {what}</text>",
            at(from.0),
            at(from.1),
            at(x.at(ridge)),
            at(y.at(rate)),
            at(x.to),
            at(x.to - 4.0),
            at(y.at(rate) - 6.0),
            si(rate, "FLOP/s"),
        );
    }
    // Along the slope: the line rises by one decade a decade.
    let middle = 10f64.powf(0.5 * (x.low + (rates.matrix_flops / rates.bandwidth).log10()));
    let (mx, my) = (x.at(middle), y.at(middle * rates.bandwidth));
    let decade = |axis: &Axis| (axis.to - axis.from).abs() / (axis.high - axis.low);
    let angle = (decade(y) / decade(x)).atan().to_degrees();
    let _ = write!(
        svg,
        "<text class=\"limit-text\" transform=\"translate({} {}) rotate({})\" text-anchor=\"middle\">{} memory</text>",
        at(mx),
        at(my - 8.0),
        at(-angle),
        si(rates.bandwidth, "B/s"),
    );
}

/// Names beside the largest points of the fused plan, where there is room.
fn names(svg: &mut String, points: &[Point<'_>]) {
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for point in points.iter().filter(|point| point.fused).take(NAMED) {
        let name = shortened(&point.step.name, 26);
        let width = 7.0 * name.chars().count() as f64;
        let left = point.x + point.radius + width + 8.0 > WIDTH - RIGHT;
        let x = if left { point.x - point.radius - 5.0 } else { point.x + point.radius + 5.0 };
        let (from, to) = if left { (x - width, x) } else { (x, x + width) };
        if taken.iter().any(|&(a, b, y)| from < b && a < to && (point.y - y).abs() < 14.0) {
            continue;
        }
        taken.push((from, to, point.y));
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>",
            at(x),
            at(point.y + 4.0),
            if left { "end" } else { "start" },
            escape(&name)
        );
    }
}

/// A power of ten as people write it.
fn power(value: f64) -> String {
    if value >= 1.0 { si(value, "") } else { format!("{value}") }
}
