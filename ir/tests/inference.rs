//! For every row of the op table: what inference says is what evaluation gives, over random shapes, dtypes and attributes.
//! The generator matches on the rows, so that a new one without a case does not compile.

#[path = "gallery/draws.rs"]
mod draws;
#[path = "gallery/programs.rs"]
mod programs;

use draws::{Case, DTYPES, FLOATS, KINDS, Operand, extents};
use eglu_ir::{
    Bindings, DType, Dim, Op, OpCode, Program, Ref, Scalar, Tensor,
    eval::{EvalError, EvalOperand, eval_op},
    ops::*,
};
use programs::{chain, gating, sum};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;

impl Case {
    /// An op of this row with operands that should fit it.
    fn op(&mut self, code: OpCode) -> Op {
        let any = self.pick(&DTYPES);
        let float = self.pick(&FLOATS);
        let mut shape = self.shape(0..4);
        match code {
            OpCode::Pointwise(op) => {
                for i in 0..op.arity() {
                    let dtype = match op.rule() {
                        TypeRule::Select if i == 0 => DType::Bool,
                        TypeRule::Bits => self.pick(&[DType::U8, DType::I32, DType::I64]),
                        _ if i > 0 && self.coin() => any,
                        _ => self.pick(&DTYPES),
                    };
                    let part = self.narrower(&shape);
                    let number = Scalar::Float(self.rng.random_range(-2.0..2.0));
                    match self.below(5) {
                        0 if i > 0 && op.rule() != TypeRule::Bits => self.operands.push(Operand::Scalar(number)),
                        _ => self.add(dtype, &part),
                    }
                }
                op.into()
            }
            OpCode::Reshape => {
                self.add(any, &shape);
                let at = self.below(shape.len() + 1);
                shape.insert(at, 1);
                Reshape { shape: extents(&shape) }.into()
            }
            OpCode::Permute => {
                self.add(any, &shape);
                let mut dims: Axes = (0..shape.len()).collect();
                let by = self.below(shape.len());
                dims.rotate_left(by);
                Permute { dims }.into()
            }
            OpCode::Expand => {
                let part = self.narrower(&shape);
                self.add(any, &part);
                Expand { shape: extents(&shape) }.into()
            }
            OpCode::Slice => {
                shape.push(6);
                self.add(any, &shape);
                let (start, end) = (self.below(4) as i64, 3 + self.below(4) as i64);
                Slice { dim: shape.len() - 1, start: start.into(), end: end.into(), step: 1 + self.below(3) as i64 }.into()
            }
            OpCode::Iota => {
                let (start, step) = (self.below(5) as i64 - 2, self.below(5) as i64 - 2);
                Iota { len: Dim::from(self.below(6) as i64), start, step, dtype: any }.into()
            }
            OpCode::Full => {
                let value = self.pick(&[Scalar::Int(0), Scalar::Int(1), Scalar::Float(-0.5), Scalar::Bool(true)]);
                Full { shape: extents(&shape), value, dtype: any }.into()
            }
            OpCode::Bitcast => {
                shape.push(16);
                self.add(any, &shape);
                Bitcast { dtype: self.pick(&DTYPES) }.into()
            }
            OpCode::Cast => {
                self.add(any, &shape);
                Cast { dtype: self.pick(&DTYPES) }.into()
            }
            OpCode::Map => {
                for _ in 0..2 {
                    let part = self.narrower(&shape);
                    self.add(float, &part);
                }
                Map { program: gating(float) }.into()
            }
            OpCode::Glu => {
                self.add(float, &shape);
                self.add(float, &shape);
                Glu { program: gating(float) }.into()
            }
            OpCode::Reduce => {
                self.add(any, &shape);
                let kind = self.pick(ReduceKind::ALL);
                let dtype = match kind {
                    ReduceKind::Any | ReduceKind::All => DType::Bool,
                    ReduceKind::Argmax | ReduceKind::Argmin => DType::I64,
                    ReduceKind::Mean => float,
                    _ => any,
                };
                Reduce { kind, dims: self.some_dims(shape.len()), keepdim: self.coin(), dtype }.into()
            }
            OpCode::MapReduce => {
                self.add(float, &shape);
                self.add(float, &shape);
                let kinds: Vec<ReduceKind> = (0..=self.below(2)).map(|_| self.pick(&KINDS)).collect();
                let (dims, keepdim) = (self.some_dims(shape.len()), self.coin());
                // Every reduced value is the same sum of the operands; the epilogue adds them up, and a capture now and then.
                let mut prologue = (*sum(2, float)).clone();
                prologue.results = vec![prologue.results[0]; kinds.len()].into();
                let mut params = kinds.len();
                if self.coin() {
                    self.add(float, &[]);
                    params += 1;
                }
                MapReduce { prologue: prologue.into(), kinds, dims, keepdim, epilogue: sum(params, float) }.into()
            }
            OpCode::ReduceChain => {
                self.add(float, &shape);
                self.add(float, &shape);
                let dims = self.some_dims(shape.len());
                let passes = 1 + self.below(2);
                let kept = if self.coin() { Axes::from_slice(&[passes - 1]) } else { Axes::new() };
                let kinds = (0..passes).map(|_| self.pick(&KINDS)).collect();
                let positions = self.coin();
                ReduceChain { dims, kept, ..chain(float, kinds, positions) }.into()
            }
            OpCode::Cumsum => {
                shape.push(3);
                self.add(any, &shape);
                Cumsum { dim: self.below(shape.len()), dtype: self.pick(&DTYPES) }.into()
            }
            OpCode::Softmax => {
                shape.push(3);
                self.add(float, &shape);
                Softmax { dim: self.below(shape.len()), log: self.coin(), dtype: self.pick(&FLOATS) }.into()
            }
            OpCode::RmsNorm => {
                shape.push(3);
                self.add(float, &shape);
                self.optional(float, &[3]);
                RmsNorm { eps: self.epsilon(), dtype: self.pick(&FLOATS) }.into()
            }
            OpCode::LayerNorm => {
                shape.push(3);
                self.add(any, &shape);
                self.optional(float, &[3]);
                self.optional(float, &[3]);
                LayerNorm { eps: self.epsilon(), dtype: self.pick(&FLOATS) }.into()
            }
            OpCode::MatMul => {
                let (m, k, n) = (self.below(4), self.below(4), self.below(4));
                let dtype = self.pick(&[float, DType::I64, DType::C64]);
                let batch = self.narrower(&shape);
                self.add(dtype, &[&shape[..], &[m, k]].concat());
                self.add(dtype, &[&batch[..], &[k, n]].concat());
                MatMul {}.into()
            }
            OpCode::GroupedMm => {
                self.add(float, &[5, 4]);
                self.add(float, &[3, 4, 2]);
                let (first, second) = (self.below(4) as i32, 3 + self.below(3) as i32);
                let offs = Tensor::from_slice(DType::I32, &[3], &[first, second, 5]).expect("small");
                self.operands.push(Operand::Tensor(offs));
                GroupedMm {}.into()
            }
            OpCode::Contract => {
                let (m, k, n) = (1 + self.below(3), self.below(4), 1 + self.below(3));
                let lanes = 1 + self.below(3);
                self.add(float, &[m, k]);
                (0..lanes).for_each(|_| self.add(float, &[k, n]));
                let captures = self.below(2);
                (0..captures).for_each(|_| self.add(float, &[m, 1]));
                let mut program = (*sum(lanes + captures, float)).clone();
                let packed = self.pick(&[0, 2]);
                (0..packed).for_each(|_| program.results.insert(0, (Ref::Param(0), program.results[0].1)));
                let folds = self.pick(&[&[][..], &[ReduceKind::Sum], &[ReduceKind::Mean, ReduceKind::Amax]]).to_vec();
                let groups = folds.iter().map(|_| self.pick(&[0, 1, n])).collect();
                folds.iter().for_each(|_| program.results.push((Ref::Param(0), float)));
                Contract { lanes, packed, interleaved: self.coin(), folds, groups, program: program.into() }.into()
            }
            OpCode::Convolution | OpCode::ConvolutionInput | OpCode::ConvolutionWeight => self.convolution(code, float),
            OpCode::Index | OpCode::IndexPut => {
                let (a, b, c) = (1 + self.below(4), self.below(4), 1 + self.below(3));
                let axes = self.pick(&[&[0][..], &[2], &[0, 2], &[1, 2]]);
                let picked = self.shape(0..3);
                let x = [a, b.max(1), c];
                let of_axes: usize = axes.len();
                // Adjacent indexed dims stay in place; separated ones go to the front.
                let front = if of_axes == 2 && axes[1] - axes[0] > 1 { 0 } else { axes[0] };
                let rest: Vec<usize> = (0..3).filter(|i| !axes.contains(i)).map(|i| x[i]).collect();
                let places = [&rest[..front], &picked, &rest[front..]].concat();
                self.add(any, &x);
                if code == OpCode::IndexPut {
                    let values = self.narrower(&places);
                    self.add(any, &values);
                }
                for &axis in axes {
                    self.indices(&picked, x[axis]);
                }
                let axes = Axes::from_slice(axes);
                if code == OpCode::Index { Index { axes }.into() } else { IndexPut { axes, accumulate: self.coin() }.into() }
            }
            OpCode::Gather | OpCode::ScatterAdd => {
                shape.push(3);
                let dim = self.below(shape.len());
                shape[dim] = 3;
                let mut index = shape.clone();
                index[dim] = self.below(5);
                self.add(any, &shape);
                self.indices(&index, 3);
                if code == OpCode::Gather {
                    return Gather { dim }.into();
                }
                self.add(any, &index);
                ScatterAdd { dim }.into()
            }
            OpCode::Cat => {
                shape.push(0);
                let dim = self.below(shape.len());
                for _ in 0..=self.below(3) {
                    shape[dim] = self.below(4);
                    self.add(any, &shape);
                }
                Cat { dim }.into()
            }
            OpCode::Sort => {
                shape.push(4);
                self.add(any, &shape);
                Sort { dim: self.below(shape.len()), descending: self.coin() }.into()
            }
            OpCode::TopK => {
                shape.push(4);
                let dim = self.below(shape.len());
                shape[dim] = 4;
                self.add(any, &shape);
                TopK { k: self.below(5), dim, largest: self.coin() }.into()
            }
            OpCode::Histc => {
                self.add(float, &shape);
                let (min, max) =
                    (self.pick(&[Scalar::Int(-1), Scalar::Float(-2.5)]), self.pick(&[Scalar::Int(2), Scalar::Float(2.5)]));
                Histc { bins: 1 + self.below(5), min, max }.into()
            }
            OpCode::InversePermutation => {
                let len = self.below(5);
                let perm: Vec<i64> = (0..len as i64).rev().collect();
                self.operands.push(Operand::Tensor(Tensor::from_slice(DType::I64, &[len], &perm).expect("small")));
                InversePermutation {}.into()
            }
            OpCode::ExpertMatmul => {
                let (s, k, n) = (self.below(5), 1 + self.below(4), 1 + self.below(4));
                self.add(float, &[s, k]);
                self.add(float, &[3, n, k]);
                self.optional(float, &[3, n]);
                self.indices(&[s], 5);
                ExpertMatmul {}.into()
            }
            OpCode::ExpertContract => {
                let (t, k, n, grouped) = (self.below(4), 1 + self.below(3), 1 + self.below(4), self.coin());
                let (lanes, tables, repeat) = (1 + self.below(2), self.below(2), if grouped { 1 } else { 1 + self.below(2) });
                self.add(float, &[t, k]);
                if grouped {
                    let ends = [t / 2, t / 2, t].map(|end| end as i64);
                    self.operands.push(Operand::Tensor(Tensor::from_slice(DType::I64, &[3], &ends).expect("small")));
                } else {
                    self.indices(&[t * repeat], 5);
                }
                (0..lanes).for_each(|_| self.add(float, &[3, n, k]));
                (0..tables).for_each(|_| self.add(float, &[3, n]));
                self.add(float, &[t * repeat, 1]);
                let mut program = (*sum(1 + lanes + tables, float)).clone();
                let packed = self.pick(&[0, 2]);
                if packed == 2 {
                    program.results.insert(0, (Ref::Param(0), program.results[0].1));
                }
                let interleaved = self.coin();
                let folds = self.pick(&[&[][..], &[ReduceKind::Sum], &[ReduceKind::Amin, ReduceKind::Mean]]).to_vec();
                let groups = folds.iter().map(|_| self.pick(&[1, n.max(1)])).collect();
                folds.iter().for_each(|_| program.results.push((Ref::Param(0), float)));
                let program = program.into();
                ExpertContract { lanes, tables, repeat, packed, interleaved, grouped, folds, groups, program }.into()
            }
            OpCode::ExpertOuter => {
                let (t, n, k) = (self.below(4), self.below(4), self.below(4));
                let (a_repeat, b_repeat) = self.pick(&[(1, 1), (2, 1), (1, 2), (2, 2)]);
                self.add(float, &[2 * t / a_repeat, n]);
                self.add(float, &[2 * t / b_repeat, k]);
                self.indices(&[2 * t], 5);
                let experts = self.pick(&[1, 3, 4]);
                if self.coin() {
                    self.add(float, &[experts, n, k]);
                }
                ExpertOuter { experts: Dim::from(experts as i64), a_repeat, b_repeat, dtype: float }.into()
            }
            OpCode::Combine => {
                let (t, k, h) = (self.below(4), 1 + self.below(3), self.below(4));
                self.add(float, &[t * k, h]);
                self.add(float, &[t, k]);
                Combine { dtype: self.pick(&FLOATS) }.into()
            }
            OpCode::DenseGlu => {
                shape.push(4);
                self.add(float, &shape);
                for _ in 0..2 {
                    self.add(float, &[3, 4]);
                    self.optional(float, &[3]);
                }
                DenseGlu { program: gating(float) }.into()
            }
            OpCode::Route => {
                let tokens = self.below(4);
                self.add(float, &[tokens, 6]);
                self.optional(float, &[6]);
                let (score, gathered) = (self.pick(RouteScore::ALL), self.coin());
                let groups = if self.coin() { Axes::new() } else { Axes::from_slice(&[3, 1 + self.below(2), 2]) };
                let mut weigh = Program::new([float; 2]);
                weigh.results.push((Ref::Param(self.below(2) as u32), self.pick(&FLOATS)));
                let masked = self.pick(&[Scalar::Int(0), Scalar::Float(f64::NEG_INFINITY)]);
                let k = 1 + self.below(5);
                Route { score, scores: float, k, groups, masked, gathered, weigh: weigh.into() }.into()
            }
            OpCode::Moe => {
                let (tokens, k) = (self.below(4), 1 + self.below(2));
                self.add(float, &[tokens, 4]);
                let gated = self.coin();
                for (rows, columns) in [(6, 4), (6, 4), (4, 6)] {
                    if self.operands.len() == 3 && !gated {
                        self.operands.extend([Operand::None, Operand::None]);
                        continue;
                    }
                    self.add(float, &[3, rows, columns]);
                    self.optional(float, &[3, rows]);
                }
                self.indices(&[tokens, k], 5);
                self.add(float, &[tokens, k]);
                let program = if gated { gating(float) } else { sum(1, float) };
                Moe { program, dtype: float }.into()
            }
        }
    }

