//! A small graph for each op.

use eglu_ir::{
    DType, Dim, Graph, Op, OpCode, Operand, OutputKind, Program, Ref, Scalar, TensorType, Value, ops::*, program::InstrOp,
};
use std::sync::Arc;

/// What there is to emit for an op.
pub enum Sample {
    /// A graph of that op, dynamic where it can be.
    Graph(Box<Graph>),
    /// The op is a view: it has no kernel.
    View,
}

struct Builder(Graph);

impl Builder {
    fn input(&mut self, dtype: DType, shape: &[Dim]) -> Operand {
        self.0.add_input("x", TensorType::new(dtype, shape.iter().cloned())).into()
    }

    fn fixed(&mut self, dtype: DType, shape: &[i64]) -> Operand {
        self.0.add_input("x", TensorType::fixed(dtype, shape)).into()
    }

    fn call(mut self, op: impl Into<Op>, operands: &[Operand]) -> Sample {
        let node = self.0.add_call("op", op.into(), operands.iter().copied()).unwrap();
        for index in 0..self.0.node(node).outputs.len() as u32 {
            self.0.add_output(Value { node, index }, OutputKind::User);
        }
        Sample::Graph(Box::new(self.0))
    }
}

/// `silu(gate) · up`.
fn swiglu(dtype: DType) -> Arc<Program> {
    let mut program = Program::new([dtype; 2]);
    let silu = program.push(InstrOp::Pointwise(Pointwise::Silu), [Ref::Param(0)], dtype);
    let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [silu, Ref::Param(1)], dtype);
    program.results.push((product, dtype));
    Arc::new(program)
}

fn axes(dims: &[usize]) -> Axes {
    dims.iter().copied().collect()
}

