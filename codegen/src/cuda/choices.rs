//! Which of several kernels that compute the same is taken: by what is known of sizes, or as a caller says.

use super::emitter::Target;
use crate::{Arg, Buffer, Plan, PlanInput, PlanOutput, Source, Step, TensorRef};
use eglu_ir::{DType, Dim, Op, SymbolRange, graph::OutputKind};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// How many launches a mixture-of-experts block takes, its router aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Whichever is fastest: as measured on the device if it was, else by what is known of sizes.
    #[default]
    Auto,
    /// One persistent kernel, whose blocks tell each other what is done.
    Single,
    /// A kernel for each projection, and one for the weighted sum.
    Split,
}

impl Schedule {
    /// All of them, by name.
    pub const NAMES: [(&'static str, Schedule); 3] =
        [("auto", Schedule::Auto), ("single", Schedule::Single), ("split", Schedule::Split)];
}

impl FromStr for Schedule {
    type Err = String;
    fn from_str(text: &str) -> Result<Schedule, String> {
        let known = Schedule::NAMES.iter().find(|(name, _)| *name == text);
        known.map(|&(_, schedule)| schedule).ok_or_else(|| "it is `single`, `split` or `auto`".into())
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Schedule::NAMES.iter().find(|(_, schedule)| schedule == self).map_or("auto", |(name, _)| name))
    }
}

/// A way to run a block, by its name, up to some number of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// The most tokens; `None` for all that are more than those before.
    pub up_to: Option<i64>,
    /// The way's name, as [`block_ways`] gives it.
    pub way: String,
}

/// What [`emit_with`](super::emit_with) is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// How many launches blocks take.
    pub schedule: Schedule,
    /// Ways of blocks by [`BlockShape::key`], in ascending order of tokens, the last without an end. A block that is not here, or whose ways are
    /// not among those it has, goes by what is known of its sizes.
    pub blocks: BTreeMap<String, Vec<Chosen>>,
}

/// A mixture-of-experts block by itself, as it is measured.
#[derive(Clone, Debug)]
pub struct BlockShape {
    /// Tells blocks apart that may want different kernels; equal layers have equal keys.
    pub key: String,
    /// The block alone: its inputs are rows, ids and scores, for a symbol `tokens` in place of whatever their number was, if that is not known.
    pub plan: Plan,
    /// Experts, and how many a token takes.
    pub experts: i64,
    /// Experts that a token takes.
    pub choices: i64,
    /// The number of tokens, where the plan knows it.
    pub tokens: Option<i64>,
}

/// The number of tokens of a block that is by itself.
pub const TOKENS: &str = "tokens";

/// The blocks of a plan whose kernels can be chosen, each kind once.
pub fn blocks(plan: &Plan) -> Vec<BlockShape> {
    let mut found: Vec<BlockShape> = vec![];
    for step in &plan.steps {
        if let Some(block) = BlockShape::of(plan, step).filter(|block| found.iter().all(|other| other.key != block.key)) {
            found.push(block);
        }
    }
    found
}

/// A way to run a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockWay {
    /// Its name.
    pub name: String,
    /// The most tokens it can be taken for, if there is a bound.
    pub most: Option<i64>,
}

/// The ways to run that block at so many tokens, the one first that is taken where nobody chooses.
pub fn block_ways(block: &BlockShape, target: Target, schedule: Schedule, tokens: i64) -> Vec<BlockWay> {
    super::emitter::block_ways(&block.plan, target, schedule, tokens)
}

/// The operands of a block that are rows of its tokens.
const ROWS: [usize; 3] = [0, 7, 8];

