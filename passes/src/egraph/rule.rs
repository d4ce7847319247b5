//! A rewrite rule as one value, and what its conditions and its replacement see of a match.

use super::{
    facts::{EGraph, Fact, facts_of, op_of},
    language::{ENode, Head},
};
use egg::{ENodeOrVar, Id, Pattern, Subst, Var};
use eglu_ir::{
    DType, Dim, Op, Scalar, Shape, TensorType,
    ops::{Attr, Axes, Field},
};
use serde::Serialize;

/// How closely a rule's right side follows its left in floating point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Numerics {
    /// The same bits.
    Exact,
    /// The same sums in the same precision, but fewer roundings of intermediate values to 16 bits.
    SameAccumulator,
    /// Sums in another order.
    Reassociating,
}

/// What a condition says of a match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It cannot be proved, but is a claim on the user's inputs, put in words.
    Assumed(String),
    /// It does not hold; why, in words.
    Refused(String),
}

impl Verdict {
    /// Holds if `true`, else refused for the reason given.
    pub fn when(holds: bool, why: impl FnOnce() -> String) -> Verdict {
        if holds { Verdict::Holds } else { Verdict::Refused(why()) }
    }
}

/// Why a match was not rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the condition.
    pub condition: String,
    /// Why it refused, in words.
    pub why: String,
}

impl Refusal {
    /// A refusal by a named condition.
    pub fn new(condition: &str, why: impl Into<String>) -> Refusal {
        Refusal { condition: condition.into(), why: why.into() }
    }
}

