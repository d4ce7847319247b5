//! A group of passes over the same lines as one op.

use super::{
    inline::Inliner,
    lines::{Lines, Role, levels, pass},
};
use crate::rebuild::Rebuild;
use eglu_ir::{
    DType, Graph, GraphError, NodeId, Op, Operand, Program, Ref, Scalar, Shape, Value,
    ops::{Axes, Pointwise, Reduce, ReduceChain, ReduceKind, Reshape},
    program::InstrOp,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A group as its programs see it.
struct Group<'g> {
    graph: &'g Graph,
    lines: Lines,
    /// In topological order.
    members: Vec<(NodeId, Role)>,
    roles: FxHashMap<NodeId, Role>,
    levels: FxHashMap<NodeId, usize>,
    passes: usize,
    /// What is read from outside; true where a view must give it the lines' dims.
    captures: Vec<(Value, bool)>,
    /// Values from outside that are nothing but positions.
    positions: Vec<Value>,
    /// What each pass gives, in order.
    stats: Vec<Vec<Value>>,
    exits: Vec<NodeId>,
}

/// An element picked of what is read: where, and of which value.
type Picked = (Value, Value);

impl<'g> Group<'g> {
    fn new(graph: &'g Graph, members: &[NodeId]) -> Option<Group<'g>> {
        let lines = members.iter().find_map(|&id| Lines::of(graph, id))?;
        let members: Vec<(NodeId, Role)> = members.iter().map(|&id| Some((id, lines.role(graph, id)?))).collect::<Option<_>>()?;
        let roles: FxHashMap<NodeId, Role> = members.iter().copied().collect();
        let levels = levels(graph, &members);
        let passes = members.iter().filter_map(|&(id, role)| pass(&levels, graph, id, role)).max()? + 1;
        let exits = super::exits(graph, &members.iter().map(|&(id, _)| id).collect::<Vec<_>>());
        let mut group =
            Group { graph, lines, members, roles, levels, passes, captures: vec![], positions: vec![], stats: vec![], exits };
        group.find_captures();
        group.find_stats();
        Some(group)
    }

    /// True if what is read has the lines' extents: the op takes them from its operands, so that a number spread over lines is none.
    fn reads_whole_lines(&self) -> bool {
        let full = &self.lines.full;
        let as_read = self.captures.iter().map(|&(value, lifted)| {
            let ones = if lifted { self.lines.dims.len() } else { 0 };
            let shape = self.graph.ty(value).shape.iter().cloned();
            shape.chain((0..ones).map(|_| eglu_ir::Dim::from(1))).collect::<Shape>()
        });
        let shapes: Vec<Shape> = as_read.collect();
        let has = |shape: &Shape, i: usize| (i + shape.len()).checked_sub(full.len()).is_some_and(|at| shape[at] == full[i]);
        (0..full.len()).all(|i| full[i].is(1) || shapes.iter().any(|shape| has(shape, i)))
    }

    fn operands(&self, id: NodeId) -> impl Iterator<Item = Value> + use<'g> {
        self.graph.node(id).operands.iter().filter_map(|o| o.value())
    }

    fn find_captures(&mut self) {
        let bare = self.lines.bare();
        for &(id, role) in &self.members {
            for value in self.operands(id).filter(|value| !self.roles.contains_key(&value.node)) {
                if role == Role::Element && self.lines.is_position(self.graph, value) {
                    if !self.positions.contains(&value) {
                        self.positions.push(value);
                    }
                    continue;
                }
                let is_view = matches!(self.graph.node(id).op(), Some(Op::Reshape(_)));
                let shape = &self.graph.ty(value).shape;
                let lifted = role == Role::Stat && self.graph.node(id).outputs[0].shape == bare && !shape.is_empty();
                let lifted = if is_view { *shape == bare && !shape.is_empty() } else { lifted };
                if !self.captures.iter().any(|&(known, _)| known == value) {
                    self.captures.push((value, lifted && bare != self.lines.kept()));
                }
            }
        }
    }

    /// The pass whose epilogue computes a value of lines.
    fn home(&self, id: NodeId) -> usize {
        self.levels[&id].max(1) - 1
    }

