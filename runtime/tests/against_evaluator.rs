//! Every native kernel of the CPU backend against the reference evaluator, on random shapes, dtypes and strided views.

use eglu_codegen::lower;
use eglu_ir::{
    Bindings, DType, Dim, Graph, Op, Operand, OutputKind, Program, Ref, Scalar, Shape, Tensor, Value,
    eval::{EvalOperand, eval_graph, eval_op},
    ops::*,
    program::InstrOp,
    weights::Weights,
};
use eglu_runtime::{
    Device, Executable,
    compare::{Tolerance, compare},
};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};
use std::sync::Arc;

/// A graph under construction with its input tensors.
struct Case {
    rng: StdRng,
    graph: Graph,
    inputs: Vec<Tensor>,
}

impl Case {
    fn new(seed: u64) -> Case {
        Case { rng: StdRng::seed_from_u64(seed), graph: Graph::new("case"), inputs: vec![] }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.random_range(0..from.len())]
    }

    fn shape(&mut self, rank: usize, most: usize) -> Vec<usize> {
        (0..rank).map(|_| self.rng.random_range(1..=most)).collect()
    }

    fn values(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let numel = shape.iter().product();
        if dtype.is_int() || dtype == DType::Bool {
            let values: Vec<i64> = (0..numel).map(|_| self.rng.random_range(0..5)).collect();
            return cast(&Tensor::from_slice(DType::I64, shape, &values).expect("fits"), dtype);
        }
        let values: Vec<f64> = (0..numel).map(|_| StandardNormal.sample(&mut self.rng)).collect();
        cast(&Tensor::from_slice(DType::F64, shape, &values).expect("fits"), dtype)
    }

    fn input(&mut self, tensor: Tensor) -> Value {
        let name = format!("x{}", self.inputs.len());
        let value = self.graph.add_input(&name, tensor.ty());
        self.inputs.push(tensor);
        value
    }

    fn call(&mut self, op: impl Into<Op>, operands: impl IntoIterator<Item = Operand>) -> eglu_ir::NodeId {
        let op = op.into();
        let name = op.name();
        self.graph.add_call(name, op, operands).unwrap_or_else(|e| panic!("{e}"))
    }

    /// An input of this shape, seen through random views of differently shaped storage.
    fn strided(&mut self, dtype: DType, shape: &[usize]) -> Value {
        match self.rng.random_range(0..4) {
            1 if !shape.is_empty() => {
                let mut dims: Axes = (0..shape.len()).collect();
                dims.rotate_left(1);
                let mut stored = vec![0; shape.len()];
                dims.iter().zip(shape).for_each(|(&d, &extent)| stored[d] = extent);
                let x = self.values(dtype, &stored);
                let x = self.input(x);
                self.call(Permute { dims }, [x.into()]).into()
            }
            2 if !shape.is_empty() => {
                let (dim, step, start) =
                    (self.rng.random_range(0..shape.len()), self.rng.random_range(1..3), self.rng.random_range(0..3));
                let mut stored = shape.to_vec();
                stored[dim] = start + shape[dim] * step + 1;
                let x = self.values(dtype, &stored);
                let x = self.input(x);
                let end = Dim::from((start + (shape[dim] - 1) * step + 1) as i64);
                self.call(Slice { dim, start: Dim::from(start as i64), end, step: step as i64 }, [x.into()]).into()
            }
            3 if !shape.is_empty() => {
                let dim = self.rng.random_range(0..shape.len());
                let mut stored = shape.to_vec();
                stored[dim] = 1;
                let x = self.values(dtype, &stored);
                let x = self.input(x);
                self.call(Expand { shape: dims(shape) }, [x.into()]).into()
            }
            _ => {
                let x = self.values(dtype, shape);
                self.input(x)
            }
        }
    }

    /// Runs the graph with every output of `node` on both sides.
    fn check(mut self, node: eglu_ir::NodeId) -> Result<(), TestCaseError> {
        for index in 0..self.graph.node(node).outputs.len() as u32 {
            self.graph.add_output(Value { node, index }, OutputKind::User);
        }
        let want = eval_graph(&self.graph, &|_| None, &self.inputs);
        let got = load(&self.graph).run(&self.inputs);
        match (want, got) {
            (Ok(want), Ok(got)) => {
                prop_assert_eq!(want.len(), got.len());
                for (i, (want, got)) in want.iter().zip(&got).enumerate() {
                    let difference = compare(&format!("output.{i}"), got, want).expect("one type");
                    // Inputs are of size 1: a sum that cancels to less may be off by as much as one that does not.
                    let close = matches!(difference.tolerance, Tolerance::Relative(bound) if difference.max_abs <= bound);
                    prop_assert!(difference.within || close, "{:?} of\n{:?}", difference, self.graph.node(node));
                }
            }
            (Err(_), Err(_)) => {}
            (want, got) => prop_assert!(false, "evaluator {:?}, backend {:?}", want, got),
        }
        Ok(())
    }
}

