//! The e-graph's language: one node shape for every row of the op table, attributes and operands as children.

use egg::{FromOp, Id, Language};
use eglu_ir::{
    DType, OpCode, Scalar,
    ops::{Attr, Axes, ReduceKind, RouteScore},
};
use smallvec::SmallVec;
use std::fmt;

/// What an e-node is, apart from its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Head {
    /// A row of the op table; children are the operands, then the attributes in the order of [`OpCode::fields`].
    Op(OpCode),
    /// One output of an op that has several; the child is the op.
    Output(u32),
    /// An attribute.
    Attr(Attr),
    /// A number among the operands.
    Scalar(Scalar),
    /// A value that enters the region, by position.
    Value(u32),
    /// An optional operand that is not given.
    Absent,
}

/// A node of the e-graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ENode {
    /// What it is.
    pub head: Head,
    /// Operands, then attributes.
    pub children: SmallVec<[Id; 6]>,
}

impl ENode {
    /// A node without children.
    pub fn leaf(head: Head) -> ENode {
        ENode { head, children: SmallVec::new() }
    }

    /// A node with children.
    pub fn new(head: Head, children: impl IntoIterator<Item = Id>) -> ENode {
        ENode { head, children: children.into_iter().collect() }
    }

    /// Operands and attributes, if the node is a row of the op table.
    pub fn call(&self) -> Option<(OpCode, &[Id], &[Id])> {
        let Head::Op(code) = self.head else { return None };
        let (operands, attrs) = self.children.split_at(self.children.len().checked_sub(code.fields().len())?);
        Some((code, operands, attrs))
    }
}

impl Language for ENode {
    type Discriminant = Head;

    fn discriminant(&self) -> Head {
        self.head.clone()
    }

    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl fmt::Display for ENode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.head {
            Head::Op(code) => f.write_str(code.name()),
            Head::Output(index) => write!(f, "out{index}"),
            Head::Attr(attr) => write_attr(f, attr),
            Head::Scalar(scalar) => write!(f, "{scalar}"),
            Head::Value(index) => write!(f, "%{index}"),
            Head::Absent => f.write_str("none"),
        }
    }
}

fn write_attr(f: &mut fmt::Formatter<'_>, attr: &Attr) -> fmt::Result {
    let list = |axes: &Axes| axes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    match attr {
        Attr::Bool(value) => write!(f, "flag:{value}"),
        Attr::Int(value) => write!(f, "int:{value}"),
        Attr::Axes(axes) => write!(f, "axes:{}", list(axes)),
        Attr::Scalar(value) => write!(f, "number:{value}"),
        Attr::DType(dtype) => write!(f, "dtype:{dtype}"),
        Attr::Dim(dim) => write!(f, "dim:{dim}"),
        Attr::Shape(shape) => write!(f, "shape:{shape:?}"),
        Attr::Reduce(kind) => write!(f, "reduce:{}", format!("{kind:?}").to_lowercase()),
        Attr::Score(score) => write!(f, "score:{}", score.name()),
        Attr::Program(program) => write!(f, "program:{}", program.instrs.len()),
        Attr::Programs(programs) => write!(f, "programs:{}", programs.len()),
        Attr::Reduces(kinds) => write!(f, "reduces:{kinds:?}"),
    }
}

/// Why a word of a pattern is no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum WordError {
    #[error("`{0}` is neither an op, an attribute (`int:1`, `axes:0,1`, `flag:true`, `dtype:f32`, `reduce:sum`) nor a number")]
    Unknown(String),
    #[error("`{op}` has {want} operands and attributes, {given} given")]
    Arity { op: String, want: String, given: usize },
}

impl FromOp for ENode {
    type Error = WordError;

    fn from_op(word: &str, children: Vec<Id>) -> Result<ENode, WordError> {
        let arity = |want: usize| match children.len() {
            given if given == want => Ok(()),
            given => Err(WordError::Arity { op: word.into(), want: want.to_string(), given }),
        };
        if let Ok(code) = OpCode::from_name(word) {
            check_arity(code, children.len())?;
            return Ok(ENode::new(Head::Op(code), children));
        }
        if let Some(index) = word.strip_prefix("out").and_then(|index| index.parse().ok()) {
            arity(1)?;
            return Ok(ENode::new(Head::Output(index), children));
        }
        let head = leaf(word).ok_or_else(|| WordError::Unknown(word.into()))?;
        arity(0)?;
        Ok(ENode::leaf(head))
    }
}

fn check_arity(code: OpCode, given: usize) -> Result<(), WordError> {
    let lists = code.operands().iter().filter(|name| name.ends_with('*')).count();
    let single = code.operands().len() - lists + code.fields().len();
    if given == single || (lists > 0 && given > single) {
        return Ok(());
    }
    let want = if lists > 0 { format!("at least {single}") } else { single.to_string() };
    Err(WordError::Arity { op: code.name().into(), want, given })
}

fn leaf(word: &str) -> Option<Head> {
    if word == "none" {
        return Some(Head::Absent);
    }
    if let Ok(value) = word.parse() {
        return Some(Head::Scalar(Scalar::Int(value)));
    }
    if let Ok(value) = word.parse() {
        return Some(Head::Scalar(Scalar::Float(value)));
    }
    let (kind, text) = word.split_once(':')?;
    Some(Head::Attr(match kind {
        "int" => Attr::Int(text.parse().ok()?),
        "flag" => Attr::Bool(text.parse().ok()?),
        "axes" => Attr::Axes(text.split(',').map(|axis| axis.parse().ok()).collect::<Option<_>>()?),
        "dtype" => Attr::DType(DType::from_name(text)?),
        "score" => Attr::Score(RouteScore::from_name(text)?),
        "reduce" => Attr::Reduce(ReduceKind::from_name(text)?),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use egg::Pattern;

    #[test]
    fn patterns_reject_typos() {
        for text in
            ["(slu ?x)", "(mul ?x)", "(silu ?x ?y)", "(index ?x axes:x)", "(cast ?x dtype:f33)", "(out0 ?x ?y)", "(index axes:0)"]
        {
            assert!(text.parse::<Pattern<ENode>>().is_err(), "{text} must not parse");
        }
    }

    #[test]
    fn patterns_print_as_they_parse() {
        for text in
            ["(mul ?x (sigmoid ?x))", "(index ?x ?i ?j axes:0,1)", "(reduce ?x reduce:sum axes:1 flag:false ?d)", "(add ?x 1)"]
        {
            assert_eq!(text.parse::<Pattern<ENode>>().map(|p| p.to_string()).unwrap(), text);
        }
    }
}
