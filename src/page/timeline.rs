//! When each kernel of one run ran: both plans on one axis.

use super::{
    groups::Groups,
    markup::escape,
    units::{ticks, time},
};
use eglu_runtime::bench::{Comparison, Measurement};
use std::fmt::Write;

/// Kernels that get a rectangle of their own.
const MOST: usize = 6000;

/// Both lanes. Lengths along the axis are percentages, so that the page can stretch it without stretching letters.
pub fn chart(comparison: &Comparison, groups: &Groups) -> String {
    let end = |plan: &Measurement| plan.timeline.last().map_or(0.0, |last| last.start_ms + last.ms);
    let most = end(&comparison.unfused).max(end(&comparison.fused)).max(1e-12);
    let share = |ms: f64| format!("{}%", at4(100.0 * ms / most));
    let mut svg = format!(
        "<svg class=\"{}\" width=\"100%\" height=\"156\" role=\"img\" aria-label=\"Kernels of one run: {} in {} unfused, {} in {} fused\">",
        // Outlines of slivers would hide them.
        if comparison.unfused.timeline.len() > 200 { "lanes dense" } else { "lanes" },
        comparison.unfused.timeline.len(),
        time(end(&comparison.unfused)),
        comparison.fused.timeline.len(),
        time(end(&comparison.fused)),
    );
    for tick in ticks(most, 10) {
        let x = share(tick);
        let anchor = if tick == 0.0 { "start" } else { "middle" };
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"0\" y2=\"132\"/><text class=\"tick\" x=\"{x}\" y=\"149\" text-anchor=\"{anchor}\">{}</text>",
            time(tick)
        );
    }
    for (plan, name, top) in [(&comparison.unfused, "unfused", 4), (&comparison.fused, "fused", 70)] {
        let _ = write!(svg, "<g class=\"{name}\">");
        // Beyond the limit, the shortest are left out: their places stay empty.
        let mut lengths: Vec<f64> = plan.timeline.iter().map(|kernel| kernel.ms).collect();
        lengths.sort_by(|a, b| b.total_cmp(a));
        let least = lengths.get(MOST).copied().unwrap_or(-1.0);
        for kernel in plan.timeline.iter().filter(|kernel| kernel.ms > least) {
            let step = plan.each.get(kernel.step);
            let (node, kind) = step.map_or(("?", "?"), |step| (step.name.as_str(), step.kind.as_str()));
            let class = if name == "fused" { groups.class_after(node) } else { groups.class_before(node) };
            let of = if kernel.name == node { String::new() } else { format!(" of {}", escape(node)) };
            let (x, width) = (share(kernel.start_ms), share(kernel.ms));
            let about =
                format!("{}{of} ({})\n{} at {}", escape(&kernel.name), escape(kind), time(kernel.ms), time(kernel.start_ms));
            let _ = write!(
                svg,
                "<rect class=\"key k-{class}\" x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"58\"><title>{about}</title></rect>"
            );
            if kernel.ms > 0.002 * most {
                let _ = write!(
                    svg,
                    "<svg x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"58\"><text class=\"on\" x=\"5\" y=\"20\">{}</text>\
                     <text class=\"on small\" x=\"5\" y=\"36\">{}</text></svg>",
                    escape(node),
                    time(kernel.ms)
                );
            }
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

/// Percentages to a ten-thousandth: a long run has kernels that short.
fn at4(share: f64) -> String {
    format!("{share:.4}")
}
