//! Pointwise programs over blocks of elements: each instruction runs over a whole block of registers, so that its loop vectorises.

use super::{
    compile::Compiler,
    convert::{Class, Lane, round, wrap},
    simd, vector,
};
use eglu_ir::{DType, Program, Ref, Scalar, ops::Pointwise, program::InstrOp};
use smallvec::SmallVec;

/// Elements of one block: registers of eight live values fit in a first-level cache.
pub const BLOCK: usize = 512;

/// A register: its class, and its place among that class's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What it holds.
    pub class: Class,
    /// Its place.
    pub index: usize,
}

/// What one instruction does to a block.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// A row of the table in f32 or f64.
    Real(Pointwise),
    /// A row of the table whose result is a truth value, on f32 or f64.
    Compare(Pointwise),
    /// A row of the table in integers, then wrapped to the dtype.
    Int(Pointwise, DType),
    /// Mask, value, other value.
    Select,
    /// The same number in another class, as the dtype holds it.
    Convert(DType),
    /// Rounded or wrapped to the dtype, within the class.
    Round(DType),
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it does.
    pub what: Do,
    /// Where its result goes.
    pub dst: Slot,
    /// What it reads.
    pub args: SmallVec<[Slot; 3]>,
}

/// A program made ready to run over blocks.
#[derive(Clone, Debug)]
pub struct Block {
    pub(super) steps: Vec<Step>,
    pub(super) params: Vec<Slot>,
    pub(super) constants: Vec<(Slot, Scalar)>,
    pub(super) results: Vec<(Slot, DType)>,
    /// Registers of each class.
    pub(super) counts: [usize; 3],
}

/// The registers of one thread.
#[derive(Debug, Default)]
pub struct Registers {
    f32: Vec<Vec<f32>>,
    f64: Vec<Vec<f64>>,
    int: Vec<Vec<i64>>,
}

/// A lane type's registers.
pub trait File: Lane {
    /// The registers of this lane.
    fn file(registers: &mut Registers) -> &mut Vec<Vec<Self>>;
    /// The registers of this lane, to read.
    fn read(registers: &Registers) -> &[Vec<Self>];
}

macro_rules! files {
    ($($ty:ty => $field:ident;)+) => {
        $(impl File for $ty {
            fn file(registers: &mut Registers) -> &mut Vec<Vec<Self>> {
                &mut registers.$field
            }

            fn read(registers: &Registers) -> &[Vec<Self>] {
                &registers.$field
            }
        })+
    };
}

files! { f32 => f32; f64 => f64; i64 => int; }

/// The contents of a register, to write.
pub enum Fill<'a> {
    /// Of f32 and halves.
    F32(&'a mut [f32]),
    /// Of f64.
    F64(&'a mut [f64]),
    /// Of integers and bool.
    Int(&'a mut [i64]),
}

impl Block {
    /// Makes a program ready; `None` if it needs a dtype that only the reference evaluator computes with.
    pub fn new(program: &Program) -> Option<Block> {
        let mut compiler = Compiler::new(&program.params)?;
        for instr in &program.instrs {
            compiler.instr(program, instr)?;
        }
        for &(result, dtype) in &program.results {
            compiler.result(program, result, dtype)?;
        }
        Some(compiler.block)
    }

    /// A program of one op that computes in `compute`: parameters and numbers in the order of its operands.
    pub fn of_op(op: Pointwise, params: &[DType], args: &[Ref], compute: DType, result: DType) -> Option<Block> {
        let mut program = Program::new(params.iter().copied());
        let mut compiler = Compiler::new(params)?;
        compiler.pointwise(&program, op, args, compute, result)?;
        let last = program.push(InstrOp::Pointwise(op), args.iter().copied(), result);
        compiler.result(&program, last, result)?;
        Some(compiler.block)
    }

    /// Dtypes that results are stored in.
    pub fn results(&self) -> impl ExactSizeIterator<Item = DType> + '_ {
        self.results.iter().map(|&(_, dtype)| dtype)
    }

    /// Class of a parameter's register.
    pub fn param_class(&self, param: usize) -> Class {
        self.params[param].class
    }

    /// Registers for this program.
    pub fn registers(&self) -> Registers {
        let [f32s, f64s, ints] = self.counts;
        let mut registers =
            Registers { f32: vec![vec![0.0; BLOCK]; f32s], f64: vec![vec![0.0; BLOCK]; f64s], int: vec![vec![0; BLOCK]; ints] };
        for &(slot, scalar) in &self.constants {
            match slot.class {
                Class::F32 => registers.f32[slot.index].fill(scalar.as_f64() as f32),
                Class::F64 => registers.f64[slot.index].fill(scalar.as_f64()),
                Class::Int => registers.int[slot.index].fill(scalar.as_i64()),
            }
        }
        registers
    }

    /// The register of a parameter, to be filled with `len` elements.
    pub fn param<'a>(&self, registers: &'a mut Registers, param: usize, len: usize) -> Fill<'a> {
        let slot = self.params[param];
        match slot.class {
            Class::F32 => Fill::F32(&mut registers.f32[slot.index][..len]),
            Class::F64 => Fill::F64(&mut registers.f64[slot.index][..len]),
            Class::Int => Fill::Int(&mut registers.int[slot.index][..len]),
        }
    }

    /// Runs the program over `len ≤ BLOCK` elements; false where an integer op has no value (division by zero).
    #[must_use]
    pub fn run(&self, registers: &mut Registers, len: usize) -> bool {
        self.steps.iter().all(|step| step.run(registers, len))
    }

    /// The first `len` elements of a result, in the class of its dtype.
    pub fn result<'a, T: File>(&self, registers: &'a Registers, result: usize, len: usize) -> &'a [T] {
        &T::read(registers)[self.results[result].0.index][..len]
    }

    /// Writes the first elements of a result densely into `bytes`, as many as fit.
    pub fn store(&self, registers: &Registers, result: usize, bytes: &mut [u8]) {
        let (slot, dtype) = self.results[result];
        let len = bytes.len() / dtype.size();
        match slot.class {
            Class::F32 => f32::store(dtype, &registers.f32[slot.index][..len], bytes),
            Class::F64 => f64::store(dtype, &registers.f64[slot.index][..len], bytes),
            Class::Int => i64::store(dtype, &registers.int[slot.index][..len], bytes),
        }
    }
}

