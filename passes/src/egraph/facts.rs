//! What is known of each e-class: types, integer ranges, permutations and constants (egg's `Analysis`).

use super::{
    language::{ENode, Head},
    range::{self, Range},
};
use egg::{Analysis, DidMerge, Id, Language};
use eglu_ir::{
    DType, Op, TensorType,
    ops::{Attr, OperandType, Reduce, ReduceKind},
};
use smallvec::SmallVec;

/// The e-graph of a region.
pub type EGraph = egg::EGraph<ENode, FactTable>;

/// What is known of one value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    /// Its type.
    pub ty: TensorType,
    /// Bounds of its integers.
    pub range: Range,
    /// It is 1-d and holds each of 0..len once.
    pub permutation: bool,
}

impl Fact {
    /// Nothing but the type.
    pub fn of_type(ty: TensorType) -> Fact {
        let range = Range::of_dtype(ty.dtype);
        Fact { ty, range, permutation: false }
    }
}

/// What is known of a value that enters the region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// What earlier regions, or the signature, tell of it.
    pub fact: Fact,
    /// Where it comes from.
    pub source: Source,
}

/// Where a value comes from that enters the region. Claims on values that the graph does not compute are assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A user input.
    User,
    /// A weight or buffer of the model.
    Weight,
    /// Other ops of the graph.
    Graph,
}

/// Facts of an e-class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// One for each output; none for attributes and numbers.
    pub outputs: SmallVec<[Fact; 1]>,
    /// The attribute, number or absence that the class is.
    pub leaf: Option<Head>,
}

/// Shared state of the analysis.
#[derive(Clone, Debug, Default)]
pub struct FactTable {
    /// Facts of the values that enter.
    pub entries: Vec<Entry>,
    /// Contradictions found so far: each is a wrong rule or an ill-typed node.
    pub conflicts: Vec<String>,
}

impl Analysis<ENode> for FactTable {
    type Data = Facts;

    fn make(egraph: &mut EGraph, node: &ENode, _: Id) -> Facts {
        match derive(egraph, node) {
            Ok(facts) => facts,
            Err(why) => {
                egraph.analysis.conflicts.push(why);
                Facts::default()
            }
        }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        if a.outputs.len() != b.outputs.len() || a.leaf != b.leaf {
            self.conflicts.push(format!("{} merged with {}", describe(a), describe(&b)));
            return DidMerge(false, false);
        }
        let mut changed = DidMerge(false, false);
        for (x, y) in a.outputs.iter_mut().zip(b.outputs) {
            if x.ty != y.ty {
                self.conflicts.push(format!("a value of type {} merged with one of type {}", x.ty, y.ty));
                continue;
            }
            let range = x.range.meet(y.range);
            if range.is_empty() {
                self.conflicts.push(format!("values in {} merged with values in {} ({})", x.range, y.range, x.ty));
                continue;
            }
            let permutation = x.permutation || y.permutation;
            changed.0 |= (x.range, x.permutation) != (range, permutation);
            changed.1 |= (y.range, y.permutation) != (range, permutation);
            (x.range, x.permutation) = (range, permutation);
        }
        changed
    }
}

fn describe(facts: &Facts) -> String {
    match (&facts.leaf, facts.outputs.first()) {
        (Some(leaf), _) => format!("the leaf `{}`", ENode::leaf(leaf.clone())),
        (None, Some(fact)) => format!("a value of type {}", fact.ty),
        (None, None) => "an ill-typed node".into(),
    }
}

fn derive(egraph: &EGraph, node: &ENode) -> Result<Facts, String> {
    let outputs = match &node.head {
        Head::Op(_) => return call(egraph, node),
        Head::Output(index) => {
            let of = &egraph[node.children()[0]].data;
            match of.outputs.get(*index as usize) {
                Some(fact) => SmallVec::from_iter([fact.clone()]),
                None if of.outputs.is_empty() => return Ok(Facts::default()),
                None => return Err(format!("an op with {} outputs has no output {index}", of.outputs.len())),
            }
        }
        Head::Value(index) => match egraph.analysis.entries.get(*index as usize) {
            Some(entry) => SmallVec::from_iter([entry.fact.clone()]),
            None => return Err(format!("no value enters as number {index}")),
        },
        leaf => return Ok(Facts { outputs: SmallVec::new(), leaf: Some(leaf.clone()) }),
    };
    Ok(Facts { outputs, leaf: None })
}

