//! The report of a benchmark as one HTML file: no script, style, font or picture from elsewhere.
//!
//! Charts are SVG made here, so that they are there without the script; the script adds the graph, which is too large to be drawn at
//! once, and the ways about the page. Equal data give equal bytes.

mod findings;
mod graph;
mod groups;
mod layout;
mod markup;
mod replaced;
mod roofline;
mod timeline;
mod times;
mod units;

use eglu_passes::Optimized;
use eglu_runtime::{Phase, bench::Comparison};
use groups::Groups;
use markup::{escape, script_json};
use std::{collections::HashMap, fmt::Write};
use units::{percent, ratio, si, time};

/// What a report tells of.
pub struct Subject<'a> {
    /// Measured times.
    pub comparison: &'a Comparison,
    /// The optimised graph and how it came about.
    pub optimized: &'a Optimized,
    /// Phases from the file to the first result.
    pub cold_start: &'a [Phase],
    /// What else is to be known of the run, as label and value.
    pub facts: &'a [(&'static str, String)],
}

/// The whole page.
pub fn page(subject: &Subject<'_>) -> String {
    let Subject { comparison, optimized, cold_start, .. } = subject;
    let groups = Groups::of(optimized);
    let report = &optimized.report;
    let title = format!("{} on {}", comparison.model, comparison.device);
    let mut body = String::new();
    body += &heading(subject);
    body += &readouts(comparison);
    body += &legend(&groups);
    let mut sections: Vec<(&str, &str, String)> = vec![
        ("time", "Time of a run", figure(times::chart(comparison), &runs_in_words(comparison))),
        (
            "kernels",
            "Kernel for kernel",
            figure(
                replaced::chart(comparison, &groups),
                "Above, in grey, each kernel of the unfused plan, one after the other; below, the kernel in their place. Lines are spreads. \
                 Steps are timed one by one and need not add up to a run.",
            ),
        ),
        (
            "roofline",
            "Roofline",
            figure(
                roofline::chart(comparison, &groups),
                "Filled: fused; rings: unfused; areas are shares of the run. The nearer to a line, the less there is to gain: points under the \
                 slope wait for memory, points under a ceiling for arithmetic.",
            ),
        ),
        ("timeline", "Timeline of a run", timeline_section(comparison, &groups)),
        ("graph", "Graph, before and after", GRAPH.into()),
        ("fused", "Fused", findings::fused(report, &groups)),
        ("refused", "Refused", findings::refused(report) + &findings::stops(report)),
    ];
    if !cold_start.is_empty() {
        sections.push(("cold", "Cold start: from the file to the first result", findings::cold_start(cold_start)));
    }
    sections.push(("steps", "Steps", findings::steps(comparison, &groups)));
    let mut links = String::new();
    for (id, name, content) in &sections {
        let short = name.split([':', ',']).next().unwrap_or(name);
        let _ = write!(links, "<a href=\"#{id}\">{short}</a>");
        let _ = write!(
            body,
            "<section id=\"{id}\" aria-labelledby=\"{id}-head\"><h2 id=\"{id}-head\">{name}</h2>{content}</section>"
        );
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n\
         <nav aria-label=\"Sections\">{links}<button id=\"theme\" type=\"button\">theme: system</button></nav>\n<main>\n{body}</main>\n\
         <script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}</script>\n</body>\n</html>\n",
        escape(&title),
        include_str!("page.css"),
        script_json(&data(optimized, &groups)),
        include_str!("page.js"),
    )
}

const GRAPH: &str = include_str!("graph.html");

fn data(optimized: &Optimized, groups: &Groups) -> serde_json::Value {
    let mut refused: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, miss) in optimized.report.refused.iter().enumerate() {
        refused.entry(&miss.node).or_default().push(i);
    }
    let misses: Vec<[&str; 2]> = optimized.report.refused.iter().map(|miss| [miss.rule.as_str(), miss.why.as_str()]).collect();
    let list: Vec<serde_json::Value> = groups
        .list
        .iter()
        .map(|group| {
            serde_json::json!({
                "node": &*group.node, "op": group.op, "kind": groups::class(group.kind), "rule": group.rule,
                "launches": group.saves.0, "bytes": si(group.saves.1 as f64, "B"),
                "before": group.before.iter().map(|name| &**name).collect::<Vec<&str>>(),
            })
        })
        .collect();
    serde_json::json!({
        "before": graph::before(optimized.report.before(), groups, &refused),
        "after": graph::after(&optimized.graph, groups),
        "groups": list,
        "misses": misses,
    })
}

fn heading(subject: &Subject<'_>) -> String {
    let comparison = subject.comparison;
    let dims: Vec<String> = comparison.dims.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let how = if comparison.rates.measured { "measured" } else { "published" };
    let rates = format!(
        "{}, {} products, {} elsewhere ({how})",
        si(comparison.rates.bandwidth, "B/s"),
        si(comparison.rates.matrix_flops, "FLOP/s"),
        si(comparison.rates.vector_flops, "FLOP/s")
    );
    let mut cells = vec![("device", comparison.device.clone()), ("peak rates", rates)];
    cells.push(("dims", if dims.is_empty() { "fixed".into() } else { dims.join(", ") }));
    cells.push(("runs", format!("{} of each plan", comparison.fused.runs)));
    cells.extend(subject.facts.iter().cloned());
    let cells: String =
        cells.iter().map(|(label, value)| format!("<div><dt>{label}</dt><dd>{}</dd></div>", escape(value))).collect();
    format!("<header><h1>{}</h1><dl class=\"block\">{cells}</dl></header>", escape(&comparison.model))
}

