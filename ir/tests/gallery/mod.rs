//! One small graph that calls every op of the table.

#[path = "programs.rs"]
mod programs;

use eglu_ir::{
    Bindings, DType, Dim, Graph, NodeId, Op, Operand, OutputKind, Program, Ref, Scalar, Shape, SymbolRange, Tensor, TensorType,
    Value, ops::*, program::InstrOp,
};
use programs::{chain, gating, sum};
use std::sync::Arc;

/// Extent that the symbol `s0` has in [`inputs`].
pub const ROWS: usize = 5;

struct Builder {
    graph: Graph,
}

impl Builder {
    fn call(&mut self, op: impl Into<Op>, operands: &[Operand]) -> Value {
        let op = op.into();
        let id: NodeId = self.graph.add_call(op.name(), op, operands.iter().copied()).expect("the gallery's types fit");
        for index in 0..self.graph.node(id).outputs.len() as u32 {
            self.graph.add_output(Value { node: id, index }, OutputKind::User);
        }
        id.into()
    }

    fn weight(&mut self, path: &str, dims: &[i64]) -> Operand {
        self.graph.add_weight(&path.replace('.', "_"), path, TensorType::fixed(DType::F32, dims)).into()
    }
}

/// The graph; its inputs are those of [`inputs`].
pub fn graph() -> Graph {
    let mut b = Builder { graph: Graph::new("every \"op\"") };
    b.graph.symbols.insert("s0".into(), SymbolRange { min: 2, max: Some(8) });
    b.graph.symbols.insert("s1".into(), SymbolRange { min: 0, max: None });
    let s = Dim::symbol("s0");
    let x: Operand = b.graph.add_input("x", TensorType::new(DType::F32, [s.clone(), Dim::from(4)])).into();
    let mask: Operand = b.graph.add_input("the mask", TensorType::new(DType::Bool, [s.clone(), Dim::from(1)])).into();
    let ids: Operand = b.graph.add_input("ids", TensorType::new(DType::I64, [s.clone()])).into();
    pointwise(&mut b, x, mask, ids);
    views(&mut b, x, &s);
    reductions(&mut b, x);
    products(&mut b, x, ids);
    indexing(&mut b, x, ids);
    fused(&mut b, x, ids, &s);
    b.graph.add_output(x.value().expect("a tensor"), OutputKind::Gradient("x".into()));
    b.graph.add_output(ids.value().expect("a tensor"), OutputKind::Mutation("a \\ b\n\"c\"".into()));
    b.graph
}

fn pointwise(b: &mut Builder, x: Operand, mask: Operand, ids: Operand) {
    for &op in Pointwise::ALL {
        let operand = if op.rule() == TypeRule::Bits { ids } else { x };
        match (op.rule(), op.arity()) {
            (TypeRule::Select, _) => b.call(op, &[mask, x, Operand::Scalar(Scalar::Float(f64::NEG_INFINITY))]),
            (_, 1) => b.call(op, &[operand]),
            _ => b.call(op, &[operand, operand]),
        };
    }
    b.call(Pointwise::Add, &[ids, Operand::Scalar(Scalar::Int(-3))]);
    b.call(Pointwise::Ne, &[mask, Operand::Scalar(Scalar::Bool(true))]);
    b.call(Cast { dtype: DType::F8E4M3Fn }, &[x]);
    b.call(Bitcast { dtype: DType::I16 }, &[x]);
    b.call(Map { program: sum(3, DType::F32) }, &[x, x, x]);
    b.call(Glu { program: gating(DType::F32) }, &[x, x]);
}

fn views(b: &mut Builder, x: Operand, s: &Dim) {
    let two = Dim::from(2);
    b.call(Reshape { shape: Shape::from_iter([s.clone() * two.clone(), two]) }, &[x]);
    b.call(Permute { dims: Axes::from_slice(&[1, 0]) }, &[x]);
    b.call(Expand { shape: Shape::from_iter([Dim::from(3), s.clone(), Dim::from(4)]) }, &[x]);
    let slice = Slice { dim: 0, start: Dim::from(1), end: s.clone() + Dim::from(-1), step: 2 };
    b.call(slice, &[x]);
    let (half, rest) = (s.floor_div(&Dim::from(2)), s.rem(&Dim::from(3)));
    let len = Dim::max(&half, &Dim::from(1)) + Dim::min(&rest, &(-s.clone() + Dim::from(7)));
    b.call(Iota { len, start: -2, step: 3, dtype: DType::I32 }, &[]);
    let value = Scalar::Float(f64::NAN);
    b.call(Full { shape: Shape::from_iter([s.clone()]), value, dtype: DType::Bf16 }, &[]);
}

