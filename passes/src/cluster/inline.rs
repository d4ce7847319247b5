//! From pointwise nodes to one program.

use eglu_ir::{
    DType, Graph, GraphError, Instr, NodeId, Op, Operand, Program, Ref, Value,
    ops::{Cast, Glu, Map, OperandType, Pointwise, TypeRule, infer::compute_dtype},
    program::InstrOp,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// True for a node that can become part of a program: one element at a time, one output, real numbers.
pub(crate) fn is_pointwise(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let real = |operand: &Operand| operand.value().is_none_or(|value| !graph.ty(value).dtype.is_complex());
    matches!(node.op(), Some(Op::Pointwise(_) | Op::Cast(_) | Op::Map(_) | Op::Glu(_)))
        && node.outputs.len() == 1
        && !node.outputs[0].dtype.is_complex()
        && node.operands.iter().all(real)
        && node.operands.iter().any(|operand| operand.value().is_some())
}

/// A program that grows node by node. Values from outside become parameters, each once.
pub(crate) struct Inliner<'g> {
    graph: &'g Graph,
    program: Program,
    refs: FxHashMap<Value, Ref>,
    known: FxHashMap<Instr, Ref>,
    /// Values that came as parameters through [`Inliner::operand`], in order.
    pub captures: Vec<Value>,
}

impl<'g> Inliner<'g> {
    /// An empty program over values of `graph`.
    pub fn new(graph: &'g Graph) -> Self {
        Inliner {
            graph,
            program: Program::new([]),
            refs: FxHashMap::default(),
            known: FxHashMap::default(),
            captures: Vec::new(),
        }
    }

    /// A parameter that stands for `value` but is no capture: an accumulator, or a reduced value.
    pub fn seed(&mut self, value: Value) {
        let parameter = self.parameter(value);
        self.refs.insert(value, parameter);
    }

    /// A parameter that stands for a stored `value`.
    pub fn given(&mut self, value: Value) {
        self.seed(value);
        self.captures.push(value);
    }

    /// A parameter of this dtype that is no value of the graph.
    pub fn unnamed(&mut self, dtype: DType) -> Ref {
        self.program.params.push(dtype);
        Ref::Param(self.program.params.len() as u32 - 1)
    }

    /// Lets `value` be what the program computes as `operand`.
    pub fn alias(&mut self, value: Value, operand: Ref) {
        self.refs.insert(value, operand);
    }

    /// A parameter of this dtype that is no value of the graph, and is combined with `value` before anything reads it.
    pub fn add_table(&mut self, value: Value, op: Pointwise, dtype: DType) {
        let table = self.unnamed(dtype);
        let combined = self.value(value);
        let combined = self.push(InstrOp::Pointwise(op), [combined, table], dtype);
        self.refs.insert(value, combined);
    }

    /// Rounds an accumulator to the dtype that it would be stored in, where that is narrower than what it is computed in.
    pub fn round(&mut self, value: Value) {
        let dtype = self.graph.ty(value).dtype;
        if dtype.opmath() != dtype {
            let wide = self.value(value);
            let rounded = self.push(InstrOp::Cast, [wide], dtype);
            self.refs.insert(value, rounded);
        }
    }

    /// An instruction; one that is there already is not repeated.
    pub fn push(&mut self, op: InstrOp, args: impl IntoIterator<Item = Ref>, dtype: DType) -> Ref {
        let instr = Instr { op, args: args.into_iter().collect(), dtype };
        if let Some(&known) = self.known.get(&instr) {
            return known;
        }
        let new = self.program.push(op, instr.args.iter().copied(), dtype);
        self.known.insert(instr, new);
        new
    }

    fn parameter(&mut self, value: Value) -> Ref {
        self.program.params.push(self.graph.ty(value).dtype);
        Ref::Param(self.program.params.len() as u32 - 1)
    }

    /// The program's reference to a value.
    pub fn value(&mut self, value: Value) -> Ref {
        if let Some(&known) = self.refs.get(&value) {
            return known;
        }
        let parameter = self.parameter(value);
        self.refs.insert(value, parameter);
        self.captures.push(value);
        parameter
    }

    /// Appends a pointwise node; its operands are found in the program or become captures.
    pub fn node(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.graph.node(id);
        let args: SmallVec<[Ref; 3]> = node
            .operands
            .iter()
            .filter_map(|operand| match *operand {
                Operand::Value(value) => Some(self.value(value)),
                Operand::Scalar(scalar) => Some(Ref::Scalar(scalar)),
                Operand::None => None,
            })
            .collect();
        let stored = node.outputs[0].dtype;
        let result = match node.op() {
            Some(Op::Pointwise(op)) => self.pointwise(*op, id, args, stored)?,
            Some(Op::Cast(Cast { dtype })) => self.cast(args[0], *dtype),
            Some(Op::Map(Map { program }) | Op::Glu(Glu { program })) => self.inline(program, &args, stored),
            _ => return Ok(()),
        };
        self.refs.insert(id.into(), result);
        Ok(())
    }

