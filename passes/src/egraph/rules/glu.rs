//! Gated units: an activation of the gate times the up projection, as one program.

use super::{either, same_type};
use crate::egraph::rule::{
    Numerics::{Exact, SameAccumulator},
    Refusal, Rule, RuleError, Site, Verdict, rule,
};
use egg::Id;
use eglu_ir::{
    DType, Program, Ref, Scalar,
    ops::{Glu, Pointwise},
    program::InstrOp,
};
use std::sync::Arc;

/// Activations of one operand that gate.
const ACTIVATIONS: [Pointwise; 5] =
    [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::Relu, Pointwise::Sigmoid];

/// The program gates by an activation that the rules of this file know, in one op or as `x · sigmoid(x)`.
pub fn has_name(program: &Program) -> bool {
    let steps = program.instrs.iter().filter_map(|instr| match instr.op {
        InstrOp::Pointwise(op) => Some((op, instr.args.iter().any(|arg| matches!(arg, Ref::Scalar(_))))),
        _ => None,
    });
    let steps: Vec<(Pointwise, bool)> = steps.collect();
    match steps[..] {
        [(act, _), (Pointwise::Mul, _)] => ACTIVATIONS.contains(&act),
        [(Pointwise::Sigmoid, _), (Pointwise::Mul, false), (Pointwise::Mul, false)] => true,
        _ => false,
    }
}

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let mut rules = vec![
        rule("silu-from-parts", SameAccumulator, "x · sigmoid(x) is silu")
            .from_all(either("mul", "?x", "(sigmoid ?x)"))
            .when("same-type", |s| same_type(s, s.id("?x"), s.class))
            .when("no-rounding-between", |s| {
                let dtype = s.dtype("?x").filter(|dtype| dtype.opmath() != *dtype);
                Verdict::when(dtype.is_none(), || {
                    format!(
                        "sigmoid(x) is rounded to {} before the product, which silu would not do",
                        s.dtype("?x").map_or("16 bits", DType::name)
                    )
                })
            })
            .becomes("(silu ?x)")?,
        gated_by_parts()?,
    ];
    for act in ACTIVATIONS {
        rules.push(gated(act)?);
        rules.push(gated_upcast(act)?);
        rules.push(gated_in_wide(act)?);
    }
    rules.push(clamped_swish()?);
    rules.push(
        rule(
            "gated-views",
            Exact,
            "gating two tensors seen in another shape is gating them and then seeing the result in that shape",
        )
        .from("(glu (reshape ?g ?s) (reshape ?u ?s) ?program)")
        .when("gate-and-up", gate_and_up)
        .becomes("(reshape (glu ?g ?u ?program) ?s)")?,
    );
    Ok(rules)
}

fn gate_and_up(site: &Site<'_>) -> Verdict {
    match site.dtype("?g") {
        Some(dtype) if !dtype.is_float() => Verdict::Refused(format!("a gate of {dtype} is no float")),
        _ => same_type(site, site.id("?g"), site.id("?u")),
    }
}

fn emit(site: &mut Site<'_>, program: Program) -> Result<Id, Refusal> {
    let (g, u) = (site.id("?g"), site.id("?u"));
    site.call(Glu { program: Arc::new(program) }, &[g, u])
}

fn dtype(site: &Site<'_>) -> Result<DType, Refusal> {
    site.dtype("?g").ok_or_else(|| Refusal::new("types", "the gate is no tensor"))
}

fn stored(mut program: Program, result: Ref, dtype: DType) -> Program {
    program.results.push((result, dtype));
    program
}

/// `act(g) · u`.
fn gated(act: Pointwise) -> Result<Rule, RuleError> {
    let name = act.name();
    rule(format!("{name}-gated"), SameAccumulator, format!("{name}(gate) · up is one gated unit"))
        .from_all(either("mul", &format!("({name} ?g)"), "?u"))
        .when("gate-and-up", gate_and_up)
        .builds(move |s| {
            let dtype = dtype(s)?;
            let mut program = Program::new([dtype; 2]);
            let gate = program.push(InstrOp::Pointwise(act), [Ref::Param(0)], dtype);
            let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [gate, Ref::Param(1)], dtype);
            emit(s, stored(program, product, dtype))
        })
}

