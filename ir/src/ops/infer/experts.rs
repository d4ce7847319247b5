//! Products by expert beyond the plain one.

use super::{broadcast, integer, matmul::expert_weight, pointwise::check_params, rank, same};
use crate::{
    DType, Dim, Program, Ref, Shape, TensorType,
    ops::{
        Args, Cost, ExpertContract, ExpertOuter, InferError, OpDef, OperandType, Pointwise, Types,
        cost::{extent_from_end, instructions, multiply_adds},
        one,
    },
    program::InstrOp,
};

/// Checks that `rows`, each `repeat` times, are as many as there are ids.
fn repeated(what: &str, rows: &TensorType, repeat: usize, ids: &TensorType) -> Result<(), InferError> {
    rank(what, rows, 2)?;
    let all = rows.shape[0].clone() * Dim::from(repeat as i64);
    same(&format!("the number of ids and of rows of {what}, each {repeat} times"), &all, &ids.shape[0])
}

impl OpDef for ExpertOuter {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (a, b, ids) = (args.tensor(0, "a")?, args.tensor(1, "b")?, args.tensor(2, "ids")?);
        rank("ids", ids, 1)?;
        integer("ids", ids)?;
        repeated("a", a, self.a_repeat, ids)?;
        repeated("b", b, self.b_repeat, ids)?;
        if a.dtype != b.dtype {
            return Err(InferError(format!("{a} and {b} must have one dtype: cast first")));
        }
        if self.dtype.opmath() != a.dtype.opmath() {
            return Err(InferError(format!("sums of {} cannot be stored as {}: cast", a.dtype, self.dtype)));
        }
        let sums = one(self.dtype, [self.experts.clone(), a.shape[1].clone(), b.shape[1].clone()]);
        match args.optional(3) {
            Some(onto) if *onto != sums[0] || !onto.dtype.is_float() => {
                Err(InferError(format!("{} cannot be added to {onto}", sums[0])))
            }
            _ => Ok(sums),
        }
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        // Each row adds one matrix of one expert.
        let each = outputs.iter().map(|ty| TensorType::new(ty.dtype, ty.shape[1..].iter().cloned())).collect::<Vec<_>>();
        let rows = extent_from_end(operands, 2, 0);
        Cost::of(operands, outputs, multiply_adds(&each, rows), true)
    }
}

impl ExpertOuter {
    /// What makes results of sums of operands of `dtype`, and of what they are added to, if so.
    pub fn program(&self, dtype: DType, onto: bool) -> Program {
        if !onto {
            return Program::identity(dtype, self.dtype);
        }
        let mut program = Program::new([dtype, self.dtype]);
        let rounded = program.push(InstrOp::Cast, [Ref::Param(0)], self.dtype);
        let sum = program.push(InstrOp::Pointwise(Pointwise::Add), [Ref::Param(1), rounded], self.dtype);
        program.results.push((sum, self.dtype));
        program
    }
}

impl OpDef for ExpertContract {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, ids) = (args.tensor(0, "x")?, args.tensor(1, "ids")?);
        rank("ids", ids, 1)?;
        integer("ids", ids)?;
        if !self.grouped {
            repeated("x", x, self.repeat, ids)?;
        } else if self.repeat != 1 {
            return Err(InferError(format!("rows that lie by expert cannot repeat {} times", self.repeat)));
        }
        let rest = 2 + self.lanes;
        if self.lanes == 0 || operands.len() < rest + self.tables {
            return Err(InferError(format!(
                "{} operands are not {} lanes and {} tables",
                operands.len(),
                self.lanes,
                self.tables
            )));
        }
        let first = args.tensor(2, "w")?;
        for i in 2..rest {
            let w = args.tensor(i, "w")?;
            expert_weight("w", w, None, &x.shape[1])?;
            if w.shape != first.shape || w.dtype != x.dtype {
                return Err(InferError(format!("x {x} and weights {w}, {first} must fit: one dtype, one shape")));
            }
        }
        if self.grouped {
            same("the number of ends and of matrices", &ids.shape[0], &first.shape[0])?;
        }
        let rows = if self.grouped { &x.shape[0] } else { &ids.shape[0] };
        let shape = [rows.clone(), first.shape[1].clone()];
        let captures: Vec<&TensorType> = (rest..operands.len()).map(|i| args.tensor(i, "capture")).collect::<Result<_, _>>()?;
        let lanes = std::iter::repeat_n(x.dtype, self.lanes);
        check_params(&self.program, lanes.chain(captures.iter().map(|ty| ty.dtype)).collect::<Vec<DType>>().into_iter())?;
        for (i, capture) in captures.iter().enumerate() {
            let fits = if i < self.tables {
                capture.shape[..] == first.shape[..2]
            } else {
                broadcast(&shape, &capture.shape)?[..] == shape
            };
            if !fits {
                return Err(InferError(format!("the capture {capture} does not belong to rows of {shape:?}")));
            }
        }
        self.outputs(&Shape::from_iter(shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let rows = if self.grouped { extent_from_end(operands, 0, 1) } else { extent_from_end(operands, 1, 0) };
        let columns = extent_from_end(operands, 2, 1);
        let each = TensorType::new(DType::F32, [rows.clone(), columns]);
        let products = multiply_adds(std::slice::from_ref(&each), extent_from_end(operands, 0, 0)) * Dim::from(self.lanes as i64);
        let weights: Vec<usize> = (2..2 + self.lanes).collect();
        let flops = products + each.numel() * instructions(&self.program);
        Cost::of(operands, outputs, flops, true).with_experts(operands, &weights, &rows)
    }
}