    fn find_stats(&mut self) {
        self.stats = vec![Vec::new(); self.passes];
        for &(id, role) in self.members.iter().filter(|&&(_, role)| role != Role::Element) {
            let later = |user: NodeId| match self.roles.get(&user) {
                Some(Role::Stat) => self.home(user) > self.home(id),
                Some(_) => true,
                None => false,
            };
            debug_assert!(role != Role::Element);
            if self.exits.contains(&id) || self.graph.users(id).into_iter().any(later) {
                let home = self.home(id);
                self.stats[home].push(id.into());
            }
        }
    }

    /// A program that knows what is read and what the passes before `pass` gave; it takes `reduced` values first.
    fn behind(&self, pass: usize, reduced: impl FnOnce(&mut Inliner<'g>)) -> Inliner<'g> {
        let mut program = Inliner::new(self.graph);
        reduced(&mut program);
        for &(value, _) in &self.captures {
            program.given(value);
        }
        program.unnamed(DType::I32);
        for &value in self.stats[..pass].iter().flatten() {
            program.given(value);
        }
        program
    }

    /// The same for elements, which know their positions.
    fn program(&self, pass: usize) -> Inliner<'g> {
        let mut program = self.behind(pass, |_| {});
        for &value in &self.positions {
            let position = Ref::Param(self.captures.len() as u32);
            let as_read = converted(&mut program, position, DType::I32, self.graph.ty(value).dtype);
            program.alias(value, as_read);
        }
        program
    }

    /// Adds the members that `wanted` need to a program that knows what the passes before `pass` gave.
    fn add(&self, program: &mut Inliner<'g>, wanted: &[Value], pass: usize) -> Result<(), GraphError> {
        let known: FxHashSet<Value> = self.stats[..pass].iter().flatten().copied().collect();
        let mut needed: FxHashSet<NodeId> = FxHashSet::default();
        let mut stack = wanted.to_vec();
        while let Some(value) = stack.pop() {
            if self.roles.contains_key(&value.node) && !known.contains(&value) && needed.insert(value.node) {
                stack.extend(self.operands(value.node));
            }
        }
        for &(id, _) in self.members.iter().filter(|(id, _)| needed.contains(id)) {
            self.node(program, id)?;
        }
        Ok(())
    }

    /// Adds one member that is no reduction.
    fn node(&self, program: &mut Inliner<'g>, id: NodeId) -> Result<(), GraphError> {
        match self.graph.node(id).op() {
            Some(Op::Expand(_) | Op::Reshape(_)) => {
                for value in self.operands(id) {
                    let operand = program.value(value);
                    program.alias(id.into(), operand);
                }
                Ok(())
            }
            _ => program.node(id),
        }
    }

    /// The members that reduce in a pass.
    fn reductions(&self, at: usize) -> impl Iterator<Item = (NodeId, Role)> + '_ {
        self.members.iter().copied().filter(move |&(id, role)| pass(&self.levels, self.graph, id, role) == Some(at))
    }

    /// What an element is computed from that differs within a line.
    fn sources(&self, element: Value) -> Vec<Value> {
        let (mut found, mut stack, mut seen) = (Vec::new(), vec![element], FxHashSet::default());
        while let Some(value) = stack.pop() {
            if !seen.insert(value) {
                continue;
            }
            match self.roles.get(&value.node) {
                Some(Role::Element) => stack.extend(self.operands(value.node)),
                Some(_) => {}
                None if self.varies(value) && !self.positions.contains(&value) => found.push(value),
                None => {}
            }
        }
        found.sort_unstable();
        found
    }

    /// True for a value from outside that differs within a line.
    fn varies(&self, value: Value) -> bool {
        let shape = &self.graph.ty(value).shape;
        let inner = self.lines.dims.len();
        shape.iter().rev().take(inner).any(|extent| !extent.is(1))
    }

