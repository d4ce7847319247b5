//! Which nodes of the forward part to compute again, as a minimum cut.
//!
//! Each node of the forward part is an edge from its start to its end, whose capacity is the price of keeping its value. A node whose start is on the
//! sink's side is computed again, which an edge from the source to its start prices. Ends lead to the starts of readers, and to the sink where the
//! backward part reads.

use super::{
    Recompute,
    flow::{Network, UNBOUNDED},
    parts::{Parts, is_free},
};
use crate::{
    cost::{bytes, typical_sizes},
    pipeline::Context,
};
use eglu_ir::{Bindings, Dim, Graph, NodeId, Op, Value, ops::OpCode};
use rustc_hash::{FxHashMap, FxHashSet};

/// A byte kept until the backward pass is worth the time of moving so many.
const HOLDING: u64 = 2;

/// How an op can be computed a second time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// As part of the kernel that reads it.
    Inside,
    /// By a pass over memory of its own.
    Pass,
    /// Not: it is dear, or its order of results must not come out otherwise.
    Never,
}

fn again_by(op: &Op) -> Again {
    match op.code() {
        OpCode::Pointwise(_)
        | OpCode::Cast
        | OpCode::Map
        | OpCode::Glu
        | OpCode::Reshape
        | OpCode::Permute
        | OpCode::Expand
        | OpCode::Slice
        | OpCode::Iota
        | OpCode::Full => Again::Inside,
        OpCode::Bitcast
        | OpCode::Reduce
        | OpCode::MapReduce
        | OpCode::ReduceChain
        | OpCode::Softmax
        | OpCode::RmsNorm
        | OpCode::LayerNorm
        | OpCode::Index
        | OpCode::Gather
        | OpCode::Cat => Again::Pass,
        OpCode::Cumsum
        | OpCode::MatMul
        | OpCode::GroupedMm
        | OpCode::Contract
        | OpCode::Convolution
        | OpCode::ConvolutionInput
        | OpCode::ConvolutionWeight
        | OpCode::IndexPut
        | OpCode::ScatterAdd
        | OpCode::Sort
        | OpCode::TopK
        | OpCode::Histc
        | OpCode::InversePermutation
        | OpCode::ExpertMatmul
        | OpCode::ExpertContract
        | OpCode::ExpertOuter
        | OpCode::Combine
        | OpCode::DenseGlu
        | OpCode::Route
        | OpCode::Moe => Again::Never,
    }
}

/// The nodes to compute again.
pub fn again(graph: &Graph, parts: &Parts, context: &Context<'_>) -> FxHashSet<NodeId> {
    let sizes = typical_sizes(graph);
    let forward: Vec<NodeId> = parts.order.iter().copied().filter(|&id| parts.is_forward(graph, id)).collect();
    let at: FxHashMap<NodeId, usize> = forward.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let (source, sink) = (2 * forward.len(), 2 * forward.len() + 1);
    let (start, end) = (|i: usize| 2 * i, |i: usize| 2 * i + 1);
    let returned: FxHashSet<NodeId> = graph.outputs().iter().map(|output| output.value.node).collect();
    let prices = Prices { graph, sizes: &sizes, context };
    let mut network = Network::new(2 * forward.len() + 2);
    for (i, &id) in forward.iter().enumerate() {
        let Some(op) = graph.node(id).op() else { continue };
        // A view is never kept itself, but what it shows; results are there anyway.
        let keeping = match (is_free(op), returned.contains(&id)) {
            (true, _) => UNBOUNDED,
            (_, true) => 0,
            _ => HOLDING * prices.bytes(id),
        };
        network.connect(start(i), end(i), keeping);
        network.connect(source, start(i), prices.again(op, id, parts));
        for user in graph.users(id) {
            match at.get(&user) {
                Some(&reader) => network.connect(end(i), start(reader), UNBOUNDED),
                None => network.connect(end(i), sink, UNBOUNDED),
            }
        }
    }
    let cut = network.cut(source, sink);
    let mut again: FxHashSet<NodeId> = FxHashSet::default();
    for (_, &id) in forward.iter().enumerate().filter(|&(i, _)| cut[start(i)]) {
        // A view of what is kept need not be made twice.
        let reads_again =
            || graph.node(id).operands.iter().filter_map(|operand| operand.value()).any(|value| again.contains(&value.node));
        if !graph.node(id).op().is_some_and(is_free) || reads_again() {
            again.insert(id);
        }
    }
    again
}

struct Prices<'a> {
    graph: &'a Graph,
    sizes: &'a Bindings,
    context: &'a Context<'a>,
}

impl Prices<'_> {
    /// Bytes of all results of a node.
    fn bytes(&self, id: NodeId) -> u64 {
        let results = 0..self.graph.node(id).outputs.len() as u32;
        results.map(|index| bytes(self.graph, Value { node: id, index }, self.sizes) as u64).sum()
    }

    /// What it costs to compute a node again, as the bytes that the device moves in that time.
    fn again(&self, op: &Op, id: NodeId, parts: &Parts) -> u64 {
        let by = again_by(op);
        match (by, self.context.recompute) {
            (Again::Never, _) | (_, Recompute::None) => return UNBOUNDED,
            // The fewest ops that do.
            (_, Recompute::All) => return 1,
            _ if is_free(op) => return 0,
            _ => {}
        }
        let read = |id: NodeId| -> u64 {
            let operands = self.graph.node(id).operands.iter().filter_map(|operand| operand.value());
            operands.map(|value| bytes(self.graph, value, self.sizes) as u64).sum()
        };
        let launch = (self.context.profile.launch_seconds * self.context.profile.bandwidth) as u64;
        match (by, self.readings(id, parts)) {
            (Again::Pass, _) | (_, Reading::Stored) => read(id) + self.bytes(id) + launch,
            (_, Reading::Beside) => self.bytes(id),
            (_, Reading::Inside) => 1,
        }
    }

    /// The most that readers in the backward part ask, also through views.
    fn readings(&self, id: NodeId, parts: &Parts) -> Reading {
        let reading = |reader: NodeId| match self.graph.node(reader).op() {
            Some(op) if is_free(op) => self.readings(reader, parts),
            _ if !parts.is_backward(reader) => Reading::Inside,
            Some(Op::ExpertOuter(_)) => Reading::Beside,
            Some(op) if again_by(op) == Again::Inside && self.numel(reader) == self.numel(id) => Reading::Inside,
            Some(Op::Reduce(_)) => Reading::Inside,
            _ => Reading::Stored,
        };
        self.graph.users(id).into_iter().map(reading).max().unwrap_or(Reading::Inside)
    }

    fn numel(&self, id: NodeId) -> Dim {
        self.graph.node(id).outputs[0].numel()
    }
}

/// What a reader asks of a value that is computed again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reading {
    /// It computes the value itself.
    Inside,
    /// The value is written by a kernel that computes it beside its own result.
    Beside,
    /// The value is written by a kernel of its own.
    Stored,
}