    fn convolution(&mut self, code: OpCode, dtype: DType) -> Op {
        let spatial = 1 + self.below(3);
        let mut list = |from: usize, to: usize| -> Axes { (0..spatial).map(|_| self.rng.random_range(from..=to)).collect() };
        let (stride, padding, dilation, kernel, input) = (list(1, 2), list(0, 2), list(1, 2), list(1, 3), list(5, 6));
        let (groups, channels, samples) = (1 + self.below(2), 1 + self.below(2), self.below(3));
        let with = |a: usize, b: usize, rest: &[usize]| [&[a, b], rest].concat();
        let output: Vec<usize> =
            (0..spatial).map(|i| (input[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1).collect();
        let [x, w, y] =
            [with(samples, groups * channels, &input), with(groups * 2, channels, &kernel), with(samples, groups * 2, &output)];
        match code {
            OpCode::ConvolutionInput => {
                self.add(dtype, &y);
                self.add(dtype, &w);
                ConvolutionInput { extents: extents(&input), stride, padding, dilation, groups }.into()
            }
            OpCode::ConvolutionWeight => {
                self.add(dtype, &x);
                self.add(dtype, &y);
                ConvolutionWeight { extents: kernel, stride, padding, dilation, groups }.into()
            }
            _ => {
                self.add(dtype, &x);
                self.add(dtype, &w);
                Convolution { stride, padding, dilation, groups }.into()
            }
        }
    }
}

/// True if the op has a value on the case's operands, which then has the inferred types.
fn agrees(code: OpCode, seed: u64) -> bool {
    let mut case = Case { rng: StdRng::seed_from_u64(seed), operands: Vec::new() };
    let op = case.op(code);
    let place = || format!("{} with seed {seed}: {op:?} on {:?}", code.name(), case.operands);
    let types: Vec<_> = case
        .operands
        .iter()
        .map(|operand| match operand {
            Operand::Tensor(tensor) => Some(tensor.ty()),
            _ => None,
        })
        .collect();
    let operand_types: Vec<OperandType<'_>> = case
        .operands
        .iter()
        .zip(&types)
        .map(|(operand, ty)| match (operand, ty) {
            (_, Some(ty)) => OperandType::Tensor(ty),
            (Operand::Scalar(scalar), _) => OperandType::Scalar(*scalar),
            _ => OperandType::None,
        })
        .collect();
    let operands: Vec<EvalOperand<'_>> = case
        .operands
        .iter()
        .map(|operand| match operand {
            Operand::Tensor(tensor) => EvalOperand::Tensor(tensor),
            Operand::Scalar(scalar) => EvalOperand::Scalar(*scalar),
            Operand::None => EvalOperand::None,
        })
        .collect();
    let inferred = op.infer(&operand_types);
    match (inferred, eval_op(&op, &operands, &Bindings::new())) {
        (Ok(types), Ok(results)) => {
            let got: Vec<_> = results.iter().map(Tensor::ty).collect();
            assert_eq!(got, types.to_vec(), "{}", place());
            true
        }
        // Elements may be at fault, and a dtype may lack the arithmetic; types never are once inferred.
        (Ok(_), Err(EvalError::Data(_) | EvalError::Unsupported { .. })) => false,
        (Err(_), Err(EvalError::Infer(_))) => false,
        (inferred, evaluated) => panic!("{}: {inferred:?} but {evaluated:?}", place()),
    }
}

#[test]
fn inference_agrees_with_evaluation_for_every_row() {
    const CASES: u64 = 80;
    for (i, code) in OpCode::all().enumerate() {
        let values = (0..CASES).filter(|seed| agrees(code, seed * 1009 + i as u64)).count();
        assert!(values >= 5, "{}: only {values} of {CASES} cases have a value", code.name());
    }
}

/// The generator is no sample of one: each attribute of each row takes several values, and operands take several dtypes and ranks.
#[test]
fn every_attribute_is_varied() {
    for (i, code) in OpCode::all().enumerate() {
        let mut values: Vec<BTreeSet<String>> = vec![BTreeSet::new(); code.fields().len()];
        let (mut dtypes, mut ranks) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..80 {
            let mut case = Case { rng: StdRng::seed_from_u64(seed * 1009 + i as u64), operands: Vec::new() };
            let op = case.op(code);
            for (values, (_, attr)) in values.iter_mut().zip(op.attrs()) {
                values.insert(format!("{attr:?}"));
            }
            for operand in &case.operands {
                if let Operand::Tensor(x) = operand {
                    dtypes.insert(x.dtype());
                    ranks.insert(x.shape().len());
                }
            }
        }
        for (values, name) in values.iter().zip(code.fields()) {
            assert!(values.len() > 1, "{} has one {name}: {values:?}", code.name());
        }
        let inputs = !code.operands().is_empty() && code != OpCode::InversePermutation;
        assert!(!inputs || dtypes.len() >= 3, "{} is tried on {dtypes:?}", code.name());
        let fixed = !inputs || FIXED_RANK.contains(&code);
        assert!(fixed || ranks.len() >= 3, "{} is tried on ranks {ranks:?}", code.name());
    }
}

/// Rows whose operands have each one rank.
const FIXED_RANK: [OpCode; 10] = [
    OpCode::ExpertContract,
    OpCode::ExpertOuter,
    OpCode::GroupedMm,
    OpCode::Contract,
    OpCode::Index,
    OpCode::IndexPut,
    OpCode::ExpertMatmul,
    OpCode::Combine,
    OpCode::Route,
    OpCode::Moe,
];
