//! From a pointwise program to block instructions.

use super::{
    block::{Block, Do, Slot, Step},
    convert::{Class, wrap},
};
use eglu_ir::{
    DType, Instr, Program, Ref, Scalar, TensorType,
    ops::{OperandType, Pointwise, TypeRule, infer},
    program::InstrOp,
};
use smallvec::SmallVec;

/// A program, instruction by instruction; every step gives `None` where it meets a dtype that only the reference evaluator computes with.
pub struct Compiler {
    /// The instructions so far.
    pub block: Block,
    /// Registers of the instructions so far.
    values: Vec<Slot>,
}

impl Compiler {
    /// For a program with these parameters.
    pub fn new(params: &[DType]) -> Option<Compiler> {
        let block = Block { steps: vec![], params: vec![], constants: vec![], results: vec![], counts: [0; 3] };
        let mut compiler = Compiler { block, values: vec![] };
        for &param in params {
            let slot = compiler.slot(Class::of(param)?);
            compiler.block.params.push(slot);
        }
        Some(compiler)
    }

    fn slot(&mut self, class: Class) -> Slot {
        let count = &mut self.block.counts[class as usize];
        *count += 1;
        Slot { class, index: *count - 1 }
    }

    fn push(&mut self, what: Do, class: Class, args: impl IntoIterator<Item = Slot>) -> Slot {
        let dst = self.slot(class);
        self.block.steps.push(Step { what, dst, args: args.into_iter().collect() });
        dst
    }

    /// The next instruction.
    pub fn instr(&mut self, program: &Program, instr: &Instr) -> Option<()> {
        match instr.op {
            InstrOp::Cast => {
                let value = self.cast(program, instr.args[0], instr.dtype)?;
                self.values.push(value);
                Some(())
            }
            InstrOp::Pointwise(op) => self.pointwise(program, op, &instr.args, compute_dtype(program, op, instr)?, instr.dtype),
        }
    }

    /// The next instruction, a row of the pointwise table that computes in `compute`.
    pub fn pointwise(&mut self, program: &Program, op: Pointwise, args: &[Ref], compute: DType, result: DType) -> Option<()> {
        let class = Class::of(compute.opmath())?;
        Class::of(result)?;
        let mask = op.rule() == TypeRule::Select;
        let args: SmallVec<[Slot; 3]> = args
            .iter()
            .enumerate()
            .map(|(i, &arg)| if mask && i == 0 { self.arg(program, arg, DType::Bool) } else { self.arg(program, arg, compute) })
            .collect::<Option<_>>()?;
        let truth = matches!(op.rule(), TypeRule::Compare | TypeRule::Logical);
        let value = match class {
            _ if mask => self.push(Do::Select, class, args),
            Class::Int if op == Pointwise::BitNot && compute == DType::Bool => {
                self.push(Do::Int(Pointwise::LogicalNot, DType::Bool), class, args)
            }
            Class::Int => self.push(Do::Int(op, result), class, args),
            _ if truth => self.push(Do::Compare(op), Class::Int, args),
            _ => self.push(Do::Real(op), class, args),
        };
        self.values.push(value);
        Some(())
    }

    /// The operand in the arithmetic of `compute`.
    fn arg(&mut self, program: &Program, arg: Ref, compute: DType) -> Option<Slot> {
        let class = Class::of(compute.opmath())?;
        let slot = match arg {
            Ref::Scalar(scalar) => return Some(self.constant(scalar, compute, class)),
            Ref::Param(i) => *self.block.params.get(i as usize)?,
            Ref::Instr(i) => *self.values.get(i as usize)?,
        };
        let same = match class {
            Class::Int => program.dtype_of(arg) == compute,
            _ => slot.class == class,
        };
        Some(if same { slot } else { self.push(Do::Convert(compute), class, [slot]) })
    }

    fn constant(&mut self, scalar: Scalar, dtype: DType, class: Class) -> Slot {
        let scalar = match dtype {
            DType::Bool => Scalar::Bool(scalar.as_f64() != 0.0),
            _ if class == Class::Int => Scalar::Int(wrap(dtype, scalar.as_i64())),
            _ => scalar,
        };
        let known = self.block.constants.iter().find(|(slot, other)| slot.class == class && *other == scalar);
        if let Some(&(slot, _)) = known {
            return slot;
        }
        let slot = self.slot(class);
        self.block.constants.push((slot, scalar));
        slot
    }

    /// The operand rounded to `dtype`.
    fn cast(&mut self, program: &Program, arg: Ref, dtype: DType) -> Option<Slot> {
        let class = Class::of(dtype)?;
        let slot = self.arg(program, arg, dtype)?;
        // Conversions to integers already wrap, and f32 and f64 hold their values exactly.
        let rounds = class == Class::F32 && dtype != DType::F32;
        Some(if rounds { self.push(Do::Round(dtype), class, [slot]) } else { slot })
    }

    /// The next result.
    pub fn result(&mut self, program: &Program, value: Ref, dtype: DType) -> Option<()> {
        Class::of(dtype)?;
        let slot = self.arg(program, value, dtype)?;
        self.block.results.push((slot, dtype));
        Some(())
    }
}

/// What an instruction converts its operands to.
fn compute_dtype(program: &Program, op: Pointwise, instr: &Instr) -> Option<DType> {
    if !matches!(op.rule(), TypeRule::Compare | TypeRule::Logical) {
        return Some(instr.dtype);
    }
    let types: SmallVec<[TensorType; 3]> = instr.args.iter().map(|&arg| TensorType::fixed(program.dtype_of(arg), &[1])).collect();
    let operands: SmallVec<[OperandType<'_>; 3]> = instr
        .args
        .iter()
        .zip(&types)
        .map(|(arg, ty)| match arg {
            Ref::Scalar(scalar) => OperandType::Scalar(*scalar),
            _ => OperandType::Tensor(ty),
        })
        .collect();
    infer::compute_dtype(op, &operands).ok()
}
