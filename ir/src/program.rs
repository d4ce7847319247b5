//! Straight-line pointwise programs: prologues and epilogues of kernels, and fused loops.
//!
//! A program is applied to one element of each parameter at a time. Values keep the precision of their dtype's
//! [`opmath`](DType::opmath) between instructions; only a [`Cast`](crate::ops::Cast) and the final store round.

use crate::{DType, Scalar, ops::Pointwise};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Pointwise instructions in execution order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Program {
    /// Dtype of each parameter.
    pub params: SmallVec<[DType; 4]>,
    /// Instructions; each may use parameters, scalars and earlier results.
    pub instrs: Vec<Instr>,
    /// What the program returns, with the dtype each result is stored in.
    pub results: SmallVec<[(Ref, DType); 1]>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instr {
    /// What it computes.
    pub op: InstrOp,
    /// Operands, as many as the op's arity.
    pub args: SmallVec<[Ref; 3]>,
    /// Result dtype; computation happens in its opmath (for comparisons: in the promoted dtype of the operands).
    pub dtype: DType,
}

/// What an instruction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstrOp {
    /// A row of the pointwise table.
    Pointwise(Pointwise),
    /// Rounding (or truncation, or saturation) to the instruction's dtype.
    Cast,
}

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ref {
    /// Parameter by position.
    Param(u32),
    /// Result of an earlier instruction.
    Instr(u32),
    /// A number.
    Scalar(Scalar),
}

impl Program {
    /// A program without instructions or results.
    pub fn new(params: impl IntoIterator<Item = DType>) -> Program {
        Program { params: params.into_iter().collect(), instrs: Vec::new(), results: SmallVec::new() }
    }

    /// The program that stores its single parameter.
    pub fn identity(param: DType, stored: DType) -> Program {
        let mut program = Program::new([param]);
        program.results.push((Ref::Param(0), stored));
        program
    }

    /// Appends an instruction and returns its result.
    pub fn push(&mut self, op: InstrOp, args: impl IntoIterator<Item = Ref>, dtype: DType) -> Ref {
        self.instrs.push(Instr { op, args: args.into_iter().collect(), dtype });
        Ref::Instr(self.instrs.len() as u32 - 1)
    }

    /// Checks that every reference is to a parameter or an earlier instruction, and that every op has its operands.
    pub fn check(&self) -> Result<(), String> {
        let valid = |operand: Ref, done: usize| match operand {
            Ref::Param(i) => (i as usize) < self.params.len(),
            Ref::Instr(i) => (i as usize) < done,
            Ref::Scalar(_) => true,
        };
        for (i, instr) in self.instrs.iter().enumerate() {
            let (name, arity) = match instr.op {
                InstrOp::Pointwise(op) => (op.name(), op.arity()),
                InstrOp::Cast => ("cast", 1),
            };
            if instr.args.len() != arity {
                return Err(format!("instruction {i} ({name}) takes {arity} operands, {} given", instr.args.len()));
            }
            if let Some(bad) = instr.args.iter().find(|&&arg| !valid(arg, i)) {
                return Err(format!("instruction {i} ({name}) reads {bad:?}, which does not exist there"));
            }
        }
        match self.results.iter().find(|&&(result, _)| !valid(result, self.instrs.len())) {
            Some((bad, _)) => Err(format!("the result {bad:?} does not exist")),
            None => Ok(()),
        }
    }

    /// For each parameter, whether an instruction or a result reads it.
    pub fn used(&self) -> Vec<bool> {
        let mut used = vec![false; self.params.len()];
        let args = self.instrs.iter().flat_map(|instr| &instr.args);
        for operand in args.chain(self.results.iter().map(|(result, _)| result)) {
            if let Ref::Param(i) = operand {
                used[*i as usize] = true;
            }
        }
        used
    }

    /// The dtype of an operand; a scalar has that of its kind (f64, i64 or bool).
    pub fn dtype_of(&self, operand: Ref) -> DType {
        match operand {
            Ref::Param(i) => self.params[i as usize],
            Ref::Instr(i) => self.instrs[i as usize].dtype,
            Ref::Scalar(Scalar::Bool(_)) => DType::Bool,
            Ref::Scalar(Scalar::Int(_)) => DType::I64,
            Ref::Scalar(Scalar::Float(_)) => DType::F64,
        }
    }
}