fn reductions(b: &mut Builder, x: Operand) {
    for &kind in ReduceKind::ALL {
        let dtype = match kind {
            ReduceKind::Any | ReduceKind::All => DType::Bool,
            ReduceKind::Argmax | ReduceKind::Argmin => DType::I64,
            _ => DType::F32,
        };
        b.call(Reduce { kind, dims: Axes::from_slice(&[1]), keepdim: true, dtype }, &[x]);
    }
    let kinds = vec![ReduceKind::Amax, ReduceKind::Amin];
    let mut prologue = (*gating(DType::F32)).clone();
    prologue.results.push((Ref::Param(0), DType::F32));
    let map_reduce = MapReduce {
        prologue: Arc::new(prologue),
        kinds,
        dims: Axes::from_slice(&[0]),
        keepdim: false,
        epilogue: sum(3, DType::F32),
    };
    let row = b.weight("norm.weight", &[4]);
    b.call(map_reduce, &[x, x, row]);
    let kept = Axes::from_slice(&[1, 0]);
    b.call(ReduceChain { kept, ..chain(DType::F32, vec![ReduceKind::Sum, ReduceKind::Amax], true) }, &[x, row]);
    b.call(Cumsum { dim: 0, dtype: DType::F64 }, &[x]);
    b.call(Softmax { dim: 1, log: true, dtype: DType::F32 }, &[x]);
    b.call(RmsNorm { eps: Scalar::Float(1e-5), dtype: DType::F32 }, &[x, row]);
    b.call(RmsNorm { eps: Scalar::Int(0), dtype: DType::F16 }, &[x, Operand::None]);
    b.call(LayerNorm { eps: Scalar::Float(1e-5), dtype: DType::Bf16 }, &[x, Operand::None, row]);
}

fn products(b: &mut Builder, x: Operand, ids: Operand) {
    let (w, batch) = (b.weight("dense", &[4, 6]), b.weight("experts.in", &[3, 4, 6]));
    b.call(MatMul {}, &[x, w]);
    let offs = Tensor::from_slice(DType::I32, &[3], &[1i32, 1, 2]).expect("small");
    let offs = b.graph.add_constant("offs", offs);
    b.call(GroupedMm {}, &[x, batch, offs.into()]);
    let capture = b.weight("bias", &[6]);
    b.call(Contract::new(2, sum(3, DType::F32)), &[x, w, w, capture]);
    let mut several = (*sum(3, DType::F32)).clone();
    several.results.extend([(Ref::Param(0), DType::F32), (Ref::Param(1), DType::F32), (Ref::Param(0), DType::F32)]);
    let folds = vec![ReduceKind::Amax, ReduceKind::Sum];
    let (groups, program) = (Axes::from_slice(&[3, 0]), several.into());
    b.call(Contract { lanes: 2, packed: 2, interleaved: true, folds, groups, program }, &[x, w, w, capture]);
    let axes = |value: usize| Axes::from_slice(&[value]);
    let (image, filters) = (b.weight("image", &[2, 4, 7]), b.weight("filters", &[6, 2, 3]));
    let (stride, padding, dilation, groups) = (axes(2), axes(1), axes(1), 2);
    let forward = Convolution { stride: stride.clone(), padding: padding.clone(), dilation: dilation.clone(), groups };
    let y: Operand = b.call(forward, &[image, filters]).into();
    let extents = Shape::from_iter([Dim::from(7)]);
    let of_input =
        ConvolutionInput { extents, stride: stride.clone(), padding: padding.clone(), dilation: dilation.clone(), groups };
    b.call(of_input, &[y, filters]);
    b.call(ConvolutionWeight { extents: axes(3), stride, padding, dilation, groups }, &[image, y]);
    let (experts, bias) = (b.weight("experts.out", &[3, 6, 4]), b.weight("experts.bias", &[3, 6]));
    b.call(ExpertMatmul {}, &[x, experts, bias, ids]);
    b.call(ExpertMatmul {}, &[x, experts, Operand::None, ids]);
    let program = sum(4, DType::F32);
    let (folds, groups) = (vec![ReduceKind::Sum], Axes::from_slice(&[2]));
    let (packed, interleaved, grouped) = (0, false, false);
    let contract = ExpertContract { lanes: 2, tables: 1, repeat: 1, packed, interleaved, grouped, folds, groups, program };
    let column = b.weight("column", &[6]);
    b.call(contract, &[x, ids, experts, experts, bias, column]);
    let outer = ExpertOuter { experts: Dim::from(3), a_repeat: 1, b_repeat: 1, dtype: DType::F32 };
    let sums = b.call(outer.clone(), &[x, x, ids]);
    b.call(outer, &[x, x, ids, sums.into()]);
}