impl Step {
    fn run(&self, registers: &mut Registers, len: usize) -> bool {
        match self.what {
            Do::Real(op) if self.dst.class == Class::F32 => self.real::<f32>(op, registers, len),
            Do::Real(op) => self.real::<f64>(op, registers, len),
            Do::Compare(op) if self.args[0].class == Class::F32 => self.compare::<f32>(op, registers, len),
            Do::Compare(op) => self.compare::<f64>(op, registers, len),
            Do::Int(op, dtype) => return self.int(op, dtype, registers, len),
            Do::Select => match self.dst.class {
                Class::F32 => self.select::<f32>(registers, len),
                Class::F64 => self.select::<f64>(registers, len),
                Class::Int => self.select::<i64>(registers, len),
            },
            Do::Convert(dtype) => self.convert(dtype, registers, len),
            Do::Round(dtype) => self.write::<f32>(registers, len, |registers, dst| {
                dst.copy_from_slice(&f32::read(registers)[self.args[0].index][..len]);
                round(dtype, dst);
            }),
        }
        true
    }

    /// Takes the destination out of the registers while the operands are read; a program writes each register once.
    fn write<T: File>(&self, registers: &mut Registers, len: usize, f: impl FnOnce(&Registers, &mut [T])) {
        let mut dst = std::mem::take(&mut T::file(registers)[self.dst.index]);
        f(registers, &mut dst[..len]);
        T::file(registers)[self.dst.index] = dst;
    }

    fn args<'a, T: File>(&self, registers: &'a Registers, len: usize) -> SmallVec<[&'a [T]; 3]> {
        self.args.iter().map(|slot| &T::read(registers)[slot.index][..len]).collect()
    }

    fn real<T: File + vector::Vector>(&self, op: Pointwise, registers: &mut Registers, len: usize) {
        self.write::<T>(registers, len, |registers, dst| vector::real(op, dst, &self.args::<T>(registers, len)));
    }

    fn compare<T: File + vector::Vector>(&self, op: Pointwise, registers: &mut Registers, len: usize) {
        self.write::<i64>(registers, len, |registers, dst| vector::compare(op, dst, &self.args::<T>(registers, len)));
    }

    fn int(&self, op: Pointwise, dtype: DType, registers: &mut Registers, len: usize) -> bool {
        let mut defined = true;
        self.write::<i64>(registers, len, |registers, dst| {
            defined = vector::int(op, dst, &self.args::<i64>(registers, len));
            if dtype != DType::I64 {
                dst.iter_mut().for_each(|x| *x = wrap(dtype, *x));
            }
        });
        defined
    }

    fn select<T: File>(&self, registers: &mut Registers, len: usize) {
        let [mask, a, b] = self.args[..] else { unreachable!("`where` has three operands") };
        self.write::<T>(registers, len, |registers, dst| {
            let (file, mask) = (T::read(registers), &i64::read(registers)[mask.index][..len]);
            vector::select(dst, mask, &file[a.index][..len], &file[b.index][..len]);
        });
    }

    fn convert(&self, dtype: DType, registers: &mut Registers, len: usize) {
        let src = self.args[0];
        match (src.class, self.dst.class) {
            (Class::F32, Class::F64) => self.through::<f32, f64>(registers, len, f64::from),
            (Class::F64, Class::F32) => self.through::<f64, f32>(registers, len, |x| x as f32),
            (Class::Int, Class::F32) => self.through::<i64, f32>(registers, len, |x| x as f32),
            (Class::Int, Class::F64) => self.through::<i64, f64>(registers, len, |x| x as f64),
            (Class::Int, Class::Int) => self.through::<i64, i64>(registers, len, |x| wrap(dtype, x)),
            (Class::F32, Class::Int) => self.through::<f32, i64>(registers, len, |x| truncate(dtype, f64::from(x))),
            (Class::F64, Class::Int) => self.through::<f64, i64>(registers, len, |x| truncate(dtype, x)),
            (Class::F32, Class::F32) | (Class::F64, Class::F64) => unreachable!("floats of one class need no conversion"),
        }
    }

    fn through<T: File, U: File>(&self, registers: &mut Registers, len: usize, f: impl Fn(T) -> U) {
        self.write::<U>(registers, len, |registers, dst| {
            let src = &T::read(registers)[self.args[0].index];
            simd(|| dst.iter_mut().zip(src).for_each(|(d, &x)| *d = f(x)));
        });
    }
}

/// A float as an element of an integer dtype: truncated; narrow signed integers saturate, unsigned ones go by way of i64, as `c10::convert`.
fn truncate(dtype: DType, x: f64) -> i64 {
    match dtype {
        DType::Bool => i64::from(x != 0.0),
        DType::I8 => i64::from(x as i8),
        DType::I16 => i64::from(x as i16),
        DType::I32 => i64::from(x as i32),
        _ => wrap(dtype, x as i64),
    }
}
