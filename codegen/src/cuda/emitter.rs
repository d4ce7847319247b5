//! From a plan's steps to modules and launches.

use super::{
    BlockWay, Choices, CudaPlan, EmitError, Launch, Module, Schedule, Scratch,
    convolution::{self, Of},
    error::{Emit, Unsupported},
    gemm, indexing,
    kernel::{Code, Kernel},
    norm, order, pointwise, reduce, route, scan, scatter,
};
use crate::{Arg, BufferId, Plan, Step, TensorRef};
use eglu_ir::{Dim, Op, dim::bounds::bounds, types::numel};
use std::collections::{HashMap, HashSet};

/// What to emit for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Compute capability × 10: 80, 86, 89 or 90 (which is compiled as sm_90a).
    pub arch: u32,
}

impl Target {
    /// Multiprocessors of the largest device of the architecture: the blocks of a kernel that stays for all its work.
    pub(super) fn multiprocessors(self) -> u32 {
        match self.arch {
            90.. => 132,
            _ => 108,
        }
    }

    /// Shared memory that one block may have, bytes (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
    pub(super) fn shared_bytes(self) -> u32 {
        match self.arch {
            86 | 89 => 99 << 10,
            90.. => 227 << 10,
            _ => 163 << 10,
        }
    }
}

/// Sources and launches for a plan. Deterministic: equal plans give equal text.
pub fn emit(plan: &Plan, target: Target) -> Result<CudaPlan, EmitError> {
    emit_with(plan, target, &Choices::default())
}

/// [`emit`], with a say in which kernels are taken. Equal plans and choices give equal text.
pub fn emit_with(plan: &Plan, target: Target, choices: &Choices) -> Result<CudaPlan, EmitError> {
    let mut emitter = Emitter::new(plan, target, choices);
    let (pairs, routers) = (reduce::Pairs::find(plan), gemm::Routers::find(plan, &emitter.widened));
    for (index, step) in plan.steps.iter().enumerate() {
        // Nothing is there to compute, even where it is not defined: extremes of no complex numbers.
        let is_empty = step.outputs.iter().all(|output| elements(output).is(0));
        if pairs.waits(index) || emitter.widened.spares(index) || routers.waits(index) || is_empty {
            continue;
        }
        emitter.index = index;
        let emitted = match (pairs.first(index), routers.product(index)) {
            (Some(first), _) => reduce::emit_pair(&mut emitter, plan, first, index),
            (_, Some(product)) => emitter.router(plan, [product, index]),
            _ => emitter.step(step),
        };
        emitted.map_err(|Unsupported(why)| EmitError { step: step.name.clone(), op: step.op.name(), why })?;
    }
    Ok(emitter.out)
}

/// The ways to run the one step of a plan, a block, at so many tokens, the usual one first.
pub(super) fn block_ways(plan: &Plan, target: Target, schedule: Schedule, tokens: i64) -> Vec<BlockWay> {
    let emitter = Emitter::new(plan, target, &Choices { schedule, ..Choices::default() });
    plan.steps.first().map_or_else(Vec::new, |step| gemm::block_ways(&emitter, step, tokens))
}

/// Collects modules, scratch and launches.
pub(super) struct Emitter {
    out: CudaPlan,
    sources: HashMap<String, usize>,
    names: HashMap<String, usize>,
    /// Ids that were ordered by expert.
    pub orders: Vec<gemm::Order>,
    /// Buffers whose rows lie in expert order.
    ordered: HashSet<BufferId>,
    widened: gemm::Widened,
    pub target: Target,
    pub choices: Choices,
    index: usize,
    /// 1 where the launches emitted now are to run, else 0.
    when: Dim,
}

impl Emitter {
    fn new(plan: &Plan, target: Target, choices: &Choices) -> Emitter {
        Emitter {
            out: CudaPlan { plan: plan.clone(), scratch: Vec::new(), modules: Vec::new(), launches: Vec::new() },
            sources: HashMap::new(),
            names: HashMap::new(),
            orders: Vec::new(),
            ordered: gemm::ordered_buffers(plan),
            widened: gemm::Widened::find(plan),
            target,
            choices: choices.clone(),
            index: 0,
            when: Dim::from(1),
        }
    }