/// The graph of an op; a new row of the table needs an arm.
pub fn sample(code: OpCode) -> Sample {
    use DType::{Bf16, Bool, F32, I32, I64};
    let mut b = Builder(Graph::new(code.name()));
    let (s, d) = (Dim::symbol("s0"), |extent: i64| Dim::from(extent));
    match code {
        OpCode::Reshape | OpCode::Permute | OpCode::Expand | OpCode::Slice => Sample::View,
        OpCode::Pointwise(op) => {
            let dtype = if op.rule() == TypeRule::Bits { I64 } else { F32 };
            let operand = |b: &mut Builder, i: usize| {
                let mask = op.rule() == TypeRule::Select && i == 0;
                b.input(if mask { Bool } else { dtype }, &[s.clone(), d(8)])
            };
            let operands: Vec<Operand> = (0..op.arity()).map(|i| operand(&mut b, i)).collect();
            b.call(op, &operands)
        }
        OpCode::Iota => b.call(Iota { len: s, start: 1, step: 2, dtype: I64 }, &[]),
        OpCode::Full => b.call(Full { shape: [s, d(3)].into_iter().collect(), value: Scalar::Float(0.5), dtype: Bf16 }, &[]),
        OpCode::Bitcast => {
            let x = b.input(F32, &[s, d(4)]);
            b.call(Bitcast { dtype: Bf16 }, &[x])
        }
        OpCode::Cast => {
            let x = b.input(F32, &[s]);
            b.call(Cast { dtype: Bf16 }, &[x])
        }
        OpCode::Map | OpCode::Glu => {
            let (x, y) = (b.input(Bf16, &[s.clone(), d(64)]), b.input(Bf16, &[s, d(64)]));
            match code {
                OpCode::Map => b.call(Map { program: swiglu(Bf16) }, &[x, y]),
                _ => b.call(Glu { program: swiglu(Bf16) }, &[x, y]),
            }
        }
        OpCode::Reduce => {
            let x = b.input(Bf16, &[s, d(64)]);
            b.call(Reduce { kind: ReduceKind::Sum, dims: axes(&[1]), keepdim: false, dtype: F32 }, &[x])
        }
        OpCode::MapReduce => {
            let x = b.input(Bf16, &[d(7), s]);
            let mut prologue = Program::new([Bf16]);
            prologue.results.extend([(Ref::Param(0), F32), (Ref::Param(0), Bf16)]);
            let mut epilogue = Program::new([F32, I64]);
            epilogue.results.extend([(Ref::Param(0), F32), (Ref::Param(1), I64)]);
            let kinds = vec![ReduceKind::Mean, ReduceKind::Argmax];
            let (prologue, epilogue) = (Arc::new(prologue), Arc::new(epilogue));
            b.call(MapReduce { prologue, kinds, dims: axes(&[1]), keepdim: true, epilogue }, &[x])
        }
        OpCode::ReduceChain => {
            let (x, y) = (b.input(Bf16, &[s.clone(), d(64)]), b.input(F32, &[s, d(1)]));
            let mut prologue = Program::new([Bf16, F32, I32]);
            prologue.results.push((Ref::Param(0), F32));
            let mut epilogue = Program::new([F32, Bf16, F32, I32]);
            epilogue.results.push((Ref::Param(0), F32));
            let mut end = Program::new([Bf16, F32, I32, F32]);
            let at = end.push(InstrOp::Cast, [Ref::Param(2)], F32);
            let share = end.push(InstrOp::Pointwise(Pointwise::Mul), [Ref::Param(0), Ref::Param(3)], F32);
            let sum = end.push(InstrOp::Pointwise(Pointwise::Add), [share, at], F32);
            end.results.extend([(sum, Bf16), (Ref::Param(0), Bf16)]);
            let (prologues, epilogues) = (vec![Arc::new(prologue)], vec![Arc::new(epilogue)]);
            let kinds = vec![ReduceKind::Sum];
            b.call(ReduceChain { dims: axes(&[1]), prologues, kinds, epilogues, kept: axes(&[0]), end: end.into() }, &[x, y])
        }
        OpCode::Cumsum => {
            let x = b.input(I32, &[s]);
            b.call(Cumsum { dim: 0, dtype: I64 }, &[x])
        }
        OpCode::Softmax => {
            let x = b.input(Bf16, &[s, d(64)]);
            b.call(Softmax { dim: 1, log: false, dtype: F32 }, &[x])
        }
        OpCode::RmsNorm => {
            let (x, w) = (b.input(Bf16, &[s, d(64)]), b.fixed(Bf16, &[64]));
            b.call(RmsNorm { eps: Scalar::Float(1e-5), dtype: Bf16 }, &[x, w])
        }
        OpCode::LayerNorm => {
            let (x, w) = (b.input(Bf16, &[s, d(64)]), b.fixed(Bf16, &[64]));
            b.call(LayerNorm { eps: Scalar::Float(1e-5), dtype: Bf16 }, &[x, w, w])
        }
        OpCode::MatMul => {
            let (x, w) = (b.input(Bf16, &[s, d(64)]), b.fixed(Bf16, &[64, 200]));
            b.call(MatMul {}, &[x, w])
        }
        OpCode::GroupedMm => {
            let (x, w, offsets) = (b.input(Bf16, &[s, d(64)]), b.fixed(Bf16, &[4, 64, 96]), b.fixed(I32, &[4]));
            b.call(GroupedMm {}, &[x, w, offsets])
        }
        OpCode::Contract => {
            let (x, v, w) = (b.input(F32, &[s, d(64)]), b.fixed(F32, &[64, 96]), b.fixed(F32, &[64, 96]));
            let mut program = (*swiglu(F32)).clone();
            program.results.extend([(Ref::Param(0), F32), (Ref::Param(1), F32)]);
            let (folds, groups) = (vec![ReduceKind::Sum, ReduceKind::Amax], axes(&[96, 0]));
            let several = Contract { lanes: 2, packed: 0, interleaved: false, folds, groups, program: program.into() };
            b.call(several, &[x, v, w])
        }
        OpCode::Convolution | OpCode::ConvolutionInput | OpCode::ConvolutionWeight => {
            let (stride, padding, dilation, groups) = (axes(&[2, 1]), axes(&[1, 0]), axes(&[1, 2]), 2);
            let (x, w) = (b.input(F32, &[s.clone(), d(4), d(9), d(10)]), b.fixed(F32, &[6, 2, 3, 3]));
            let grad = b.input(F32, &[s, d(6), d(5), d(6)]);
            match code {
                OpCode::Convolution => b.call(Convolution { stride, padding, dilation, groups }, &[x, w]),
                OpCode::ConvolutionInput => {
                    let extents = [d(9), d(10)].into_iter().collect();
                    b.call(ConvolutionInput { extents, stride, padding, dilation, groups }, &[grad, w])
                }
                _ => b.call(ConvolutionWeight { extents: axes(&[3, 3]), stride, padding, dilation, groups }, &[x, grad]),
            }
        }
        OpCode::Index => {
            let (x, index) = (b.fixed(Bf16, &[50, 64]), b.input(I64, &[s]));
            b.call(Index { axes: axes(&[0]) }, &[x, index])
        }
        OpCode::IndexPut => {
            let (x, values, index) = (b.fixed(F32, &[50, 3]), b.input(F32, &[s.clone(), d(3)]), b.input(I64, &[s]));
            b.call(IndexPut { axes: axes(&[0]), accumulate: true }, &[x, values, index])
        }
        OpCode::Gather => {
            let (x, index) = (b.fixed(F32, &[4, 50]), b.input(I64, &[d(4), s]));
            b.call(Gather { dim: 1 }, &[x, index])
        }
        OpCode::ScatterAdd => {
            let (x, index, src) = (b.fixed(F32, &[4, 50]), b.input(I64, &[d(4), s.clone()]), b.input(F32, &[d(4), s]));
            b.call(ScatterAdd { dim: 1 }, &[x, index, src])
        }
        OpCode::Cat => {
            let (x, y) = (b.input(F32, &[d(2), s]), b.fixed(F32, &[2, 3]));
            b.call(Cat { dim: 1 }, &[x, y])
        }
        OpCode::Sort => {
            let x = b.input(I64, &[s]);
            b.call(Sort { dim: 0, descending: true }, &[x])
        }
        OpCode::TopK => {
            let x = b.input(Bf16, &[s, d(64)]);
            b.call(TopK { k: 8, dim: 1, largest: true }, &[x])
        }
        OpCode::Histc => {
            let x = b.input(I32, &[s]);
            b.call(Histc { bins: 8, min: Scalar::Int(0), max: Scalar::Int(7) }, &[x])
        }
        OpCode::InversePermutation => {
            let x = b.input(I64, &[s]);
            b.call(InversePermutation {}, &[x])
        }
        OpCode::ExpertMatmul => {
            let (x, w, bias) = (b.input(Bf16, &[s.clone(), d(64)]), b.fixed(Bf16, &[4, 96, 64]), b.fixed(Bf16, &[4, 96]));
            let ids = b.input(I64, &[s]);
            b.call(ExpertMatmul {}, &[x, w, bias, ids])
        }
        OpCode::ExpertContract => {
            let (x, ids) = (b.input(Bf16, &[s.clone(), d(64)]), b.input(I64, &[s.clone() * d(2)]));
            let (gate, up) = (b.fixed(Bf16, &[4, 96, 64]), b.fixed(Bf16, &[4, 96, 64]));
            let (bias, scale) = (b.fixed(Bf16, &[4, 96]), b.input(Bf16, &[s * d(2), d(1)]));
            let mut program = Program::new([Bf16; 4]);
            let step = |program: &mut Program, op, a, b| program.push(InstrOp::Pointwise(op), [a, b], Bf16);
            let biased = step(&mut program, Pointwise::Add, Ref::Param(0), Ref::Param(2));
            let product = step(&mut program, Pointwise::Mul, biased, Ref::Param(1));
            let scaled = step(&mut program, Pointwise::Mul, product, Ref::Param(3));
            program.results.extend([(biased, Bf16), (Ref::Param(1), Bf16), (scaled, F32)]);
            let op = ExpertContract {
                lanes: 2,
                tables: 1,
                repeat: 2,
                packed: 2,
                interleaved: true,
                grouped: false,
                folds: vec![],
                groups: Axes::new(),
                program: program.into(),
            };
            b.call(op, &[x, ids, gate, up, bias, scale])
        }
        OpCode::ExpertOuter => {
            let (grad, rows) = (b.input(Bf16, &[s.clone() * d(2), d(96)]), b.input(Bf16, &[s.clone(), d(64)]));
            let ids = b.input(I64, &[s * d(2)]);
            b.call(ExpertOuter { experts: d(4), a_repeat: 1, b_repeat: 2, dtype: Bf16 }, &[grad, rows, ids])
        }
        OpCode::Combine => {
            let (y, weights) = (b.input(Bf16, &[s.clone() * d(2), d(64)]), b.input(F32, &[s, d(2)]));
            b.call(Combine { dtype: Bf16 }, &[y, weights])
        }
        OpCode::DenseGlu => {
            let (x, gate, up) = (b.input(Bf16, &[s, d(64)]), b.fixed(Bf16, &[96, 64]), b.fixed(Bf16, &[96, 64]));
            let bias = b.fixed(Bf16, &[96]);
            b.call(DenseGlu { program: swiglu(Bf16) }, &[x, gate, bias, up, Operand::None])
        }
        OpCode::Route => {
            let (x, bias) = (b.input(Bf16, &[s, d(8)]), b.fixed(F32, &[8]));
            let mut weigh = Program::new([F32; 2]);
            let share = weigh.push(InstrOp::Pointwise(Pointwise::Div), [Ref::Param(0), Ref::Param(1)], F32);
            weigh.results.push((share, F32));
            let (groups, masked) = (Axes::from_slice(&[4, 2, 2]), Scalar::Float(f64::NEG_INFINITY));
            let op = Route { score: RouteScore::Sigmoid, scores: F32, k: 2, groups, masked, gathered: true, weigh: weigh.into() };
            b.call(op, &[x, bias])
        }
        OpCode::Moe => {
            let (x, gate, up) = (b.input(Bf16, &[s.clone(), d(64)]), b.fixed(Bf16, &[8, 96, 64]), b.fixed(Bf16, &[8, 96, 64]));
            let (down, ids) = (b.fixed(Bf16, &[8, 64, 96]), b.input(I64, &[s.clone(), d(2)]));
            let weights = b.input(F32, &[s, d(2)]);
            let none = Operand::None;
            b.call(Moe { program: swiglu(Bf16), dtype: Bf16 }, &[x, gate, none, up, none, down, none, ids, weights])
        }
    }
}