impl BlockShape {
    /// The block of this step, if it is one with all sizes known but the number of tokens.
    fn of(plan: &Plan, step: &Step) -> Option<BlockShape> {
        let key = key(step)?;
        let tensor = |i: usize| as_tensor(step.inputs.get(i)?);
        let (gate, ids) = (tensor(1)?, tensor(7)?);
        let count = ids.layout.shape[0].as_const().map_or_else(|| Dim::symbol(TOKENS), Dim::from);
        let (experts, choices) = (gate.layout.shape[0].as_const()?, ids.layout.shape[1].as_const()?);
        let (mut buffers, mut inputs, mut places) = (vec![], vec![], IndexMap::new());
        let mut moved = vec![];
        for (i, arg) in step.inputs.iter().enumerate() {
            moved.push(match as_tensor(arg) {
                Some(rows) if ROWS.contains(&i) => {
                    let own = over_tokens(rows, &count, buffers.len());
                    let name = plan.buffers[rows.buffer].name.clone();
                    let source = Source::Input(inputs.len());
                    buffers.push(Buffer { name: name.clone(), dtype: own.dtype, numel: numel(&own), source });
                    inputs.push(PlanInput { name, ty: own.ty(), buffer: own.buffer });
                    Arg::Tensor(own)
                }
                Some(weight) => {
                    let from = &plan.buffers[weight.buffer];
                    if !matches!(from.source, Source::Weight(_)) {
                        return None;
                    }
                    let at = *places.entry(weight.buffer).or_insert_with(|| {
                        buffers.push(from.clone());
                        buffers.len() - 1
                    });
                    Arg::Tensor(TensorRef { buffer: at, ..weight.clone() })
                }
                None => arg.clone(),
            });
        }
        let out = over_tokens(&step.outputs[0], &count, buffers.len());
        let name = step.name.clone();
        buffers.push(Buffer { name: name.clone(), dtype: out.dtype, numel: numel(&out), source: Source::Step });
        let own = Step { name, op: step.op.clone(), inputs: moved, outputs: vec![out.clone()], origins: vec![] };
        let plan = Plan {
            name: format!("{} of {}", step.name, plan.name),
            symbols: count.as_const().is_none().then(|| (TOKENS.into(), SymbolRange { min: 1, max: None })).into_iter().collect(),
            buffers,
            steps: vec![own],
            inputs,
            outputs: vec![PlanOutput { tensor: out, kind: OutputKind::User }],
        };
        Some(BlockShape { key, plan, experts, choices, tokens: ids.layout.shape[0].as_const() })
    }
}

/// What decides which kernels are fastest for a block but the number of tokens; `None` for other steps.
pub(super) fn key(step: &Step) -> Option<String> {
    let Op::Moe(op) = &step.op else { return None };
    let operands: Option<Vec<String>> = (0..step.inputs.len())
        .map(|i| match as_tensor(&step.inputs[i]) {
            // Weights as they lie.
            Some(x) if !ROWS.contains(&i) => {
                let list =
                    |dims: &[Dim]| dims.iter().map(|dim| dim.as_const().map(|n| n.to_string())).collect::<Option<Vec<_>>>();
                Some(format!("{}[{}; {}]", x.dtype, list(&x.layout.shape)?.join(","), list(&x.layout.strides)?.join(",")))
            }
            Some(x) => Some(format!("{}[tokens,{}]", x.dtype, x.layout.shape[1].as_const()?)),
            None => Some("-".into()),
        })
        .collect();
    let stored: DType = op.dtype;
    Some(format!("moe {} -> {stored} by {:?}", operands?.join(" "), op.program))
}

fn as_tensor(arg: &Arg) -> Option<&TensorRef> {
    match arg {
        Arg::Tensor(tensor) => Some(tensor),
        _ => None,
    }
}

/// Rows like these, dense, for so many tokens.
fn over_tokens(rows: &TensorRef, tokens: &Dim, buffer: usize) -> TensorRef {
    let shape = [tokens.clone(), rows.layout.shape[1].clone()];
    TensorRef { buffer, dtype: rows.dtype, layout: crate::Layout::dense(shape.into_iter().collect()) }
}

fn numel(tensor: &TensorRef) -> Dim {
    eglu_ir::types::numel(&tensor.layout.shape)
}
