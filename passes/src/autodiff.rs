//! Reverse-mode differentiation: from a forward graph and chosen outputs the joint graph, which computes the outputs and then their gradients.
//!
//! The gradient by each value is the sum of what its readers say of it ([`tape`]). What an op says follows from its row: of an elementwise op an
//! expression in the same ops ([`Derivative::Expression`], built by [`expression`]), of a structured op a function ([`rules`]). The backward part
//! consists of ordinary ops, so all rules that fuse imported joint graphs apply to it.
//!
//! Outputs with elements (not scalars) get their gradient, the tangent, as a further input. Integers and bools carry no gradient.

mod expression;
mod request;
mod rules;
mod slices;
mod tape;

pub use request::{Gradients, INPUTS, PARAMETERS};

use crate::{
    canonicalize::SimplifyViews,
    cse::MergeEqual,
    pipeline::{Context, Failure, Pass},
};
use eglu_ir::{
    DType, Graph, GraphError, NodeId, Op, OutputKind, Scalar, Value,
    ops::{Derivative, Full},
};
use rules::Site;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use tape::Tape;

/// Why a graph cannot be differentiated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum AutodiffError {
    #[error("node `{node}`: `{op}` has no derivative: {why}; a gradient by `{operand}` is asked through it")]
    NoDerivative { node: Arc<str>, op: &'static str, why: &'static str, operand: Arc<str> },
    #[error("there is no output `{name}`; the outputs are {known}")]
    UnknownOutput { name: String, known: String },
    #[error("there is no input or weight `{name}`; there are {known}, and the words `inputs` and `parameters` for all of a kind")]
    UnknownSource { name: String, known: String },
    #[error("the {what} `{name}` is of {dtype}: only real floats have gradients")]
    NotReal { what: &'static str, name: String, dtype: DType },
    #[error("no output of floats depends on an input or weight of floats, so there is nothing to differentiate")]
    Nothing,
    #[error("the graph has gradients among its outputs already: differentiate its forward part")]
    Joint,
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Appends the backward graph to a forward one.
pub struct Autodiff;

impl Pass for Autodiff {
    fn name(&self) -> &'static str {
        "autodiff"
    }

    fn doc(&self) -> &'static str {
        "appends the gradients of the outputs by inputs and weights"
    }

    fn run(&self, graph: &mut Graph, context: &mut Context<'_>) -> Result<bool, Failure> {
        // Readers of one tensor through equal views shall read the same value, so that the parts of its gradient meet.
        SimplifyViews.run(graph, context)?;
        MergeEqual.run(graph, context)?;
        *graph = differentiate(graph, context.gradients)?;
        context.report.restart(graph);
        Ok(true)
    }
}

/// The joint graph. Its inputs are those of `graph`, then a tangent for each chosen output that is no scalar; its outputs are those of `graph`,
/// then the gradients of what was asked for, inputs before weights.
pub fn differentiate(graph: &Graph, request: &Gradients) -> Result<Graph, AutodiffError> {
    if graph.outputs().iter().any(|output| matches!(output.kind, OutputKind::Gradient(_))) {
        return Err(AutodiffError::Joint);
    }
    let (outputs, sources) = (request.outputs(graph)?, request.sources(graph)?);
    let order = graph.topological()?;
    let active = active(graph, &order, sources.iter().map(|source| source.value));
    let seeded: Vec<Value> = outputs.into_iter().filter(|output| active.contains(output)).collect();
    let nothing = seeded.is_empty() && sources.iter().all(|source| !source.named);
    if nothing || sources.is_empty() {
        return Err(AutodiffError::Nothing);
    }
    let mut tape = Tape::new(graph.clone());
    for &output in &seeded {
        let ty = graph.ty(output).clone();
        let tangent = if ty.rank() == 0 {
            let one = Full { shape: ty.shape, value: Scalar::Float(1.0), dtype: ty.dtype };
            tape.call(one, [])?
        } else {
            tape.graph.add_input("tangent", ty)
        };
        tape.add(output, tangent);
    }
    for &id in order.iter().rev() {
        backward(&mut tape, graph, id, &active)?;
    }
    for source in sources {
        tape.name_after(source.value.node);
        let gradient = match tape.gradient(source.value)? {
            Some(gradient) => gradient,
            None if source.named => {
                let ty = graph.ty(source.value).clone();
                tape.zeros(&ty)?
            }
            None => continue,
        };
        tape.graph.add_output(gradient, OutputKind::Gradient(source.name));
    }
    tape.graph.remove_dead();
    Ok(tape.graph)
}