/// `g · sigmoid(g) · u` in 16 bits, with the rounding of the sigmoid kept.
fn gated_by_parts() -> Result<Rule, RuleError> {
    let gates = either("mul", "?g", "(sigmoid ?g)");
    rule("silu-parts-gated", SameAccumulator, "gate · sigmoid(gate) · up in 16 bits is one gated unit that rounds alike")
        .from_all(gates.iter().flat_map(|gate| either("mul", gate, "?u")))
        .when("gate-and-up", gate_and_up)
        .when("narrow", |s| {
            let narrow = s.dtype("?g").is_some_and(|dtype| dtype.opmath() != dtype);
            Verdict::when(narrow, || "nothing is rounded between: the gate is a plain silu".into())
        })
        .builds(|s| {
            let dtype = dtype(s)?;
            let mut program = Program::new([dtype; 2]);
            let sigmoid = program.push(InstrOp::Pointwise(Pointwise::Sigmoid), [Ref::Param(0)], dtype);
            let sigmoid = program.push(InstrOp::Cast, [sigmoid], dtype);
            let gate = program.push(InstrOp::Pointwise(Pointwise::Mul), [Ref::Param(0), sigmoid], dtype);
            let gate = program.push(InstrOp::Cast, [gate], dtype);
            let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [gate, Ref::Param(1)], dtype);
            emit(s, stored(program, product, dtype))
        })
}

fn is_wide(site: &Site<'_>, wide: DType) -> Verdict {
    let narrow = site.dtype("?g");
    Verdict::when(narrow.is_some_and(|narrow| narrow.is_float() && narrow.opmath() == wide && narrow != wide), || {
        "the activation is computed in a dtype other than the accumulator's".into()
    })
}

/// `cast(act(cast(g, f32)), d) · u`: the activation in f32, the product in the narrow dtype.
fn gated_upcast(act: Pointwise) -> Result<Rule, RuleError> {
    let name = act.name();
    let doc = format!("{name} of the gate in f32, rounded, times up is one gated unit");
    rule(format!("{name}-gated-upcast"), SameAccumulator, doc)
        .from_all(either("mul", &format!("(cast ({name} (cast ?g dtype:f32)) ?d)"), "?u"))
        .when("gate-and-up", gate_and_up)
        .when("upcast", |s| is_wide(s, DType::F32))
        .when("back-to-narrow", |s| {
            Verdict::when(s.attr("?d") == s.dtype("?g"), || "the activation is rounded to another dtype than the gate's".into())
        })
        .builds(move |s| {
            let dtype = dtype(s)?;
            let mut program = Program::new([dtype; 2]);
            let wide = program.push(InstrOp::Cast, [Ref::Param(0)], DType::F32);
            let gate = program.push(InstrOp::Pointwise(act), [wide], DType::F32);
            let rounded = program.push(InstrOp::Cast, [gate], dtype);
            let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [rounded, Ref::Param(1)], dtype);
            emit(s, stored(program, product, dtype))
        })
}

/// `cast(act(cast(g, f32)) · cast(u, f32), d)`: all in f32, rounded once.
fn gated_in_wide(act: Pointwise) -> Result<Rule, RuleError> {
    let name = act.name();
    let product = either("mul", &format!("({name} (cast ?g dtype:f32))"), "(cast ?u dtype:f32)");
    rule(format!("{name}-gated-in-f32"), SameAccumulator, format!("{name}(gate) · up in f32, rounded once, is one gated unit"))
        .from_all(product.map(|product| format!("(cast {product} ?d)")))
        .when("gate-and-up", gate_and_up)
        .when("upcast", |s| is_wide(s, DType::F32))
        .builds(move |s| {
            let dtype = dtype(s)?;
            let target: DType = s.attr("?d").ok_or_else(|| Refusal::new("types", "no dtype"))?;
            let mut program = Program::new([dtype; 2]);
            let gate = program.push(InstrOp::Cast, [Ref::Param(0)], DType::F32);
            let up = program.push(InstrOp::Cast, [Ref::Param(1)], DType::F32);
            let gate = program.push(InstrOp::Pointwise(act), [gate], DType::F32);
            let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [gate, up], DType::F32);
            let rounded = program.push(InstrOp::Cast, [product], target);
            emit(s, stored(program, rounded, target))
        })
}