type Check = Box<dyn Fn(&Site<'_>) -> Verdict + Send + Sync>;
type Explain = Box<dyn Fn(&Site<'_>) -> Option<String> + Send + Sync>;
type Build = Box<dyn Fn(&mut Site<'_>) -> Result<Id, Refusal> + Send + Sync>;

/// A named condition of a rule.
pub struct Condition {
    /// Its name in reports.
    pub name: &'static str,
    check: Check,
}

/// A form that the rule does not rewrite, though a user may expect it.
pub struct Nearly {
    /// What it looks like.
    pub pattern: Pattern<ENode>,
    /// The condition that such a match fails.
    pub condition: &'static str,
    explain: Explain,
}

impl Nearly {
    /// Why the match is not rewritten, in words; `None` where it is no near-miss after all.
    pub fn explain(&self, site: &Site<'_>) -> Option<String> {
        (self.explain)(site)
    }
}

enum Replacement {
    Pattern(Pattern<ENode>),
    Build(Build),
}

/// A rewrite rule.
pub struct Rule {
    /// Its name in reports.
    pub name: String,
    /// What it states.
    pub doc: String,
    /// What it matches; all forms mean the same (mirrored operands, with and without a cast).
    pub patterns: Vec<Pattern<ENode>>,
    /// What must hold, checked in order.
    pub conditions: Vec<Condition>,
    /// Forms that miss it, with what is told of them.
    pub nearly: Vec<Nearly>,
    /// How closely both sides agree.
    pub numerics: Numerics,
    /// A refused match is worth telling a user: it nearly fused.
    pub fuses: bool,
    replacement: Replacement,
}

/// A rule table that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule `{rule}`: {why} in `{pattern}`")]
pub struct RuleError {
    /// The rule.
    pub rule: String,
    /// The pattern.
    pub pattern: String,
    /// What is wrong with it.
    pub why: String,
}

/// A rule being written down.
pub struct Draft {
    name: String,
    doc: String,
    patterns: Vec<String>,
    conditions: Vec<Condition>,
    nearly: Vec<(String, &'static str, Explain)>,
    numerics: Numerics,
    fuses: bool,
}

/// Starts a rule.
pub fn rule(name: impl Into<String>, numerics: Numerics, doc: impl Into<String>) -> Draft {
    let (name, doc) = (name.into(), doc.into());
    Draft { name, doc, patterns: Vec::new(), conditions: Vec::new(), nearly: Vec::new(), numerics, fuses: false }
}

impl Draft {
    /// Adds a form of the left side.
    pub fn from(mut self, pattern: impl Into<String>) -> Draft {
        self.patterns.push(pattern.into());
        self
    }

    /// Adds several forms of the left side.
    pub fn from_all(mut self, patterns: impl IntoIterator<Item = String>) -> Draft {
        self.patterns.extend(patterns);
        self
    }

    /// Adds a condition.
    pub fn when(mut self, name: &'static str, check: impl Fn(&Site<'_>) -> Verdict + Send + Sync + 'static) -> Draft {
        self.conditions.push(Condition { name, check: Box::new(check) });
        self
    }

    /// Adds a form that misses the rule by a condition, and the words for it; `None` from them where it is no near-miss.
    pub fn nearly(
        mut self,
        pattern: impl Into<String>,
        condition: &'static str,
        explain: impl Fn(&Site<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Draft {
        self.nearly.push((pattern.into(), condition, Box::new(explain)));
        self
    }

    /// Adds several forms that miss the rule by the same condition.
    pub fn nearly_all(
        self,
        patterns: impl IntoIterator<Item = String>,
        condition: &'static str,
        explain: impl Fn(&Site<'_>) -> Option<String> + Clone + Send + Sync + 'static,
    ) -> Draft {
        patterns.into_iter().fold(self, |draft, pattern| draft.nearly(pattern, condition, explain.clone()))
    }

    /// Marks a rule whose refusals a user wants to know.
    pub fn fuses(mut self) -> Draft {
        self.fuses = true;
        self
    }

    /// Ends the rule with a pattern.
    pub fn becomes(self, pattern: &str) -> Result<Rule, RuleError> {
        let right = self.parse(pattern)?;
        self.end(Replacement::Pattern(right))
    }

    /// Ends the rule with code that builds the right side.
    pub fn builds(self, build: impl Fn(&mut Site<'_>) -> Result<Id, Refusal> + Send + Sync + 'static) -> Result<Rule, RuleError> {
        self.end(Replacement::Build(Box::new(build)))
    }

    fn parse(&self, text: &str) -> Result<Pattern<ENode>, RuleError> {
        text.parse().map_err(|e| RuleError { rule: self.name.clone(), pattern: text.into(), why: format!("{e}") })
    }

    fn end(mut self, replacement: Replacement) -> Result<Rule, RuleError> {
        let nearly = std::mem::take(&mut self.nearly)
            .into_iter()
            .map(|(pattern, condition, explain)| Ok(Nearly { pattern: self.parse(&pattern)?, condition, explain }))
            .collect::<Result<_, RuleError>>()?;
        let patterns: Vec<Pattern<ENode>> = self.patterns.iter().map(|text| self.parse(text)).collect::<Result<_, _>>()?;
        if let Replacement::Pattern(right) = &replacement {
            let unbound = right.vars().into_iter().find(|var| patterns.iter().any(|left| !left.vars().contains(var)));
            if let Some(var) = unbound {
                let why = format!("{var} is not bound on the left");
                return Err(RuleError { rule: self.name, pattern: right.to_string(), why });
            }
        }
        let Draft { name, doc, conditions, numerics, fuses, .. } = self;
        Ok(Rule { name, doc, patterns, conditions, nearly, numerics, fuses, replacement })
    }
}

impl Rule {
    /// Checks the conditions in order; assumptions made are returned.
    pub fn check(&self, site: &Site<'_>) -> Result<Vec<String>, Refusal> {
        let mut assumed = Vec::new();
        for condition in &self.conditions {
            match (condition.check)(site) {
                Verdict::Holds => {}
                Verdict::Assumed(claim) => assumed.push(claim),
                Verdict::Refused(why) => return Err(Refusal::new(condition.name, why)),
            }
        }
        Ok(assumed)
    }

    /// The right side, where it is a pattern and not built by code.
    pub fn right(&self) -> Option<&Pattern<ENode>> {
        match &self.replacement {
            Replacement::Pattern(pattern) => Some(pattern),
            Replacement::Build(_) => None,
        }
    }

    /// Builds the right side; nothing is merged yet.
    pub fn build(&self, site: &mut Site<'_>) -> Result<Id, Refusal> {
        match &self.replacement {
            Replacement::Build(build) => build(site),
            Replacement::Pattern(pattern) => site.instantiate(pattern),
        }
    }
}

/// A match: the class, the variables, and the e-graph to look around in and to build in.
pub struct Site<'a> {
    /// The e-graph.
    pub egraph: &'a mut EGraph,
    /// The class whose node matched.
    pub class: Id,
    /// What the pattern's variables stand for.
    pub subst: &'a Subst,
}

impl Site<'_> {
    /// The class of a variable. Panics where no pattern of the rule binds it, which is a mistake in the rule.
    pub fn id(&self, var: &str) -> Id {
        let found = var.parse::<Var>().ok().and_then(|var| self.subst.get(var).copied());
        self.egraph.find(found.unwrap_or_else(|| panic!("no pattern of the rule binds {var}")))
    }

    /// True where the pattern that matched binds a variable.
    pub fn binds(&self, var: &str) -> bool {
        var.parse::<Var>().is_ok_and(|var| self.subst.get(var).is_some())
    }

    /// What is known of a class's value.
    pub fn fact(&self, id: Id) -> Option<&Fact> {
        match &self.egraph[id].data.outputs[..] {
            [fact] => Some(fact),
            _ => None,
        }
    }

    /// The type of a class's value.
    pub fn ty_of(&self, id: Id) -> Option<&TensorType> {
        self.fact(id).map(|fact| &fact.ty)
    }

    /// The type of a variable's value.
    pub fn ty(&self, var: &str) -> Option<&TensorType> {
        self.ty_of(self.id(var))
    }

    /// The type of the matched value.
    pub fn result(&self) -> Option<&TensorType> {
        self.ty_of(self.class)
    }

    /// The shape of a variable's value; empty for what is no tensor.
    pub fn shape(&self, var: &str) -> Shape {
        self.ty(var).map_or_else(Shape::new, |ty| ty.shape.clone())
    }

    /// One extent of a variable's value.
    pub fn extent(&self, var: &str, dim: usize) -> Option<Dim> {
        self.ty(var).and_then(|ty| ty.shape.get(dim).cloned())
    }

    /// The rank of a variable's value.
    pub fn rank(&self, var: &str) -> Option<usize> {
        self.ty(var).map(TensorType::rank)
    }

    /// The dtype of a variable's value.
    pub fn dtype(&self, var: &str) -> Option<DType> {
        self.ty(var).map(|ty| ty.dtype)
    }

    /// An attribute that a variable stands for.
    pub fn attr<T: Field>(&self, var: &str) -> Option<T> {
        match &self.egraph[self.id(var)].data.leaf {
            Some(Head::Attr(attr)) => T::from_attr(attr),
            _ => None,
        }
    }

    /// A number that a variable stands for.
    pub fn scalar(&self, var: &str) -> Option<Scalar> {
        match &self.egraph[self.id(var)].data.leaf {
            Some(Head::Scalar(scalar)) => Some(*scalar),
            _ => None,
        }
    }

    /// True where a variable stands for an operand that is not given.
    pub fn absent(&self, var: &str) -> bool {
        self.egraph[self.id(var)].data.leaf == Some(Head::Absent)
    }

    /// The value `a` of a node `index(a, p)` of rows in the class, where p picks as many rows as `a` has.
    pub fn gathered_by(&self, class: Id, p: Id) -> Option<Id> {
        let axes = Attr::Axes(Axes::from_slice(&[0]));
        let rows = |id: Id| self.ty_of(id).and_then(|ty| ty.shape.first());
        self.egraph[class].nodes.iter().find_map(|node| match node.call() {
            Some((eglu_ir::OpCode::Index, &[a, by], &[attr]))
                if self.egraph.find(by) == self.egraph.find(p)
                    && rows(a) == rows(p)
                    && self.egraph[attr].data.leaf == Some(Head::Attr(axes.clone())) =>
            {
                Some(a)
            }
            _ => None,
        })
    }

    /// True where the class holds a node of that head.
    pub fn holds(&self, class: Id, head: &Head) -> bool {
        self.egraph[class].nodes.iter().any(|node| node.head == *head)
    }

    /// Adds an op, if it applies to its operands.
    pub fn call(&mut self, op: impl Into<Op>, operands: &[Id]) -> Result<Id, Refusal> {
        let op = op.into();
        facts_of(self.egraph, &op, operands).map_err(|why| Refusal::new("types", why))?;
        let mut children: Vec<Id> = operands.to_vec();
        for (_, attr) in op.attrs() {
            children.push(self.egraph.add(ENode::leaf(Head::Attr(attr))));
        }
        Ok(self.egraph.add(ENode::new(Head::Op(op.code()), children)))
    }

    /// Adds a leaf.
    pub fn leaf(&mut self, head: Head) -> Id {
        self.egraph.add(ENode::leaf(head))
    }

    /// Adds an output of an op that has several.
    pub fn output(&mut self, of: Id, index: u32) -> Id {
        self.egraph.add(ENode::new(Head::Output(index), [of]))
    }

    fn instantiate(&mut self, pattern: &Pattern<ENode>) -> Result<Id, Refusal> {
        let mut ids: Vec<Id> = Vec::with_capacity(pattern.ast.len());
        for node in &pattern.ast {
            let id = match node {
                ENodeOrVar::Var(var) => self.subst[*var],
                ENodeOrVar::ENode(node) => {
                    let mut node = node.clone();
                    for child in &mut node.children {
                        *child = ids[usize::from(*child)];
                    }
                    if let Some((_, operands, _)) = node.call() {
                        let op = op_of(self.egraph, &node).map_err(|why| Refusal::new("types", why))?;
                        facts_of(self.egraph, &op, operands).map_err(|why| Refusal::new("types", why))?;
                    }
                    self.egraph.add(node)
                }
            };
            ids.push(id);
        }
        ids.last().copied().ok_or_else(|| Refusal::new("pattern", "the right side is empty"))
    }
}