    /// The elements to pick in a pass, each once.
    fn picks(&self, at: usize) -> Vec<Picked> {
        let mut picks: Vec<Picked> = Vec::new();
        for (id, _) in self.reductions(at).filter(|&(_, role)| role == Role::Pick) {
            let [from, index] = [0, 1].map(|i| self.graph.node(id).operands[i].value());
            let (Some(from), Some(index)) = (from, index) else { continue };
            for source in self.sources(from) {
                if !picks.contains(&(index, source)) {
                    picks.push((index, source));
                }
            }
        }
        picks
    }

    /// The program of elements to reduce, and how.
    fn prologue(&self, at: usize) -> Result<(Program, Vec<ReduceKind>), GraphError> {
        let mut program = self.program(at);
        let mut kinds = Vec::new();
        let read: Vec<Value> = self
            .reductions(at)
            .filter_map(|(id, role)| self.graph.node(id).operands[usize::from(role == Role::Pick)].value())
            .collect();
        self.add(&mut program, &read, at)?;
        for (id, role) in self.reductions(at) {
            if let (Role::Reduce, Some(Op::Reduce(reduce)), Some(x)) =
                (role, self.graph.node(id).op(), self.graph.node(id).operands[0].value())
            {
                program.hand_on(x, accumulated(reduce, self.graph.ty(x).dtype));
                kinds.push(reduce.kind);
            }
        }
        let position = Ref::Param(self.captures.len() as u32);
        for (index, source) in self.picks(at) {
            let [wanted, element] = [index, source].map(|value| program.value(value));
            let (ids, dtype) = (self.graph.ty(index).dtype, self.graph.ty(source).dtype);
            let place = converted(&mut program, position, DType::I32, ids);
            let here = program.push(InstrOp::Pointwise(Pointwise::Eq), [place, wanted], DType::Bool);
            let zero = Ref::Scalar(if dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) });
            let picked = program.push(InstrOp::Pointwise(Pointwise::Where), [here, element, zero], dtype);
            program.result_as(picked, dtype.opmath());
            kinds.push(ReduceKind::Sum);
        }
        Ok((program.finish(), kinds))
    }

    /// The program behind a pass.
    fn epilogue(&self, at: usize) -> Result<Program, GraphError> {
        let picks = self.picks(at);
        let mut of_picks: Vec<Ref> = Vec::new();
        let mut program = self.behind(at, |program| {
            for (id, _) in self.reductions(at).filter(|&(_, role)| role == Role::Reduce) {
                program.seed(id.into());
            }
            for &(_, source) in &picks {
                of_picks.push(program.unnamed(self.graph.ty(source).dtype));
            }
        });
        let ours = |&&(id, role): &&(NodeId, Role)| role != Role::Element && self.home(id) == at;
        for &(id, role) in self.members.iter().filter(ours) {
            match role {
                Role::Stat => self.node(&mut program, id)?,
                Role::Pick => self.picked(&mut program, id, &picks, &of_picks)?,
                _ => {}
            }
        }
        for &value in &self.stats[at] {
            program.result(value);
        }
        Ok(program.finish())
    }

    /// Adds a picked element: computed as it would be, from picked elements of what is read.
    fn picked(&self, program: &mut Inliner<'g>, id: NodeId, picks: &[Picked], of_picks: &[Ref]) -> Result<(), GraphError> {
        let [from, index] = [0, 1].map(|i| self.graph.node(id).operands[i].value());
        let (Some(from), Some(index)) = (from, index) else { return Ok(()) };
        let mut element = Inliner::new(self.graph);
        self.add(&mut element, &[from], self.passes_before(id))?;
        element.result(from);
        let read = element.captures.clone();
        let args: Vec<Ref> = read
            .into_iter()
            .map(|value| match picks.iter().position(|&pick| pick == (index, value)) {
                Some(i) => of_picks[i],
                None if self.positions.contains(&value) => {
                    let wanted = program.value(index);
                    converted(program, wanted, self.graph.ty(index).dtype, self.graph.ty(value).dtype)
                }
                None => program.value(value),
            })
            .collect();
        let element = element.finish();
        let stored = self.graph.ty(id.into()).dtype;
        let result = program.inline(&element, &args, stored);
        program.alias(id.into(), result);
        Ok(())
    }

    /// How many passes have given their values where a picked element is computed.
    fn passes_before(&self, id: NodeId) -> usize {
        self.home(id) + 1
    }

    /// The program of the results that have an element for each of the lines' elements.
    fn end(&self) -> Result<(Program, Vec<NodeId>), GraphError> {
        let mut program = self.program(self.passes);
        let ends: Vec<NodeId> = self.exits.iter().copied().filter(|id| self.roles[id] == Role::Element).collect();
        self.add(&mut program, &ends.iter().map(|&id| id.into()).collect::<Vec<_>>(), self.passes)?;
        for &id in &ends {
            program.result(id.into());
        }
        Ok((program.finish(), ends))
    }
}