/// The headline figures.
fn readouts(comparison: &Comparison) -> String {
    let (before, after) = (&comparison.unfused, &comparison.fused);
    let cells = [
        ("speedup", ratio(comparison.speedup), format!("{} → {}", time(before.ms.median), time(after.ms.median))),
        ("kernels", after.kernels.to_string(), format!("instead of {}", before.kernels)),
        ("memory traffic", si(after.bytes, "B"), format!("instead of {}", si(before.bytes, "B"))),
        ("of roofline", percent(comparison.share_of_roofline), format!("{} at peak rates", time(comparison.roofline_ms))),
        ("host", time(comparison.host_us / 1e3), "to issue one run".into()),
        ("error", format!("{:.1e}", comparison.max_error), "fused against unfused".into()),
    ];
    let cells: String = cells
        .iter()
        .map(|(label, value, about)| format!("<div><dt>{label}</dt><dd><b>{value}</b><span>{about}</span></dd></div>"))
        .collect();
    format!("<dl class=\"readouts\">{cells}</dl>")
}

/// The colours that occur.
fn legend(groups: &Groups) -> String {
    let mut text = String::from("<ul class=\"legend\" aria-label=\"Colours\">");
    for (class, name) in groups::CLASSES {
        let count = groups.list.iter().filter(|group| groups::class(group.kind) == class).count();
        if count > 0 {
            let _ = write!(text, "<li><span class=\"swatch k-{class}\"></span>{name} <b>{count}</b></li>");
        }
    }
    text + "</ul>"
}

fn figure(chart: String, caption: &str) -> String {
    format!("<figure><div class=\"scroll\">{chart}</div><figcaption>{caption}</figcaption></figure>")
}

fn runs_in_words(comparison: &Comparison) -> String {
    format!(
        "Bars end at the median of {} runs, each of them a dot; lines go from the shortest to the longest. Both plans took turns.",
        comparison.fused.runs
    )
}

fn timeline_section(comparison: &Comparison, groups: &Groups) -> String {
    format!(
        "<figure><div class=\"lane-names\"><span>unfused</span><span>fused</span></div><div class=\"scroll lanes-scroll\" tabindex=\"0\" \
         aria-label=\"Timeline, scrolls sideways\"><div class=\"stretch\">{}</div></div><figcaption>One run of middling time, with a clock between \
         kernels. <label>Stretch <input id=\"stretch\" type=\"range\" min=\"0\" max=\"8\" step=\"0.25\" value=\"0\"></label></figcaption></figure>",
        timeline::chart(comparison, groups)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_codegen::lower;
    use eglu_ir::{Bindings, DeviceProfile, text::parse, weights::Weights};
    use eglu_passes::{Options, Pipeline};
    use eglu_runtime::{
        Device, Executable, bench,
        inputs::{Routing, generate},
    };
    use std::time::{Duration, Instant};

    /// Softmax of a product, beside a row that is only moved, so that there is arithmetic, none, and a view.
    const MODEL: &str = "graph \"m\"\n%x: f32[4, 8] = input\n%w: f32[8, 8] = weight \"w\"\n%y: f32[4, 8] = matmul(%x, %w)\n\
        %s: f32[4, 8] = silu(%y)\n%g: f32[4, 8] = mul(%s, %y)\n%t: f32[8, 4] = permute(%g) {dims=[1, 0]}\noutput %t\n";

    #[test]
    fn equal_data_give_equal_bytes() {
        let graph = parse(MODEL).unwrap();
        let weights = Weights::random(&graph, 0).unwrap();
        let options = Options::new(DeviceProfile::named("cpu").unwrap().clone());
        let optimized = Pipeline::standard().run_with(graph.clone(), &options).unwrap();
        let unfused = lower(&Pipeline::unfused().run_with(graph, &options).unwrap().graph).unwrap();
        let inputs = generate(&unfused, &Bindings::new(), &Default::default(), Routing::Uniform, 0).unwrap();
        let load = |plan| Executable::load(plan, &weights, &Device::Cpu).unwrap();
        let (unfused, fused) = (load(unfused), load(lower(&optimized.graph).unwrap()));
        let measure = bench::Options { budget: Duration::ZERO, ..bench::Options::default() };
        let comparison =
            bench::side_by_side((&unfused, &fused), &inputs, (&options.profile, false), &measure, &mut |_| ()).unwrap();
        let cold_start = [Phase { name: "import".into(), note: "a <note>".into(), start: Instant::now(), seconds: 0.25 }];
        let page = || {
            // Groups are made anew, with hash maps of other seeds.
            page(&Subject { comparison: &comparison, optimized: &optimized, cold_start: &cold_start, facts: &[] })
        };
        let first = page();
        assert!((0..4).all(|_| page() == first));
        assert!(first.contains("a &lt;note&gt;") && first.contains("250 ms") && first.contains("published"));
        // A time of zero, where a clock is too coarse, divides nothing.
        assert!(!first.contains("NaN") && !first.contains("inf\""));
    }
}