fn load(graph: &Graph) -> Executable {
    Executable::load(lower(graph).expect("lowers"), &Weights::default(), &Device::Cpu).expect("loads")
}

fn cast(x: &Tensor, dtype: DType) -> Tensor {
    let op = Cast { dtype }.into();
    eval_op(&op, &[EvalOperand::Tensor(x)], &Bindings::new()).expect("casts").swap_remove(0)
}

fn dims(shape: &[usize]) -> Shape {
    shape.iter().map(|&d| Dim::from(d as i64)).collect()
}

const FLOATS: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::F64];
const ALL: [DType; 8] = [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool];

/// A gating program: silu(gate) · up, or the clamped form of gpt-oss.
fn gating(case: &mut Case, dtype: DType) -> Arc<Program> {
    let mut program = Program::new([dtype; 2]);
    let (gate, up) = (Ref::Param(0), Ref::Param(1));
    let op = InstrOp::Pointwise;
    let result = if case.rng.random() {
        let silu = program.push(op(Pointwise::Silu), [gate], dtype);
        program.push(op(Pointwise::Mul), [silu, up], dtype)
    } else {
        let clamped = program.push(op(Pointwise::Minimum), [gate, Ref::Scalar(Scalar::Float(1.5))], dtype);
        let scaled = program.push(op(Pointwise::Mul), [clamped, Ref::Scalar(Scalar::Float(1.702))], dtype);
        let sigmoid = program.push(op(Pointwise::Sigmoid), [scaled], dtype);
        let glu = program.push(op(Pointwise::Mul), [clamped, sigmoid], dtype);
        let plus = program.push(op(Pointwise::Add), [up, Ref::Scalar(Scalar::Int(1))], dtype);
        program.push(op(Pointwise::Mul), [glu, plus], dtype)
    };
    program.results.push((result, dtype));
    Arc::new(program)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pointwise(seed: u64) {
        let mut case = Case::new(seed);
        let op = case.pick(Pointwise::ALL);
        let rank = case.rng.random_range(0..4);
        let shape = case.shape(rank, 9);
        let operands: Vec<Operand> = (0..op.arity())
            .map(|i| {
                let dtype = if op == Pointwise::Where && i == 0 { DType::Bool } else { case.pick(&ALL) };
                match case.rng.random_range(0..5) {
                    0 if i > 0 => Scalar::Float(case.rng.random_range(-2.0..2.0)).into(),
                    1 if i > 0 => Scalar::Int(case.rng.random_range(-2..3)).into(),
                    _ => case.strided(dtype, &shape).into(),
                }
            })
            .collect();
        if case.graph.infer(&op.into(), &operands).is_ok() {
            let node = case.call(op, operands);
            case.check(node)?;
        }
    }

    #[test]
    fn casts(seed: u64) {
        let mut case = Case::new(seed);
        let shape = case.shape(3, 12);
        let (from, to) = (case.pick(&ALL), case.pick(&ALL));
        let x = case.strided(from, &shape);
        let node = case.call(Cast { dtype: to }, [x.into()]);
        case.check(node)?;
    }

    #[test]
    fn reductions(seed: u64) {
        let mut case = Case::new(seed);
        let rank = case.rng.random_range(1..4);
        let mut shape = case.shape(rank, 7);
        let long = case.rng.random_range(0..rank);
        use ReduceKind::*;
        let kind = case.pick(&[Sum, Prod, Mean, Amax, Amin, Any, All]);
        // Long products leave every dtype's range.
        shape[long] = if kind == Prod { 2 } else { case.pick(&[3, 64, 700]) };
        let from = case.pick(&[DType::F32, DType::Bf16, DType::F64, DType::I64, DType::Bool]);
        let dtype = match kind {
            Any | All => DType::Bool,
            Sum | Prod if !from.is_float() => DType::I64,
            Mean if !from.is_float() => DType::F32,
            Sum | Mean => case.pick(&[from, DType::F32]),
            _ => from,
        };
        let dims: Axes = (0..rank).filter(|_| case.rng.random()).collect();
        let keepdim = case.rng.random();
        let x = case.strided(from, &shape);
        let node = case.call(Reduce { kind, dims, keepdim, dtype }, [x.into()]);
        case.check(node)?;
    }

    /// Positions count the elements of the view, not those of the memory it lies in.
    #[test]
    fn positions_in_views(seed: u64) {
        let mut case = Case::new(seed);
        let rank = case.rng.random_range(1..4);
        let shape = case.shape(rank, 7);
        let (kind, from) = (case.pick(&[ReduceKind::Argmax, ReduceKind::Argmin]), case.pick(&[DType::F32, DType::Bf16, DType::I64]));
        let dims: Axes = if case.rng.random() { (0..rank).collect() } else { Axes::from_iter([case.rng.random_range(0..rank)]) };
        let keepdim = case.rng.random();
        let x = case.strided(from, &shape);
        let node = case.call(Reduce { kind, dims, keepdim, dtype: DType::I64 }, [x.into()]);
        case.check(node)?;
    }

    #[test]
    fn reductions_with_programs(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&FLOATS);
        let rows = case.rng.random_range(1..6);
        let columns = case.pick(&[5, 65, 520]);
        let dim = case.rng.random_range(0..2);
        let opmath = dtype.opmath();
        let op = InstrOp::Pointwise;
        let mut prologue = Program::new([dtype; 2]);
        let product = prologue.push(op(Pointwise::Mul), [Ref::Param(0), Ref::Param(1)], opmath);
        prologue.results.extend([(product, opmath), (Ref::Param(0), opmath)]);
        let mut epilogue = Program::new([opmath, opmath, dtype]);
        let root = epilogue.push(op(Pointwise::Abs), [Ref::Param(0)], opmath);
        let shifted = epilogue.push(op(Pointwise::Add), [root, Ref::Param(2)], opmath);
        epilogue.results.extend([(shifted, dtype), (Ref::Param(1), dtype)]);
        let kinds = vec![ReduceKind::Sum, ReduceKind::Amax];
        let (a, b) = (case.strided(dtype, &[rows, columns]), case.strided(dtype, &[rows, columns]));
        let mut kept = [rows, columns];
        kept[dim] = 1;
        let capture = case.strided(dtype, &kept);
        let keepdim = case.rng.random();
        let op = MapReduce { prologue: Arc::new(prologue), kinds, dims: Axes::from_slice(&[dim]), keepdim, epilogue: Arc::new(epilogue) };
        let node = case.call(op, [a.into(), b.into(), capture.into()]);
        case.check(node)?;
    }

    #[test]
    fn row_norms(seed: u64) {
        let mut case = Case::new(seed);
        let (from, len) = (case.pick(&FLOATS), case.pick(&[1, 8, 33, 300]));
        let shape = [case.rng.random_range(1..5), len];
        let to = if case.rng.random() { from } else { DType::F32 };
        let x = case.strided(from, &shape);
        let node = if case.rng.random() {
            let (dim, log) = (case.rng.random_range(0..2), case.rng.random());
            case.call(Softmax { dim, log, dtype: to }, [x.into()])
        } else {
            let parameter = |case: &mut Case| if case.rng.random() { case.strided(from, &[len]).into() } else { Operand::None };
            let (weight, bias) = (parameter(&mut case), parameter(&mut case));
            match case.rng.random() {
                true => case.call(RmsNorm { eps: Scalar::Float(1e-6), dtype: to }, [x.into(), weight]),
                false => case.call(LayerNorm { eps: Scalar::Float(1e-6), dtype: to }, [x.into(), weight, bias]),
            }
        };
        case.check(node)?;
    }

    #[test]
    fn products(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&FLOATS);
        let (m, n, k) = (case.pick(&[1, 5, 70, 300]), case.pick(&[1, 6, 130]), case.pick(&[1, 7, 40]));
        let rank = case.rng.random_range(0..3);
        let batch = case.shape(rank, 3);
        let full = |tail: [usize; 2], batch: &[usize]| batch.iter().copied().chain(tail).collect::<Vec<_>>();
        let lone = case.rng.random();
        let b_batch: &[usize] = if lone { &[] } else { &batch };
        let a = case.strided(dtype, &full([m, k], &batch));
        let b = case.strided(dtype, &full([k, n], b_batch));
        let node = if case.rng.random() {
            case.call(MatMul {}, [a.into(), b.into()])
        } else {
            let c = case.strided(dtype, &full([k, n], b_batch));
            let bias = case.strided(dtype, &[n]);
            let mut program = Program::new([dtype.opmath(), dtype.opmath(), dtype]);
            let sum = program.push(InstrOp::Pointwise(Pointwise::Add), [Ref::Param(0), Ref::Param(2)], dtype.opmath());
            let gated = program.push(InstrOp::Pointwise(Pointwise::Mul), [sum, Ref::Param(1)], dtype.opmath());
            program.results.extend([(gated, dtype), (sum, dtype)]);
            let packed = case.pick(&[0, 2]);
            if packed == 0 {
                program.results.push((Ref::Param(1), DType::F32));
            }
            let kinds = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Amax, ReduceKind::Amin];
            let folds: Vec<ReduceKind> = (0..case.rng.random_range(0..3)).map(|_| case.pick(&kinds)).collect();
            let groups = folds.iter().map(|_| if n % 2 == 0 { case.pick(&[0, 1, 2, n]) } else { case.pick(&[0, 1, n]) }).collect();
            folds.iter().for_each(|_| program.results.push((gated, dtype)));
            let (interleaved, program) = (case.rng.random(), Arc::new(program));
            let op = Contract { lanes: 2, packed, interleaved, folds, groups, program };
            case.call(op, [a.into(), b.into(), c.into(), bias.into()])
        };
        case.check(node)?;
    }

    #[test]
    fn dense_glus(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&FLOATS);
        let (n, k) = (case.pick(&[1, 9, 140]), case.pick(&[3, 40]));
        let rank = case.rng.random_range(0..3);
        let mut shape = case.shape(rank, 6);
        shape.push(k);
        let program = gating(&mut case, dtype);
        let bias = case.rng.random::<bool>().then(|| case.strided(dtype, &[n]));
        let bias = bias.map_or(Operand::None, Operand::from);
        let (x, gate, up) = (case.strided(dtype, &shape), case.strided(dtype, &[n, k]), case.strided(dtype, &[n, k]));
        let node = case.call(DenseGlu { program }, [x.into(), gate.into(), bias, up.into(), Operand::None]);
        case.check(node)?;
    }

    #[test]
    fn experts(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&FLOATS);
        let (rows, e, n, k) = (case.pick(&[1, 40]), case.rng.random_range(1..5), case.pick(&[1, 70]), case.pick(&[4, 33]));
        let x = case.strided(dtype, &[rows, k]);
        let node = if case.rng.random() {
            // One expert more than there are: rows that are dropped.
            let ids: Vec<i64> = (0..rows).map(|_| case.rng.random_range(0..=e as i64)).collect();
            let ids = case.input(Tensor::from_slice(DType::I64, &[rows], &ids).expect("fits"));
            let w = case.strided(dtype, &[e, n, k]);
            let bias = case.rng.random::<bool>().then(|| case.strided(dtype, &[e, n]));
            case.call(ExpertMatmul {}, [x.into(), w.into(), bias.map_or(Operand::None, Operand::from), ids.into()])
        } else {
            let mut offs: Vec<i32> = (0..e).map(|_| case.rng.random_range(0..=rows as i32)).collect();
            offs.sort_unstable();
            offs[e - 1] = rows as i32;
            let offs = case.input(Tensor::from_slice(DType::I32, &[e], &offs).expect("fits"));
            let w = case.strided(dtype, &[e, k, n]);
            case.call(GroupedMm {}, [x.into(), w.into(), offs.into()])
        };
        case.check(node)?;
    }

    #[test]
    fn expert_contracts(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&FLOATS);
        let (lanes, tables, repeat) = (case.rng.random_range(1..3), case.rng.random_range(0..2), case.pick(&[1, 2]));
        let (rows, experts) = (case.pick(&[2, 40]), case.rng.random_range(1..5));
        let (n, k) = (case.pick(&[1, 70]), case.pick(&[4, 33]));
        let past = i64::from(case.rng.random_range(0..4) == 0);
        let ids: Vec<i64> = (0..rows).map(|_| case.rng.random_range(0..experts as i64 + past)).collect();
        let ids = case.input(Tensor::from_slice(DType::I64, &[rows], &ids).expect("fits"));
        let mut operands: Vec<Operand> = vec![case.strided(dtype, &[rows / repeat, k]).into(), ids.into()];
        operands.extend((0..lanes).map(|_| Operand::from(case.strided(dtype, &[experts, n, k]))));
        operands.extend((0..tables).map(|_| Operand::from(case.strided(dtype, &[experts, n]))));
        operands.extend([Operand::from(case.strided(dtype, &[rows, n])), case.strided(dtype, &[rows, 1]).into()]);
        let mut program = Program::new(vec![dtype; operands.len() - 2]);
        let products = (1..operands.len() - 2).fold(Ref::Param(0), |sum, i| {
            let op = if i + 1 == operands.len() - 2 { Pointwise::Mul } else { Pointwise::Add };
            program.push(InstrOp::Pointwise(op), [sum, Ref::Param(i as u32)], dtype)
        });
        let active = program.push(InstrOp::Pointwise(Pointwise::Silu), [products], dtype);
        program.results.extend([(products, dtype), (active, dtype), (Ref::Param(0), dtype)]);
        let (packed, interleaved, grouped) = (case.pick(&[0, 2, 3]), case.rng.random(), false);
        let kinds = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Amax, ReduceKind::Amin];
        let folds: Vec<ReduceKind> = (0..case.rng.random_range(0..3)).map(|_| case.pick(&kinds)).collect();
        let groups = folds.iter().map(|_| case.pick(&[1, n])).collect();
        folds.iter().for_each(|_| program.results.push((active, dtype)));
        let program = Arc::new(program);
        let op = ExpertContract { lanes, tables, repeat, packed, interleaved, grouped, folds, groups, program };
        let node = case.call(op, operands);
        case.check(node)?;
    }

    #[test]
    fn expert_outers(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&FLOATS);
        let stored = if dtype == DType::F64 { dtype } else { case.pick(&[dtype, DType::F32]) };
        let (a_repeat, b_repeat) = case.pick(&[(1, 1), (1, 2), (2, 1), (2, 2)]);
        let (rows, experts) = (case.pick(&[2, 40, 300]), case.rng.random_range(1..5));
        let (n, k) = (case.pick(&[1, 70, 300]), case.pick(&[4, 33]));
        // One expert more than there are: rows that are dropped.
        let ids: Vec<i64> = (0..rows).map(|_| case.rng.random_range(0..=experts)).collect();
        let ids = case.input(Tensor::from_slice(DType::I64, &[rows], &ids).expect("fits"));
        let (a, b) = (case.strided(dtype, &[rows / a_repeat, n]), case.strided(dtype, &[rows / b_repeat, k]));
        let op = ExpertOuter { experts: experts.into(), a_repeat, b_repeat, dtype: stored };
        let mut operands = vec![a.into(), b.into(), ids.into()];
        if case.rng.random() {
            operands.push(case.strided(stored, &[experts as usize, n, k]).into());
        }
        let node = case.call(op, operands);
        case.check(node)?;
    }

    #[test]
    fn whole_blocks(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&FLOATS);
        let (t, e, k) = (case.pick(&[1, 3, 50]), case.rng.random_range(2..6), case.rng.random_range(1..3));
        let (h, i) = (case.pick(&[8, 40]), case.pick(&[5, 70]));
        let program = gating(&mut case, dtype);
        let ids: Vec<i64> = (0..t * k).map(|_| case.rng.random_range(0..=e as i64)).collect();
        let x = case.strided(dtype, &[t, h]);
        let (gate, up, down) = (case.strided(dtype, &[e, i, h]), case.strided(dtype, &[e, i, h]), case.strided(dtype, &[e, h, i]));
        let biased = case.rng.random::<bool>();
        let bias = |case: &mut Case, n| if biased { case.strided(dtype, &[e, n]).into() } else { Operand::None };
        let (gate_bias, up_bias, down_bias) = (bias(&mut case, i), bias(&mut case, i), bias(&mut case, h));
        let ids = case.input(Tensor::from_slice(DType::I64, &[t, k], &ids).expect("fits"));
        let wide = if dtype == DType::F64 { DType::F64 } else { case.pick(&[dtype, DType::F32]) };
        let weights = case.strided(wide, &[t, k]);
        let operands = [x.into(), gate.into(), gate_bias, up.into(), up_bias, down.into(), down_bias, ids.into(), weights.into()];
        let node = case.call(Moe { program, dtype }, operands);
        case.check(node)?;
    }

    #[test]
    fn indices(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&ALL);
        let rank = case.rng.random_range(1..4);
        let shape = case.shape(rank, 6);
        let axis = case.rng.random_range(0..rank);
        let count = case.rng.random_range(1..9);
        // Out of range now and then: an error on both sides.
        let extent = shape[axis] as i64;
        let picks: Vec<i64> = (0..count).map(|_| case.rng.random_range(-extent..extent + i64::from(seed % 7 == 0))).collect();
        let x = case.strided(dtype, &shape);
        let picks = case.input(Tensor::from_slice(DType::I64, &[count], &picks).expect("fits"));
        let node = case.call(Index { axes: Axes::from_slice(&[axis]) }, [x.into(), picks.into()]);
        case.check(node)?;
    }

    #[test]
    fn joins(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&[DType::F32, DType::Bf16, DType::Bool, DType::C128]);
        let rank = case.rng.random_range(1..4);
        let shape = case.shape(rank, 5);
        let dim = case.rng.random_range(0..rank);
        let parts: Vec<Operand> = (0..case.rng.random_range(1..4))
            .map(|_| {
                let mut part = shape.clone();
                part[dim] = case.rng.random_range(1..4);
                case.strided(dtype, &part).into()
            })
            .collect();
        let node = case.call(Cat { dim }, parts);
        case.check(node)?;
    }

    #[test]
    fn copies(seed: u64) {
        let mut case = Case::new(seed);
        let dtype = case.pick(&[DType::F32, DType::Bf16, DType::U8, DType::I64, DType::C128, DType::F8E4M3Fn]);
        let shape = case.shape(3, 8);
        let x = case.strided(dtype, &shape);
        let flat = Shape::from_iter([Dim::from(shape.iter().product::<usize>() as i64)]);
        let node = case.call(Reshape { shape: flat }, [x.into()]);
        case.check(node)?;
    }
}

/// No tokens: there are neither rows nor ids, but what a row would hold has a width.
#[test]
fn nothing_is_picked_from_nothing() {
    let mut case = Case::new(0);
    let x = case.input(Tensor::from_slice::<f32>(DType::F32, &[0, 64], &[]).expect("fits"));
    let picks = case.input(Tensor::from_slice::<i64>(DType::I64, &[0], &[]).expect("fits"));
    let node = case.call(Index { axes: Axes::from_slice(&[0]) }, [x.into(), picks.into()]);
    case.check(node).expect("both sides agree");
}