    fn step(&mut self, step: &Step) -> Emit<()> {
        match &step.op {
            Op::Pointwise(op) => pointwise::pointwise(self, step, *op),
            Op::Cast(op) => pointwise::cast(self, step, op),
            Op::Bitcast(_) => pointwise::bitcast(self, step),
            Op::Map(op) => pointwise::map(self, step, "map", &op.program),
            Op::Glu(op) => pointwise::map(self, step, "glu", &op.program),
            Op::Iota(op) => pointwise::iota(self, step, op),
            Op::Full(op) => pointwise::full(self, step, op),
            Op::Reduce(_) | Op::MapReduce(_) | Op::ReduceChain(_) => reduce::reduce(self, step),
            Op::Softmax(op) => norm::softmax(self, step, op),
            Op::RmsNorm(op) => norm::rms_norm(self, step, op),
            Op::LayerNorm(op) => norm::layer_norm(self, step, op),
            Op::Cumsum(op) => scan::cumsum(self, step, op),
            Op::Histc(op) => scan::histc(self, step, op),
            Op::Sort(op) => order::sort(self, step, op),
            Op::TopK(op) => order::top_k(self, step, op),
            Op::Index(op) => indexing::index(self, step, op),
            Op::Gather(op) => indexing::gather(self, step, op),
            Op::Cat(op) => indexing::cat(self, step, op),
            Op::InversePermutation(_) => indexing::inverse_permutation(self, step),
            Op::IndexPut(op) => scatter::index_put(self, step, op),
            Op::ScatterAdd(op) => scatter::scatter_add(self, step, op),
            Op::MatMul(_) => gemm::matmul(self, step),
            Op::Convolution(op) => convolution::convolution(self, step, Of::Output, op.groups, op.window()),
            Op::ConvolutionInput(op) => convolution::convolution(self, step, Of::Input, op.groups, op.window()),
            Op::ConvolutionWeight(op) => convolution::convolution(self, step, Of::Weight, op.groups, op.window()),
            Op::Contract(op) => gemm::contract(self, step, op),
            Op::DenseGlu(op) => gemm::dense_glu(self, step, op),
            Op::GroupedMm(_) => gemm::grouped_mm(self, step),
            Op::ExpertMatmul(_) => gemm::expert_matmul(self, step),
            Op::ExpertContract(op) => gemm::expert_contract(self, step, op),
            Op::ExpertOuter(op) => gemm::expert_outer(self, step, op),
            Op::Moe(op) => gemm::moe(self, step, op),
            Op::Combine(op) => route::combine(self, step, op),
            Op::Route(op) => route::route(self, step, op),
            Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) | Op::Slice(_) => {
                Err(Unsupported::new("a view is no step: lower the graph first"))
            }
        }
    }

    /// A router with the product that makes its logits, in one launch or in two.
    fn router(&mut self, plan: &Plan, [product, route]: [usize; 2]) -> Emit<()> {
        if gemm::router(self, plan, [product, route])? {
            return Ok(());
        }
        for index in [product, route] {
            self.index = index;
            self.step(&plan.steps[index])?;
        }
        Ok(())
    }

    /// The largest value of a dim, if the symbols' ranges bound it.
    pub fn most(&self, dim: &Dim) -> Option<i64> {
        bounds(dim, &self.out.plan.symbols).max
    }

    /// True if the tensor's rows lie in expert order, not where their ids stand.
    pub fn is_ordered(&self, tensor: &TensorRef) -> bool {
        self.ordered.contains(&tensor.buffer)
    }

    /// The operands of this step's product as they were before they were widened for it.
    pub fn unwidened(&self) -> Option<[TensorRef; 2]> {
        self.unwidened_at(self.index)
    }

    /// The same for the product at another step.
    pub fn unwidened_at(&self, step: usize) -> Option<[TensorRef; 2]> {
        self.widened.operands(step).cloned()
    }

    /// Emits launches that run only where `when` is 1; it is 0 elsewhere.
    pub fn only(&mut self, when: Dim, emit: impl FnOnce(&mut Emitter) -> Emit<()>) -> Emit<()> {
        let both = self.when.clone() * when;
        if both.is(0) {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.when, both);
        let emitted = emit(self);
        self.when = before;
        emitted
    }

    /// Adds a launch, and its module unless an equal one is there. `grid` is along x, y and z.
    pub fn launch(&mut self, kernel: Kernel, code: Code, grid: [Dim; 3]) {
        let [across, down, deep] = grid;
        let grid = [across * self.when.clone(), down, deep];
        let ([x, y], shared_bytes, overlaps) = (code.threads, code.shared_bytes, code.overlaps);
        let (entry, source, args) = kernel.finish(code);
        let module = match self.sources.get(&source) {
            Some(&module) => module,
            None => {
                let count = self.names.entry(entry.clone()).or_insert(0);
                *count += 1;
                let name = if *count == 1 { entry.clone() } else { format!("{entry}_{count}") };
                self.out.modules.push(Module { name, source: source.clone() });
                self.sources.insert(source, self.out.modules.len() - 1);
                self.out.modules.len() - 1
            }
        };
        let launch = Launch { step: self.index, module, entry, grid, block: [x, y, 1], shared_bytes, args, overlaps };
        self.out.launches.push(launch);
    }

    /// Reserves memory for this step alone, if no other [keeps](Self::keep) it; returns its number.
    pub fn scratch(&mut self, name: &str, bytes: Dim) -> usize {
        self.out.scratch.push(Scratch { name: name.into(), bytes, step: self.index, last: self.index });
        self.out.scratch.len() - 1
    }

    /// Keeps an earlier step's scratch for this step.
    pub fn keep(&mut self, scratch: usize) {
        self.out.scratch[scratch].last = self.index;
    }
}

/// A grid along x.
pub(super) fn flat(blocks: Dim) -> [Dim; 3] {
    [blocks, Dim::from(1), Dim::from(1)]
}

/// The tensor at `i`.
pub(super) fn tensor(step: &Step, i: usize) -> Emit<&TensorRef> {
    match step.inputs.get(i) {
        Some(Arg::Tensor(tensor)) => Ok(tensor),
        _ => Err(Unsupported::new(format!("operand {i} must be a tensor"))),
    }
}

/// The tensor at `i`, if one is given.
pub(super) fn optional(step: &Step, i: usize) -> Option<&TensorRef> {
    match step.inputs.get(i) {
        Some(Arg::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

/// The tensors from `first` on.
pub(super) fn tensors(step: &Step, first: usize) -> Emit<Vec<&TensorRef>> {
    (first..step.inputs.len()).map(|i| tensor(step, i)).collect()
}

/// Number of elements of a view.
pub(super) fn elements(tensor: &TensorRef) -> Dim {
    numel(&tensor.layout.shape)
}
