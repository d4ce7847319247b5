//! From a step to the kernel that runs it.

use super::{
    block::Block,
    call::{Call, Operand, Outcome, Taken},
    chain::Passes,
    contract::{self, Contraction},
    convolution, copy, expert_contract, experts, gather, moe, outer, pointwise,
    reduce::Reduction,
    rows,
    view::View,
};
use crate::RuntimeError;
use eglu_codegen::{Arg, Step};
use eglu_ir::{
    Bindings, DType, Op, Program, Ref, Tensor,
    eval::{EvalOperand, eval_op},
    ops::{ExpertContract, OperandType, Pointwise, Reduce, ReduceKind, infer},
    program::InstrOp,
};
use smallvec::SmallVec;

/// A step's kernel with its programs made ready.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// Elementwise programs.
    Map(Block),
    /// The same elements, dense.
    Copy,
    /// Reductions over the first so many operands.
    Reduce(Box<Reduction>, usize),
    /// Lines in several passes.
    Chain(Box<Passes>),
    /// A product with an epilogue.
    Contract(Box<Contraction>),
    /// Rows grouped by offsets.
    GroupedMm(Block),
    /// Rows grouped by ids.
    ExpertMatmul(Block),
    /// Rows grouped by ids, and an epilogue.
    ExpertContract(Box<(ExpertContract, Contraction)>),
    /// Sums of outer products by ids; how often rows of both operands repeat.
    ExpertOuter(Block, [usize; 2]),
    /// Gate and up together.
    DenseGlu(Box<Contraction>),
    /// A whole block.
    Moe(Block),
    /// Along a dim; true for its logarithm.
    Softmax(usize, bool),
    /// With this epsilon.
    RmsNorm(f64),
    /// With this epsilon.
    LayerNorm(f64),
    /// A convolution or one of its gradients.
    Convolution,
    /// Slices by index.
    Index,
    /// A join along a dim.
    Cat(usize),
    /// The reference evaluator.
    Reference,
}

impl Kernel {
    /// The kernel of a step.
    pub fn of(step: &Step) -> Kernel {
        Self::native(step).unwrap_or(Kernel::Reference)
    }

    fn native(step: &Step) -> Option<Kernel> {
        let out = step.outputs.first()?.dtype;
        let dtype = |i: usize| match step.inputs.get(i) {
            Some(Arg::Tensor(tensor)) => Some(tensor.dtype),
            _ => None,
        };
        // Accumulators in opmath, stored in the result's dtype.
        let rounding = || Block::new(&Program::identity(dtype(0)?.opmath(), out));
        Some(match &step.op {
            Op::Pointwise(op) => Kernel::Map(pointwise_block(*op, step)?),
            Op::Cast(_) if dtype(0)? == out => Kernel::Copy,
            Op::Cast(op) => {
                let mut program = Program::new([dtype(0)?]);
                let cast = program.push(InstrOp::Cast, [Ref::Param(0)], op.dtype);
                program.results.push((cast, op.dtype));
                Kernel::Map(Block::new(&program)?)
            }
            Op::Map(op) if is_copy(&op.program) => Kernel::Copy,
            Op::Map(op) => Kernel::Map(Block::new(&op.program)?),
            Op::Glu(op) => Kernel::Map(Block::new(&op.program)?),
            Op::Reduce(op) => Kernel::Reduce(Box::new(reduction(op, dtype(0)?)?), 1),
            Op::MapReduce(op) => {
                let (prologue, epilogue) = (Block::new(&op.prologue)?, Block::new(&op.epilogue)?);
                let reduction = Reduction::new(prologue, &op.kinds, &op.dims, epilogue)?;
                Kernel::Reduce(Box::new(reduction), op.prologue.params.len())
            }
            Op::ReduceChain(op) => Kernel::Chain(Box::new(Passes::new(op)?)),
            Op::MatMul(_) => Kernel::Contract(Box::new(Contraction::plain(rounding()?))),
            Op::Contract(op) => Kernel::Contract(Box::new(Contraction::new(op)?)),
            Op::GroupedMm(_) => Kernel::GroupedMm(rounding()?),
            Op::ExpertMatmul(_) => Kernel::ExpertMatmul(rounding()?),
            Op::ExpertContract(op) => Kernel::ExpertContract(Box::new((op.clone(), Contraction::by_expert(op)?))),
            Op::ExpertOuter(op) => {
                let onto = matches!(step.inputs.get(3), Some(Arg::Tensor(_)));
                Kernel::ExpertOuter(Block::new(&op.program(dtype(0)?.opmath(), onto))?, [op.a_repeat, op.b_repeat])
            }
            Op::DenseGlu(op) => Kernel::DenseGlu(Box::new(Contraction::gated(Block::new(&op.program)?))),
            Op::Moe(op) => Kernel::Moe(Block::new(&op.program)?),
            Op::Softmax(op) => Kernel::Softmax(op.dim, op.log),
            Op::RmsNorm(op) => Kernel::RmsNorm(op.eps.as_f64()),
            Op::LayerNorm(op) => Kernel::LayerNorm(op.eps.as_f64()),
            Op::Convolution(_) | Op::ConvolutionInput(_) | Op::ConvolutionWeight(_) => Kernel::Convolution,
            Op::Index(_) => Kernel::Index,
            Op::Cat(op) => Kernel::Cat(op.dim),
            _ => return None,
        })
    }

    /// Runs the step. What a kernel does not cover, the reference evaluator runs on dense operands.
    pub fn run(&self, call: &mut Call<'_>, bindings: &Bindings) -> Result<(), RuntimeError> {
        match self.run_native(call)? {
            Taken::Done => Ok(()),
            Taken::Refused => reference(call, bindings),
        }
    }

