//! Kernel for kernel: what each fused kernel takes, beside what the kernels took that it replaced.

use super::{
    groups::{Groups, class},
    markup::{at, escape, shortened},
    units::{ratio, ticks, time, time_grid},
};
use eglu_runtime::bench::{Comparison, Spread};
use indexmap::IndexMap;
use std::{collections::HashMap, fmt::Write};

const WIDTH: f64 = 1040.0;
const LEFT: f64 = 268.0;
const RIGHT: f64 = 206.0;
const ROW: f64 = 38.0;
const TOP: f64 = 6.0;

/// Most rows.
const ROWS: usize = 14;

/// Least mean width of the pieces of a bar; slivers are drawn as one.
const LEAST: f64 = 3.0;

/// One row: kernels of the unfused plan, and the one in their place.
struct Row {
    name: String,
    about: String,
    class: &'static str,
    before: Vec<(String, f64)>,
    after: Spread,
    kernels: usize,
}

impl Row {
    fn before_ms(&self) -> f64 {
        self.before.iter().map(|(_, ms)| ms).sum()
    }
}

/// The chart, most time first.
pub fn chart(comparison: &Comparison, groups: &Groups) -> String {
    let rows = lumped(rows(comparison, groups));
    let most = rows.iter().map(|row| row.before_ms().max(row.after.median)).fold(0.0, f64::max);
    let scale = |ms: f64| LEFT + (WIDTH - LEFT - RIGHT) * (ms / most.max(1e-12)).min(1.0);
    let bottom = TOP + ROW * rows.len() as f64;
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Time of each fused kernel beside the kernels it replaced\">",
        at(bottom + 26.0)
    );
    time_grid(&mut svg, &ticks(most, 6), &scale, [TOP, bottom]);
    for (i, row) in rows.iter().enumerate() {
        draw(&mut svg, row, TOP + ROW * i as f64, &scale);
    }
    svg + "</svg>"
}

fn draw(svg: &mut String, row: &Row, top: f64, scale: &impl Fn(f64) -> f64) {
    let x0 = scale(0.0);
    let _ = write!(
        svg,
        "<path class=\"grid\" d=\"M0 {0}H{WIDTH}\"/><rect class=\"key k-{1}\" x=\"0\" y=\"{2}\" width=\"5\" height=\"26\"/>\
         <text class=\"label\" x=\"14\" y=\"{3}\">{4}</text><text class=\"tick\" x=\"14\" y=\"{5}\">{6}</text>",
        at(top),
        row.class,
        at(top + 6.0),
        at(top + 17.0),
        escape(&shortened(&row.name, 30)),
        at(top + 30.0),
        escape(&shortened(&row.about, 38)),
    );
    let mut start = 0.0;
    let whole = [(format!("{} kernels", row.before.len()), row.before_ms())];
    let narrow = scale(row.before_ms()) - x0 < LEAST * row.before.len() as f64;
    for (name, ms) in if narrow { &whole[..] } else { &row.before } {
        let (left, right) = (scale(start), scale(start + ms));
        let _ = write!(
            svg,
            "<rect class=\"piece\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"11\"><title>{}: {}</title></rect>",
            at(left),
            at(top + 7.0),
            at((right - left).max(0.4)),
            escape(name),
            time(*ms)
        );
        start += ms;
    }
    if row.kernels > 0 {
        let _ = write!(
            svg,
            "<rect class=\"key k-{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"11\"><title>{}: {}</title></rect>\
             <path class=\"whisker\" d=\"M{} {}H{}\"/>",
            row.class,
            at(x0),
            at(top + 20.0),
            at((scale(row.after.median) - x0).max(0.8)),
            escape(&row.name),
            time(row.after.median),
            at(scale(row.after.min)),
            at(top + 25.5),
            at(scale(row.after.max)),
        );
    }
    let (before, after) = (row.before_ms(), row.after.median);
    let gain = match (row.kernels, row.before.len()) {
        (0, _) => "gone".to_owned(),
        (_, 0) => "new".to_owned(),
        _ if after > 0.0 => ratio(before / after),
        _ => String::new(),
    };
    let _ = write!(
        svg,
        "<text class=\"figures\" x=\"{0}\" y=\"{1}\">{2} in {3}</text><text class=\"figures\" x=\"{0}\" y=\"{4}\">{5}</text>\
         <text class=\"value\" x=\"{WIDTH}\" y=\"{6}\" text-anchor=\"end\">{gain}</text>",
        at(WIDTH - RIGHT + 14.0),
        at(top + 16.5),
        time(before),
        row.before.len(),
        at(top + 29.5),
        if row.kernels > 0 { format!("{} in {}", time(after), row.kernels) } else { "in none".into() },
        at(top + 24.0),
    );
}