    fn pointwise(&mut self, op: Pointwise, id: NodeId, args: SmallVec<[Ref; 3]>, stored: DType) -> Result<Ref, GraphError> {
        let node = self.graph.node(id);
        let types: SmallVec<[OperandType<'_>; 3]> = node
            .operands
            .iter()
            .map(|operand| match operand {
                Operand::Value(value) => OperandType::Tensor(self.graph.ty(*value)),
                Operand::Scalar(scalar) => OperandType::Scalar(*scalar),
                Operand::None => OperandType::None,
            })
            .collect();
        let dtype =
            compute_dtype(op, &types).map_err(|source| GraphError::Infer { node: node.name.clone(), op: op.name(), source })?;
        let mask = |i: usize| op.rule() == TypeRule::Select && i == 0;
        let args: SmallVec<[Ref; 3]> = args
            .into_iter()
            .enumerate()
            .map(|(i, arg)| match arg {
                // Truth is taken in each operand's own dtype, and numbers adapt by themselves.
                Ref::Scalar(_) => arg,
                _ if mask(i) || op.rule() == TypeRule::Logical || self.program.dtype_of(arg) == dtype => arg,
                _ => self.push(InstrOp::Cast, [arg], dtype),
            })
            .collect();
        Ok(self.push(InstrOp::Pointwise(op), args, stored))
    }

    /// A conversion. Widening shows the digits that rounding took away, so a narrow value that has not been rounded yet is rounded first:
    /// routers upcast half-precision logits and pick the largest, where one digit more could pick another expert.
    fn cast(&mut self, arg: Ref, to: DType) -> Ref {
        let from = self.program.dtype_of(arg);
        let widens = from.is_float() && to.is_float() && to.size() > from.size();
        let arg = if widens && !self.is_rounded(arg) { self.push(InstrOp::Cast, [arg], from) } else { arg };
        self.push(InstrOp::Cast, [arg], to)
    }

    fn is_rounded(&self, arg: Ref) -> bool {
        match arg {
            Ref::Scalar(_) => true,
            Ref::Param(i) => self.captures.iter().any(|capture| self.refs.get(capture) == Some(&Ref::Param(i))),
            Ref::Instr(i) => {
                let Instr { op, dtype, .. } = &self.program.instrs[i as usize];
                *op == InstrOp::Cast || dtype.opmath() == *dtype
            }
        }
    }

    /// The result of a program on these operands, in the dtype it is stored in.
    pub fn inline(&mut self, program: &Program, args: &[Ref], stored: DType) -> Ref {
        let mut made: Vec<Ref> = Vec::with_capacity(program.instrs.len());
        let translate = |made: &[Ref], operand: Ref| match operand {
            Ref::Param(i) => args[i as usize],
            Ref::Instr(i) => made[i as usize],
            scalar => scalar,
        };
        for Instr { op, args, dtype } in &program.instrs {
            let args: SmallVec<[Ref; 3]> = args.iter().map(|&arg| translate(&made, arg)).collect();
            made.push(self.push(*op, args, *dtype));
        }
        let result = translate(&made, program.results[0].0);
        if self.program.dtype_of(result) == stored { result } else { self.push(InstrOp::Cast, [result], stored) }
    }

    /// Makes a value a result, stored in its dtype.
    pub fn result(&mut self, value: Value) {
        let dtype = self.graph.ty(value).dtype;
        let operand = self.value(value);
        self.program.results.push((operand, dtype));
    }

    /// Makes what the program computes as `operand` a result.
    pub fn result_as(&mut self, operand: Ref, dtype: DType) {
        self.program.results.push((operand, dtype));
    }

    /// Makes a value a result that is handed on in the precision it is computed in, converted to `dtype` first where that is another.
    pub fn hand_on(&mut self, value: Value, dtype: DType) {
        let operand = self.value(value);
        let operand = if self.program.dtype_of(operand) == dtype { operand } else { self.cast(operand, dtype) };
        self.program.results.push((operand, dtype.opmath()));
    }

    /// Makes a value a result that is reduced to `dtype`: as PyTorch, elements become that dtype first.
    pub fn reduced(&mut self, value: Value, dtype: DType) {
        let operand = self.value(value);
        let operand = if self.program.dtype_of(operand) == dtype { operand } else { self.cast(operand, dtype) };
        self.program.results.push((operand, dtype));
    }

    /// The program, with what widening shows [rounded](super::rounding) on the way.
    pub fn finish(self) -> Program {
        let captured: Vec<bool> = {
            let captured = |i: u32| self.captures.iter().any(|capture| self.refs.get(capture) == Some(&Ref::Param(i)));
            (0..self.program.params.len() as u32).map(captured).collect()
        };
        super::rounding::keep(self.program, &captured)
    }
}