/// `(clamp(u, -l, l) + 1) · (G · sigmoid(α·G))` with `G = min(g, l)` (gpt-oss).
fn clamped_swish() -> Result<Rule, RuleError> {
    let gate = "(minimum ?g ?limit)";
    let gates = either("mul", gate, &format!("(sigmoid (mul {gate} ?alpha))"));
    let up = "(add (minimum (maximum ?u ?lo) ?hi) ?one)";
    let numbers = ["?limit", "?alpha", "?lo", "?hi", "?one"];
    // The gate clamped on both sides and up only from above: the other way round.
    let clamped = "(minimum (maximum ?g ?lo) ?hi)";
    let swapped = either("mul", clamped, &format!("(sigmoid (mul {clamped} ?alpha))"));
    let swapped = swapped.iter().flat_map(|gate| either("mul", "(add (minimum ?u ?limit) ?one)", gate)).collect::<Vec<_>>();
    rule(
        "clamped-swish-gated",
        SameAccumulator,
        "the clamped swish of gpt-oss, (up + 1) · gate · sigmoid(α · gate), is one gated unit",
    )
    .from_all(gates.iter().flat_map(|gate| either("mul", up, gate)))
    .nearly_all(swapped, "gate-and-up", |s| {
        let number = |var: &str| s.scalar(var).map_or("?".into(), |number| number.to_string());
        let (lo, hi) = (number("?lo"), number("?hi"));
        Some(format!(
            "gate and up are swapped: the gate is clamped to {lo}..{hi} and up only from above, by {}",
            number("?limit")
        ))
    })
    .fuses()
    .when("gate-and-up", gate_and_up)
    .when("numbers", move |s| {
        Verdict::when(numbers.iter().all(|var| s.scalar(var).is_some()), || "a limit or factor is no constant".into())
    })
    .when("symmetric-limits", |s| {
        let number = |var: &str| s.scalar(var).map_or(f64::NAN, Scalar::as_f64);
        let (limit, lo, hi) = (number("?limit"), number("?lo"), number("?hi"));
        Verdict::when(lo == -hi && hi == limit, || format!("up is clamped to {lo}..{hi} and the gate to {limit}"))
    })
    .builds(|s| {
        let dtype = dtype(s)?;
        let mut program = Program::new([dtype; 2]);
        let number = |var: &str| s.scalar(var).map(Ref::Scalar).ok_or_else(|| Refusal::new("numbers", "no constant"));
        let (limit, alpha, one) = (number("?limit")?, number("?alpha")?, number("?one")?);
        let (lo, hi) = (number("?lo")?, number("?hi")?);
        let mut step = |op: Pointwise, args: &[Ref]| program.push(InstrOp::Pointwise(op), args.iter().copied(), dtype);
        let gate = step(Pointwise::Minimum, &[Ref::Param(0), limit]);
        let scaled = step(Pointwise::Mul, &[gate, alpha]);
        let sigmoid = step(Pointwise::Sigmoid, &[scaled]);
        let swish = step(Pointwise::Mul, &[gate, sigmoid]);
        let up = step(Pointwise::Maximum, &[Ref::Param(1), lo]);
        let up = step(Pointwise::Minimum, &[up, hi]);
        let up = step(Pointwise::Add, &[up, one]);
        let product = step(Pointwise::Mul, &[up, swish]);
        emit(s, stored(program, product, dtype))
    })
}
