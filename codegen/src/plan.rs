//! The plan: what every backend runs.

use crate::Layout;
use eglu_ir::{DType, Dim, Op, Scalar, Shape, SymbolRange, Tensor, TensorType, graph::OutputKind, ops::OperandType};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Position in [`Plan::buffers`].
pub type BufferId = usize;

/// Steps in execution order over dense buffers. One plan serves every value of its symbols.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The graph's name.
    pub name: String,
    /// Symbols of the dims, with the values each may take.
    pub symbols: IndexMap<Arc<str>, SymbolRange>,
    /// Everything that has an address.
    pub buffers: Vec<Buffer>,
    /// What to run.
    pub steps: Vec<Step>,
    /// User inputs in signature order.
    pub inputs: Vec<PlanInput>,
    /// Outputs in signature order.
    pub outputs: Vec<PlanOutput>,
}

/// A dense row-major block of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Buffer {
    /// Name of the node that fills it.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub numel: Dim,
    /// Where its contents come from.
    pub source: Source,
}

/// Where a buffer's contents come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// User input, by position.
    Input(usize),
    /// Parameter or buffer, by its fully qualified name.
    Weight(Arc<str>),
    /// Written in the graph.
    #[serde(with = "crate::constant")]
    Constant(Tensor),
    /// Written by a step.
    Step,
}

/// A strided view of a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorRef {
    /// Which buffer.
    pub buffer: BufferId,
    /// Element type.
    pub dtype: DType,
    /// How it is read.
    pub layout: Layout,
}

impl TensorRef {
    /// Dtype and shape of the view.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.layout.shape.clone() }
    }
}

/// What a step reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Arg {
    Tensor(TensorRef),
    Scalar(Scalar),
    None,
}

/// One op to run; its outputs are dense, its inputs any strided views.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Name of its node.
    pub name: Arc<str>,
    /// What it computes; never a view.
    pub op: Op,
    /// What it reads, as the op's operands.
    pub inputs: Vec<Arg>,
    /// Where its results go.
    pub outputs: Vec<TensorRef>,
    /// Names of the imported nodes it stands for.
    pub origins: Vec<Arc<str>>,
}

impl Step {
    /// Types of the inputs, in their places; `None` where an input is no tensor.
    pub fn input_types(&self) -> Vec<Option<TensorType>> {
        let ty = |arg: &Arg| match arg {
            Arg::Tensor(tensor) => Some(tensor.ty()),
            _ => None,
        };
        self.inputs.iter().map(ty).collect()
    }

    /// The inputs as inference and costs see them; `types` are those of [`Step::input_types`].
    pub fn operand_types<'a>(&self, types: &'a [Option<TensorType>]) -> Vec<OperandType<'a>> {
        let operand = |(arg, ty): (&Arg, &'a Option<TensorType>)| match (arg, ty) {
            (_, Some(ty)) => OperandType::Tensor(ty),
            (Arg::Scalar(scalar), _) => OperandType::Scalar(*scalar),
            _ => OperandType::None,
        };
        self.inputs.iter().zip(types).map(operand).collect()
    }
}

/// A user input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PlanInput {
    pub name: Arc<str>,
    pub ty: TensorType,
    pub buffer: BufferId,
}

/// An output: a view of a buffer, to be delivered dense.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PlanOutput {
    pub tensor: TensorRef,
    pub kind: OutputKind,
}

impl Plan {
    /// The first and last step that touches each buffer; `None` for a buffer no step touches.
    ///
    /// A buffer that an output reads lives to the end of the plan: its last step is `steps.len()`.
    pub fn lifetimes(&self) -> Vec<Option<(usize, usize)>> {
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; self.buffers.len()];
        let mut touch = |buffer: BufferId, step: usize| {
            let (first, last) = lives[buffer].get_or_insert((step, step));
            *first = (*first).min(step);
            *last = (*last).max(step);
        };
        for (i, step) in self.steps.iter().enumerate() {
            for arg in &step.inputs {
                if let Arg::Tensor(tensor) = arg {
                    touch(tensor.buffer, i);
                }
            }
            for output in &step.outputs {
                touch(output.buffer, i);
            }
        }
        for output in &self.outputs {
            touch(output.tensor.buffer, self.steps.len());
        }
        lives
    }
}

impl Buffer {
    /// A dense view of the whole buffer in this shape.
    pub fn view(id: BufferId, dtype: DType, shape: Shape) -> TensorRef {
        TensorRef { buffer: id, dtype, layout: Layout::dense(shape) }
    }
}
