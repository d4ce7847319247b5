//! `docs/rules.md` says what the rule table says.

use crate::soundness::corpus;
use eglu_ir::profile::H200;
use eglu_passes::egraph::{
    rule::{Numerics, Rule},
    rules, saturate,
};
use std::{collections::BTreeMap, fmt::Write, path::PathBuf};

const HEAD: &str = "# Rules

Equality saturation applies these rules, in this order, until none changes anything. This page is generated from the rule table:
`EGLU_UPDATE=1 cargo test -p eglu-passes --test egraph reference` writes it anew.

A name with a question mark stands for any value or attribute; several forms before the arrow mean the same. Numerics: *exact* gives the
same bits; *same accumulator* keeps the sums and their precision, but may leave out roundings of intermediate values to 16 bits;
*reassociating* sums in another order. A match that fails a condition is left alone; where the rule makes a fused node, the report names the
condition and says why. The example is the first place where the rule fires in the tests; its names are those of graph nodes.

";

/// Where each rule first fired, before and after.
fn examples() -> BTreeMap<String, (String, String)> {
    let mut examples = BTreeMap::new();
    for graph in corpus() {
        let (_, report) = saturate(&graph, &H200).unwrap();
        for fired in report.fired {
            examples.entry(fired.rule).or_insert((fired.before, fired.after));
        }
    }
    examples
}

fn section(rule: &Rule, example: Option<&(String, String)>) -> String {
    let numerics = match rule.numerics {
        Numerics::Exact => "exact",
        Numerics::SameAccumulator => "same accumulator",
        Numerics::Reassociating => "reassociating",
    };
    let mut text = format!("## {}\n\n{}.\n\n", rule.name, capitalized(&rule.doc));
    let _ = writeln!(text, "Numerics: {numerics}.");
    let names: Vec<String> = rule.conditions.iter().map(|condition| format!("`{}`", condition.name)).collect();
    if !names.is_empty() {
        let _ = writeln!(text, "Conditions: {}.", names.join(", "));
    }
    for near in &rule.nearly {
        let _ = writeln!(text, "Near-miss by `{}`: `{}`.", near.condition, near.pattern);
    }
    text.push_str("\n```text\n");
    for pattern in &rule.patterns {
        let _ = writeln!(text, "   {pattern}");
    }
    let right = rule.right().map_or_else(|| "(built by code)".into(), ToString::to_string);
    let _ = writeln!(text, "-> {right}");
    if let Some((before, after)) = example {
        let _ = writeln!(text, "\nexample:\n   {before}\n-> {after}");
    }
    text.push_str("```\n\n");
    text
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[test]
fn reference_is_up_to_date() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rules.md"));
    let examples = examples();
    let mut page = HEAD.to_string();
    for rule in rules::all().unwrap() {
        page.push_str(&section(rule, examples.get(&rule.name)));
    }
    let page = format!("{}\n", page.trim_end());
    if std::env::var_os("EGLU_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/rules.md is not what the rules say; EGLU_UPDATE=1 writes it anew");
}