/// Values that depend on the sources through derivatives.
fn active(graph: &Graph, order: &[NodeId], sources: impl Iterator<Item = Value>) -> FxHashSet<Value> {
    let mut active: FxHashSet<Value> = sources.collect();
    for &id in order {
        let node = graph.node(id);
        let Some(op) = node.op() else { continue };
        let depends = node.operands.iter().filter_map(|operand| operand.value()).any(|value| active.contains(&value));
        if !depends || op.code().derivative() == Derivative::Zero {
            continue;
        }
        let carries = |index: &u32| {
            let dtype = graph.ty(Value { node: id, index: *index }).dtype;
            dtype.is_float() || dtype.is_complex()
        };
        active.extend((0..node.outputs.len() as u32).filter(carries).map(|index| Value { node: id, index }));
    }
    active
}

/// Carries the gradients by a node's results on to its operands.
fn backward(tape: &mut Tape, graph: &Graph, id: NodeId, active: &FxHashSet<Value>) -> Result<(), AutodiffError> {
    let node = graph.node(id);
    // Gradients by inputs and weights are taken by name afterwards.
    let Some(op) = node.op() else { return Ok(()) };
    tape.name_after(id);
    let results = (0..node.outputs.len() as u32).map(|index| Value { node: id, index });
    let gradients = results.map(|result| tape.gradient(result)).collect::<Result<_, _>>()?;
    let wanted = node.operands.iter().map(|operand| operand.value().is_some_and(|value| active.contains(&value))).collect();
    let site = Site { id, operands: node.operands.clone(), gradients, wanted };
    let first = site.wanted.iter().position(|&wanted| wanted);
    let (Some(first), true) = (first, site.gradients.iter().any(Option::is_some)) else { return Ok(()) };
    let refuse = |why| {
        let operand = graph.node(site.tensor(graph, first).node).name.clone();
        AutodiffError::NoDerivative { node: node.name.clone(), op: op.name(), why, operand }
    };
    let tensors = node.operands.iter().filter_map(|operand| operand.value()).map(|value| graph.ty(value).dtype);
    if tensors.chain(node.outputs.iter().map(|ty| ty.dtype)).any(DType::is_complex) {
        return Err(refuse("gradients of complex numbers are not there yet"));
    }
    match op.code().derivative() {
        Derivative::Zero => Ok(()),
        Derivative::None(why) => Err(refuse(why)),
        Derivative::Expression(_) => Ok(elementwise(tape, op, &site)?),
        Derivative::Rule if rules::apply(tape, op, &site)? => Ok(()),
        Derivative::Rule => Err(refuse("its rule is missing")),
    }
}

fn elementwise(tape: &mut Tape, op: &Op, site: &Site) -> Result<(), GraphError> {
    let (&Op::Pointwise(op), Some(gradient)) = (op, site.gradients[0]) else { return Ok(()) };
    let names = expression::Names { op, operands: &site.operands, out: site.result(0), gradient };
    for i in 0..site.operands.len() {
        let Some(x) = site.wants(i) else { continue };
        if let Some(gradient) = expression::gradient(tape, &names, i)? {
            let ty = tape.ty(x).clone();
            let gradient = tape.unbroadcast(gradient, &ty)?;
            tape.add(x, gradient);
        }
    }
    Ok(())
}
