//! What was fused and what was refused, in words.

use super::{
    groups::{Groups, class},
    markup::escape,
    units::{si, time},
};
use eglu_passes::report::{Refused, Report};
use eglu_runtime::{
    Phase, Start,
    bench::{Comparison, Measurement},
};
use indexmap::IndexMap;
use std::fmt::Write;

/// Rows of a table that are shown at once; those beyond open on request.
const SHOWN: usize = 40;

/// The fused sites, one row each.
pub fn fused(report: &Report, groups: &Groups) -> String {
    if report.sites.is_empty() {
        return "<p>Nothing was fused.</p>".into();
    }
    let rows = report.sites.iter().map(|site| {
        let group = groups.of_after.get(&site.node).copied();
        let names: Vec<&str> = site.nodes.iter().map(|name| &**name).collect();
        format!(
            "<tr><td><span class=\"swatch k-{}\"></span>{}</td><td>{}</td><td>{}</td><td class=\"n\" title=\"{}\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            class(Some(site.kind)),
            escape(&crate::command::word(&site.kind)),
            jump("after", &site.node, group),
            escape(&site.rule),
            escape(&names.join(", ")),
            site.nodes.len(),
            site.saves.launches,
            si(site.saves.bytes as f64, "B")
        )
    });
    table(&["kind", "kernel", "rule", "ops", "launches saved", "traffic saved"], &[3, 4, 5], rows.collect())
}

/// The near-misses, those alike together.
pub fn refused(report: &Report) -> String {
    if report.refused.is_empty() {
        return "<p>Nothing came near a rule without being fused by it.</p>".into();
    }
    let mut alike: IndexMap<(&str, &str, &str), Vec<&Refused>> = IndexMap::new();
    for miss in &report.refused {
        alike.entry((&miss.rule, &miss.condition, &miss.why)).or_default().push(miss);
    }
    let mut text = String::from("<ul class=\"misses\">");
    for ((rule, condition, why), misses) in alike {
        // A form that only rules made has no place in the graph given.
        let place = |miss: &&Refused| match miss.node.as_str() {
            "" => "a form that other rules made".to_owned(),
            node => jump("before", node, None),
        };
        let mut unique = misses;
        // A rule may miss at one node in several ways that read the same.
        unique.dedup_by(|a, b| a.node == b.node);
        let mut places: Vec<String> = unique.iter().take(SHOWN).map(place).collect();
        if unique.len() > SHOWN {
            places.push(format!("and {} more", unique.len() - SHOWN));
        }
        let _ = write!(
            text,
            "<li><p class=\"why\">{}</p><p>Rule <b>{}</b> asks for <i>{}</i>; it did not hold at {}.</p></li>",
            escape(&sentence(why)),
            escape(rule),
            escape(&condition.replace('-', " ")),
            places.join(", ")
        );
    }
    text + "</ul>"
}

/// Why searches ended early.
pub fn stops(report: &Report) -> String {
    let items: String = report.stops.iter().map(|stop| format!("<li>{}</li>", escape(stop))).collect();
    if items.is_empty() { items } else { format!("<p>The search for rewrites stopped early:</p><ul>{items}</ul>") }
}

/// The phases from the file to the first result, as bars on one line of time.
pub fn cold_start(phases: &[Phase]) -> String {
    let sums = Start::of(phases);
    let total = sums.total();
    let mut text = String::from("<table class=\"phases\"><tbody>");
    let mut start = 0.0;
    for phase in phases {
        let share = |seconds: f64| 100.0 * seconds / total.max(1e-12);
        let _ = write!(
            text,
            "<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td><td class=\"wide\"><span class=\"phase\" style=\"margin-left:{:.3}%;width:{:.3}%\"></span></td>\
             <td>{}</td></tr>",
            escape(&phase.name),
            time(1e3 * phase.seconds),
            share(start),
            share(phase.seconds),
            escape(&phase.note)
        );
        start += phase.seconds;
    }
    let mut sum = |class: &str, name: &str, seconds: f64| {
        let _ = write!(
            text,
            "<tr class=\"{class}\"><th scope=\"row\">{name}</th><td class=\"n\">{}</td><td></td><td></td></tr>",
            time(1e3 * seconds)
        );
    };
    sum("sum", "in all", total);
    if sums.opening > 0.0 {
        sum("", "for the device to open", sums.opening);
        sum("", "for everything else", sums.rest);
    }
    text + "</tbody></table>"
}

/// Every step of both plans.
pub fn steps(comparison: &Comparison, groups: &Groups) -> String {
    let plan = |name: &str, plan: &Measurement, class_of: &dyn Fn(&str) -> &'static str, side: &str| {
        let rows = plan.each.iter().enumerate().map(|(i, step)| {
            format!(
                "<tr><td class=\"n\">{i}</td><td><span class=\"swatch k-{}\"></span>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{} to {}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.0} %</td></tr>",
                class_of(&step.name),
                jump(side, &step.name, None),
                escape(&step.kind),
                time(step.ms.median),
                time(step.ms.min),
                time(step.ms.max),
                si(step.bytes, "B"),
                si(step.flops, "FLOP"),
                100.0 * step.share_of_roofline
            )
        });
        let table =
            table(&["", "node", "op", "median", "spread", "traffic", "work", "of roofline"], &[0, 3, 4, 5, 6, 7], rows.collect());
        format!("<details><summary>{} steps, {name}</summary>{table}</details>", plan.each.len())
    };
    plan("fused", &comparison.fused, &|name| groups.class_after(name), "after")
        + &plan("unfused", &comparison.unfused, &|name| groups.class_before(name), "before")
}

/// A button that shows a node in the graph.
fn jump(side: &str, node: &str, group: Option<usize>) -> String {
    let tag = group.map_or_else(String::new, |at| format!("<span class=\"tag\">{}</span>", at + 1));
    format!("{tag}<button class=\"node\" data-side=\"{side}\" data-node=\"{0}\">{0}</button>", escape(node))
}

fn table(heads: &[&str], numeric: &[usize], rows: Vec<String>) -> String {
    let heads: String = heads
        .iter()
        .enumerate()
        .map(|(i, head)| format!("<th scope=\"col\"{}>{head}</th>", if numeric.contains(&i) { " class=\"n\"" } else { "" }))
        .collect();
    format!("<div class=\"scroll\"><table><thead><tr>{heads}</tr></thead><tbody>{}</tbody></table></div>", rows.concat())
}

/// Words with a capital at the start and a full stop at the end.
fn sentence(words: &str) -> String {
    let mut letters = words.trim().chars();
    let first: String = letters.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    let rest = letters.as_str().trim_end_matches('.');
    format!("{first}{rest}.")
}