    fn run_native(&self, call: &mut Call<'_>) -> Outcome {
        match self {
            Kernel::Map(block) => pointwise::map(call, block),
            Kernel::Copy => {
                let shape = call.outputs[0].shape.clone();
                let from = call.view(0)?.broadcast(&shape);
                copy::densify(&from, call.outputs[0].bytes);
                Ok(Taken::Done)
            }
            Kernel::Reduce(reduction, inputs) => reduction.run(call, *inputs),
            Kernel::Chain(passes) => passes.run(call),
            Kernel::Contract(contraction) => contract::contract(call, contraction),
            Kernel::GroupedMm(block) => experts::grouped_mm(call, block),
            Kernel::ExpertMatmul(block) => experts::expert_matmul(call, block),
            Kernel::ExpertContract(contract) => expert_contract::expert_contract(call, &contract.0, &contract.1),
            Kernel::ExpertOuter(block, repeats) => outer::expert_outer(call, block, *repeats),
            Kernel::DenseGlu(contraction) => contract::dense_glu(call, contraction),
            Kernel::Moe(block) => moe::moe(call, block),
            Kernel::Softmax(dim, log) => rows::softmax(call, *dim, *log),
            Kernel::RmsNorm(eps) => rows::rms_norm(call, *eps),
            Kernel::LayerNorm(eps) => rows::layer_norm(call, *eps),
            Kernel::Convolution => convolution::convolution(call),
            Kernel::Index => match &call.step.op {
                Op::Index(op) => gather::index(call, &op.axes.clone()),
                _ => Ok(Taken::Refused),
            },
            Kernel::Cat(dim) => copy::cat(call, *dim),
            Kernel::Reference => Ok(Taken::Refused),
        }
    }
}

fn is_copy(program: &Program) -> bool {
    program.instrs.is_empty() && program.results[..] == [(Ref::Param(0), program.params[0])] && program.params.len() == 1
}

/// A row of the pointwise table on a step's operands, with PyTorch's promotion.
fn pointwise_block(op: Pointwise, step: &Step) -> Option<Block> {
    let types: Vec<Option<eglu_ir::TensorType>> = step
        .inputs
        .iter()
        .map(|arg| match arg {
            Arg::Tensor(tensor) => Some(tensor.ty()),
            _ => None,
        })
        .collect();
    let mut params: SmallVec<[DType; 4]> = SmallVec::new();
    let (mut refs, mut operands) = (Vec::new(), Vec::new());
    for (arg, ty) in step.inputs.iter().zip(&types) {
        match (arg, ty) {
            (_, Some(ty)) => {
                refs.push(Ref::Param(params.len() as u32));
                operands.push(OperandType::Tensor(ty));
                params.push(ty.dtype);
            }
            (Arg::Scalar(scalar), _) => {
                refs.push(Ref::Scalar(*scalar));
                operands.push(OperandType::Scalar(*scalar));
            }
            _ => return None,
        }
    }
    let compute = infer::compute_dtype(op, &operands).ok()?;
    Block::of_op(op, &params, &refs, compute, step.outputs[0].dtype)
}

fn reduction(op: &Reduce, from: DType) -> Option<Reduction> {
    use ReduceKind::*;
    if op.kind == Prod && op.dtype != op.dtype.opmath() {
        // Products of halves are rounded after every factor, as PyTorch's are on a CPU; the evaluator knows how.
        return None;
    }
    let mut prologue = Program::new([from]);
    let (value, dtype) = match op.kind {
        // PyTorch converts to the result's dtype before it sums.
        Sum | Prod | Mean if from != op.dtype => (prologue.push(InstrOp::Cast, [Ref::Param(0)], op.dtype), op.dtype.opmath()),
        Any | All => (Ref::Param(0), DType::Bool),
        _ => (Ref::Param(0), from.opmath()),
    };
    prologue.results.push((value, dtype));
    let epilogue = Program::identity(dtype, op.dtype);
    Reduction::new(Block::new(&prologue)?, &[op.kind], &op.dims, Block::new(&epilogue)?)
}

/// Runs the step through the reference evaluator.
fn reference(call: &mut Call<'_>, bindings: &Bindings) -> Result<(), RuntimeError> {
    let dense: Vec<Option<Tensor>> = call
        .operands
        .iter()
        .map(|operand| match operand {
            Operand::Tensor(view) => to_tensor(view, &call.step.name).map(Some),
            _ => Ok(None),
        })
        .collect::<Result<_, _>>()?;
    let operands: Vec<EvalOperand<'_>> = call
        .operands
        .iter()
        .zip(&dense)
        .map(|(operand, tensor)| match (operand, tensor) {
            (_, Some(tensor)) => EvalOperand::Tensor(tensor),
            (Operand::Scalar(scalar), _) => EvalOperand::Scalar(*scalar),
            _ => EvalOperand::None,
        })
        .collect();
    let results = eval_op(&call.step.op, &operands, bindings).map_err(|e| call.error(e.to_string()))?;
    for (i, result) in results.iter().enumerate() {
        let (want, got) = (call.outputs[i].bytes.len(), result.bytes().len());
        if want != got {
            return Err(call.error(format!("result {i} is {}, {want} bytes were planned for it", result.ty())));
        }
        call.outputs[i].bytes.copy_from_slice(result.bytes());
    }
    Ok(())
}

/// A view as a dense tensor; `what` names it in errors.
pub fn to_tensor(view: &View<'_>, what: &str) -> Result<Tensor, RuntimeError> {
    let mut tensor = Tensor::zeros(view.dtype, &view.shape)
        .map_err(|source| RuntimeError::Tensor { what: format!("a dense copy for `{what}`"), source })?;
    copy::densify(view, tensor.bytes_mut());
    Ok(tensor)
}