/// An integer in another dtype.
fn converted(program: &mut Inliner<'_>, operand: Ref, from: DType, to: DType) -> Ref {
    if from == to { operand } else { program.push(InstrOp::Cast, [operand], to) }
}

/// The dtype that values have when they are reduced: the result's, except where the result is a truth.
fn accumulated(reduce: &Reduce, x: DType) -> DType {
    if matches!(reduce.kind, ReduceKind::Any | ReduceKind::All) { x } else { reduce.dtype }
}

/// True if a group of these members can be one op.
pub(crate) fn reads_whole_lines(graph: &Graph, members: &[NodeId]) -> bool {
    Group::new(graph, members).is_some_and(|group| group.reads_whole_lines())
}

/// Emits a group as one op.
pub(crate) fn emit(rebuild: &mut Rebuild<'_>, members: &[NodeId]) -> Result<(), GraphError> {
    let graph = rebuild.old;
    // Grouped further, members may make within the lines all that had their extents.
    let Some(group) = Group::new(graph, members).filter(Group::reads_whole_lines) else {
        return members.iter().try_for_each(|&id| rebuild.copy(id));
    };
    let (mut prologues, mut kinds, mut epilogues) = (Vec::new(), Vec::new(), Vec::new());
    for pass in 0..group.passes {
        let (prologue, more) = group.prologue(pass)?;
        prologues.push(Arc::new(prologue));
        kinds.extend(more);
        epilogues.push(Arc::new(group.epilogue(pass)?));
    }
    let (end, ends) = group.end()?;
    let stats: Vec<Value> = group.stats.iter().flatten().copied().collect();
    let kept: Axes = (0..stats.len()).filter(|&i| group.exits.contains(&stats[i].node)).collect();
    let shape = group.lines.kept();
    let mut operands: Vec<Operand> = Vec::new();
    for &(value, lifted) in &group.captures {
        let new = rebuild.value(value);
        operands.push(if lifted { lift(rebuild, value, new, &group.lines)? } else { new.into() });
    }
    let results: Vec<NodeId> = kept.iter().map(|&i| stats[i].node).chain(ends).collect();
    let op = ReduceChain { dims: group.lines.dims.clone(), prologues, kinds, epilogues, kept, end: end.into() };
    let name = &graph.node(*results.last().unwrap_or(&members[0])).name;
    let new = rebuild.call(name, op.into(), operands, super::origins(graph, members))?;
    for (index, &exit) in results.iter().enumerate() {
        let mut value = Value { node: new, index: index as u32 };
        let wanted = &graph.node(exit).outputs[0].shape;
        if *wanted != shape && *wanted != group.lines.full {
            let view = Reshape { shape: wanted.clone() };
            value =
                rebuild.call(&format!("{}_bare", graph.node(exit).name), view.into(), [value.into()], std::iter::empty())?.into();
        }
        rebuild.bind(exit.into(), value);
    }
    Ok(())
}

/// A value that broadcasts against lines without their dims, with these dims.
fn lift(rebuild: &mut Rebuild<'_>, old: Value, new: Value, lines: &Lines) -> Result<Operand, GraphError> {
    let shape: Shape =
        rebuild.old.ty(old).shape.iter().cloned().chain(lines.dims.iter().map(|_| eglu_ir::Dim::from(1))).collect();
    let name = format!("{}_lines", rebuild.old.node(old.node).name);
    Ok(Operand::Value(rebuild.call(&name, Reshape { shape }.into(), [new.into()], std::iter::empty())?.into()))
}