/// The op of a node, rebuilt from its attribute children.
pub fn op_of(egraph: &EGraph, node: &ENode) -> Result<Op, String> {
    let Some((code, _, attrs)) = node.call() else { return Err(format!("`{node}` is no op")) };
    let attrs: Vec<Attr> = attrs
        .iter()
        .map(|&id| match &egraph[id].data.leaf {
            Some(Head::Attr(attr)) => Ok(attr.clone()),
            _ => Err(format!("`{node}` has an operand in place of an attribute")),
        })
        .collect::<Result<_, _>>()?;
    code.build(&attrs).map_err(|e| e.to_string())
}

fn call(egraph: &EGraph, node: &ENode) -> Result<Facts, String> {
    let op = op_of(egraph, node)?;
    let operands = node.call().map_or(&[][..], |(_, operands, _)| operands);
    let outputs = facts_of(egraph, &op, operands)?;
    Ok(Facts { outputs, leaf: None })
}

/// Facts of an op applied to the values of these classes; an error says why it does not apply.
pub fn facts_of(egraph: &EGraph, op: &Op, operands: &[Id]) -> Result<SmallVec<[Fact; 1]>, String> {
    let datas: SmallVec<[&Facts; 6]> = operands.iter().map(|&id| &egraph[id].data).collect();
    let mut types: SmallVec<[OperandType<'_>; 6]> = SmallVec::new();
    for data in &datas {
        types.push(match (&data.outputs[..], &data.leaf) {
            ([fact], _) => OperandType::Tensor(&fact.ty),
            (_, Some(Head::Scalar(scalar))) => OperandType::Scalar(*scalar),
            (_, Some(Head::Absent)) => OperandType::None,
            _ => return Err(format!("`{}` reads something that is no value", op.name())),
        });
    }
    let inferred = op.infer(&types).map_err(|e| format!("`{}`: {e}", op.name()))?;
    let ranges: SmallVec<[(Range, Option<DType>); 6]> = datas
        .iter()
        .map(|data| match (data.outputs.first(), &data.leaf) {
            (Some(fact), _) => (fact.range, Some(fact.ty.dtype)),
            (None, Some(Head::Scalar(scalar))) => (range::of_scalar(*scalar), None),
            (None, _) => (Range::ANY, None),
        })
        .collect();
    let mut outputs: SmallVec<[Fact; 1]> = inferred.into_iter().map(Fact::of_type).collect();
    let dtype = outputs.first().map_or(DType::Bool, |fact| fact.ty.dtype);
    if let Some(fact) = outputs.first_mut() {
        fact.range = range::transfer(op, &ranges, dtype);
    }
    let extent = |dim: usize| datas.first().and_then(|data| data.outputs.first()).and_then(|fact| fact.ty.shape.get(dim));
    match op {
        Op::Sort(sort) => positions(&mut outputs, extent(sort.dim), true),
        Op::TopK(top) => positions(&mut outputs, extent(top.dim), false),
        Op::Route(_) => positions(&mut outputs, extent(1), false),
        Op::Reduce(Reduce { kind: ReduceKind::Argmax | ReduceKind::Argmin, dims, .. }) => {
            if let (Some(fact), [dim]) = (outputs.first_mut(), &dims[..]) {
                fact.range = extent(*dim).map_or(Range::ANY, Range::positions);
            }
        }
        Op::InversePermutation(_) => {
            if let (Some(fact), Some(len)) = (outputs.first_mut(), extent(0)) {
                fact.range = Range::positions(len);
                fact.permutation = true;
            }
        }
        _ => {}
    }
    Ok(outputs)
}

/// The second output holds positions along `extent`; all of them, if `each` and 1-d.
fn positions(outputs: &mut [Fact], extent: Option<&eglu_ir::Dim>, each: bool) {
    if let (Some(fact), Some(extent)) = (outputs.get_mut(1), extent) {
        fact.range = Range::positions(extent);
        fact.permutation = each && fact.ty.rank() == 1;
    }
}