fn rows(comparison: &Comparison, groups: &Groups) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut of_group: HashMap<usize, usize> = HashMap::new();
    for step in &comparison.fused.each {
        let group = groups.of_after.get(step.name.as_str()).copied();
        if let Some(at) = group {
            of_group.entry(at).or_insert(rows.len());
        }
        let group = group.map(|at| &groups.list[at]);
        let rule = group.map_or("", |group| group.rule.as_str());
        rows.push(Row {
            name: step.name.clone(),
            about: if rule.is_empty() || rule == "cluster" { step.kind.clone() } else { format!("{}, by {rule}", step.kind) },
            class: class(group.and_then(|group| group.kind)),
            before: Vec::new(),
            after: step.ms,
            kernels: 1,
        });
    }
    let mut gone = Vec::new();
    for step in &comparison.unfused.each {
        let group = groups.of_before.get(step.name.as_str());
        let piece = (step.name.clone(), step.ms.median);
        match group.and_then(|at| of_group.get(at)) {
            Some(&row) => rows[row].before.push(piece),
            None => gone.push(piece),
        }
    }
    if !gone.is_empty() {
        rows.push(Row {
            name: "folded away".into(),
            about: "constant, unused, or equal to others".into(),
            class: "plain",
            before: gone,
            after: Spread::default(),
            kernels: 0,
        });
    }
    rows
}

/// Few enough rows: of many, those alike are one, and beyond the ones that take most there is one for all others.
fn lumped(mut rows: Vec<Row>) -> Vec<Row> {
    if rows.len() > ROWS + 1 {
        let mut alike: IndexMap<(String, &'static str), Vec<Row>> = IndexMap::new();
        for row in rows {
            alike.entry((row.about.clone(), row.class)).or_default().push(row);
        }
        rows = alike.into_values().map(|rows| together(rows, None)).collect();
    }
    rows.sort_by(|a, b| {
        b.before_ms().max(b.after.median).total_cmp(&a.before_ms().max(a.after.median)).then(a.name.cmp(&b.name))
    });
    if rows.len() > ROWS + 1 {
        let rest = rows.split_off(ROWS);
        rows.push(together(rest, Some("all of them are under Steps")));
    }
    rows
}

/// One row in place of several: of kernels alike, or of what is left.
fn together(mut rows: Vec<Row>, left: Option<&str>) -> Row {
    if rows.len() == 1 && left.is_none() {
        return rows.remove(0);
    }
    let sum = |f: fn(&Spread) -> f64| rows.iter().map(|row| f(&row.after)).sum::<f64>();
    let kernels = rows.iter().map(|row| row.kernels).sum();
    Row {
        name: match left {
            Some(_) => format!("{kernels} others"),
            None => format!("{} × {}", rows.len(), rows[0].name),
        },
        about: left.map_or_else(|| rows[0].about.clone(), str::to_owned),
        class: if left.is_some() { "plain" } else { rows[0].class },
        after: Spread { median: sum(|s| s.median), min: sum(|s| s.min), max: sum(|s| s.max) },
        kernels,
        before: rows.iter_mut().flat_map(|row| std::mem::take(&mut row.before)).collect(),
    }
}