fn indexing(b: &mut Builder, x: Operand, ids: Operand) {
    let rows = Axes::from_slice(&[1]);
    b.call(Index { axes: rows.clone() }, &[x, ids]);
    let column = b.call(Index { axes: Axes::from_slice(&[0, 1]) }, &[x, ids, ids]);
    b.call(IndexPut { axes: Axes::from_slice(&[0, 1]), accumulate: true }, &[x, column.into(), ids, ids]);
    let top = b.call(TopK { k: 2, dim: 1, largest: true }, &[x]);
    let picked = Operand::Value(Value { node: top.node, index: 1 });
    b.call(Gather { dim: 1 }, &[x, picked]);
    b.call(ScatterAdd { dim: 1 }, &[x, picked, top.into()]);
    b.call(Cat { dim: 0 }, &[x, x, x]);
    let sorted = b.call(Sort { dim: 0, descending: false }, &[ids]);
    b.call(InversePermutation {}, &[Operand::Value(Value { node: sorted.node, index: 1 })]);
    b.call(Histc { bins: 4, min: Scalar::Int(0), max: Scalar::Float(3.5) }, &[ids]);
}

fn fused(b: &mut Builder, x: Operand, ids: Operand, s: &Dim) {
    let program = gating(DType::F32);
    let (gate, up) = (b.weight("mlp.gate", &[6, 4]), b.weight("mlp.up", &[6, 4]));
    let bias = b.weight("mlp.bias", &[6]);
    b.call(DenseGlu { program: program.clone() }, &[x, gate, Operand::None, up, bias]);
    for &score in RouteScore::ALL {
        let mut weigh = Program::new([DType::F32; 2]);
        let share = weigh.push(InstrOp::Pointwise(Pointwise::Div), [Ref::Param(0), Ref::Param(1)], DType::F32);
        weigh.results.push((share, DType::Bf16));
        let (scores, groups, masked) = (DType::F32, Axes::new(), Scalar::Float(f64::NEG_INFINITY));
        b.call(Route { score, scores, k: 2, groups, masked, gathered: true, weigh: weigh.into() }, &[x, Operand::None]);
    }
    let [gate, up, down] = ["gate", "up", "down"].map(|name| match name {
        "down" => b.weight("moe.down", &[3, 4, 6]),
        name => b.weight(&format!("moe.{name}"), &[3, 6, 4]),
    });
    let pairs = Reshape { shape: Shape::from_iter([s.clone(), Dim::from(1)]) };
    let chosen = b.call(pairs.clone(), &[ids]);
    let first = Slice { dim: 1, start: Dim::from(0), end: Dim::from(1), step: 1 };
    let weights = b.call(first, &[x]);
    let moe = Moe { program, dtype: DType::F32 };
    let none = Operand::None;
    b.call(moe, &[x, gate, none, up, none, down, none, chosen.into(), weights.into()]);
    b.call(Combine { dtype: DType::F32 }, &[x, weights.into()]);
    let large = Tensor::from_slice(DType::F64, &[40], &[0.1; 40]).expect("small");
    b.graph.add_constant("large", large);
    let odd = Tensor::from_slice(DType::F32, &[4], &[f32::NAN, -0.0, f32::INFINITY, 0.1]).expect("small");
    b.graph.add_constant("odd.values", odd);
    let quiet = Tensor::from_slice(DType::F32, &[], &[f32::from_bits(0xffc0_0001)]).expect("small");
    b.graph.add_constant("2 payload", quiet);
}

/// Inputs on which every op of the graph has a value.
pub fn inputs() -> Vec<Tensor> {
    let x: Vec<f32> = (0..ROWS * 4).map(|i| 0.25 + (i * 7 % 11) as f32 * 0.125).collect();
    vec![
        Tensor::from_slice(DType::F32, &[ROWS, 4], &x).expect("small"),
        Tensor::from_slice(DType::Bool, &[ROWS, 1], &[1u8, 0, 1, 1, 0]).expect("small"),
        Tensor::from_slice(DType::I64, &[ROWS], &[1i64, 0, 2, 1, 2]).expect("small"),
    ]
}

/// A weight of any path: small numbers that differ.
pub fn weights(graph: &Graph) -> impl Fn(&str) -> Option<Tensor> + '_ {
    move |path| {
        let id = graph.node_ids().find(|&id| matches!(&graph.node(id).kind, eglu_ir::NodeKind::Weight(p) if **p == *path))?;
        let shape = graph.node(id).outputs[0].concrete(&Bindings::new()).ok()?;
        let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i * 5 % 13) as f32 * 0.1 - 0.6).collect();
        Tensor::from_slice(DType::F32, &shape, &values).ok()
    }
}
