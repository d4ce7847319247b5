//! From the nodes of an archive to those of a [`Graph`]: one node at a time, in the archive's order.

use super::{
    ImportError, UnsupportedTarget,
    alias::{AliasId, Aliases},
    aten,
    call::{Call, Fault, Out},
    schema::{Argument, GraphJson, NodeJson, SymInt, SymIntArgument, TensorMeta},
    srepr,
};
use crate::dim::bounds::simplified;
use crate::{Bindings, DType, Dim, Graph, NodeId, SymbolRange, TensorType, Value};
use indexmap::IndexMap;
use std::{collections::HashMap, sync::Arc};

/// What a name of the archive stands for.
#[derive(Clone, Debug)]
pub enum Binding {
    /// A tensor.
    Tensor(AliasId),
    /// A symbolic integer.
    Int(Dim),
    /// Something that no tensor depends on: a condition, or an input that is no tensor.
    Ignored,
    /// A result of a node that could not be translated.
    Unknown,
}

/// The names of one graph of the archive; sub-graphs have their own.
#[derive(Debug)]
pub struct Scope<'a> {
    pub json: &'a GraphJson,
    names: HashMap<&'a str, Binding>,
    /// Goes before node names: the outer node's, for a sub-graph.
    prefix: String,
    /// Whether PyTorch converts operands on its own.
    pub autocast: bool,
}

/// Translates an archive's graph.
#[derive(Debug, Default)]
pub struct Translator<'a> {
    pub graph: Graph,
    pub aliases: Aliases,
    expressions: HashMap<&'a str, Dim>,
    /// Symbols for which something else is written.
    pub replaced: HashMap<String, Dim>,
    unsupported: IndexMap<(Arc<str>, Option<String>), UnsupportedTarget>,
}

impl<'a> Scope<'a> {
    /// An empty scope for the names of `json`.
    pub fn new(json: &'a GraphJson, prefix: impl Into<String>) -> Scope<'a> {
        Scope { json, names: HashMap::with_capacity(json.nodes.len()), prefix: prefix.into(), autocast: false }
    }

    /// What the name stands for.
    pub fn lookup(&self, name: &str) -> Option<&Binding> {
        self.names.get(name)
    }

    /// Gives a name its meaning; each name has one.
    pub fn define(&mut self, name: &'a str, binding: Binding, node: &str) -> Result<(), ImportError> {
        match self.names.insert(name, binding) {
            None => Ok(()),
            Some(_) => Err(ImportError::Duplicate { node: node.into(), name: name.into() }),
        }
    }
}

impl<'a> Translator<'a> {
    /// A translator into an empty graph.
    pub fn new(name: &str) -> Translator<'a> {
        Translator { graph: Graph::new(name), ..Translator::default() }
    }

    /// The dim of a size of the archive.
    pub fn dim(&mut self, size: &'a SymInt, place: &str) -> Result<Dim, ImportError> {
        let text = match size {
            SymInt::AsInt(value) => return Ok(Dim::from(*value)),
            SymInt::AsExpr(expr) => expr.expr_str.as_str(),
        };
        if let Some(dim) = self.expressions.get(text) {
            return Ok(dim.clone());
        }
        let dim = srepr::parse(text, &self.replaced).map_err(|why| ImportError::Expression {
            place: place.into(),
            text: text.chars().take(200).collect(),
            why,
        })?;
        let dim = self.simplified(&dim);
        self.expressions.insert(text, dim.clone());
        Ok(dim)
    }

    /// The dim in the form that the ranges of its symbols allow, so that equal ones compare equal.
    pub fn simplified(&self, dim: &Dim) -> Dim {
        simplified(dim, &self.graph.symbols)
    }

    /// The type that the archive declares for `name`, if it does.
    pub fn declared(&mut self, scope: &Scope<'a>, name: &str) -> Result<Option<TensorType>, ImportError> {
        let json: &'a GraphJson = scope.json;
        json.tensor_values.get(name).map(|meta| self.tensor_type(meta, name)).transpose()
    }

    /// The type of a tensor of the archive.
    pub fn tensor_type(&mut self, meta: &'a TensorMeta, name: &str) -> Result<TensorType, ImportError> {
        let refuse = |what: String| ImportError::Tensor { place: format!("`{name}`"), what };
        let dtype = DType::from_export_code(meta.dtype).ok_or_else(|| refuse(format!("the dtype number {}", meta.dtype)))?;
        if meta.layout.is_some_and(|layout| layout != 7) {
            return Err(refuse("a sparse or packed layout".into()));
        }
        let shape: Vec<Dim> = meta.sizes.iter().map(|size| self.dim(size, name)).collect::<Result<_, _>>()?;
        let elements = shape.iter().filter_map(Dim::as_const).try_fold(dtype.size() as i64, |n, d| n.checked_mul(d.max(1)));
        if elements.is_none() || shape.iter().any(|dim| dim.as_const().is_some_and(|d| d < 0)) {
            return Err(refuse(format!("the size {shape:?}")));
        }
        Ok(TensorType::new(dtype, shape))
    }

    /// Translates all nodes of a scope.
    pub fn nodes(&mut self, scope: &mut Scope<'a>) -> Result<(), ImportError> {
        let json: &'a GraphJson = scope.json;
        json.nodes.iter().try_for_each(|node| self.node(scope, node))
    }

    fn node(&mut self, scope: &mut Scope<'a>, node: &'a NodeJson) -> Result<(), ImportError> {
        let target: Arc<str> = node.target.trim_start_matches("torch.ops.").into();
        let local = node.name.as_deref().or_else(|| output_names(&node.outputs).next()).unwrap_or(&target);
        let name: Arc<str> = format!("{}{local}", scope.prefix).into();
        let Some(row) = aten::lookup(&target) else {
            self.refuse(&target, &name, None);
            return define_all(scope, node, Binding::Unknown, &name);
        };
        if row.is_dropped() {
            return define_all(scope, node, Binding::Ignored, &name);
        }
        let mut unknown = false;
        for input in &node.inputs {
            for read in input_names(&input.arg) {
                match scope.lookup(read) {
                    None => return Err(ImportError::Undefined { node: name.clone(), name: read.into() }),
                    Some(binding) => unknown |= matches!(binding, Binding::Unknown),
                }
            }
        }
        if unknown {
            return define_all(scope, node, Binding::Unknown, &name);
        }
        let first = self.graph.len();
        let mut call = Call { translator: self, scope, node, row, name: name.clone() };
        let out = match call.build() {
            Ok(out) => out,
            Err(Fault::Unsupported(why)) => {
                self.refuse(&target, &name, Some(why));
                return define_all(scope, node, Binding::Unknown, &name);
            }
            Err(Fault::Import(error)) => return Err(*error),
            Err(Fault::Bad(why)) => return Err(ImportError::Node { node: name, target, why }),
        };
        self.bind(scope, node, &name, &target, out, first)
    }

    /// Notes a node that has no counterpart; the import goes on, to find the others.
    fn refuse(&mut self, target: &Arc<str>, node: &Arc<str>, why: Option<String>) {
        let entry = self.unsupported.entry((target.clone(), why.clone()));
        let (target, node) = (target.clone(), node.clone());
        entry.or_insert(UnsupportedTarget { target, node, count: 0, why }).count += 1;
    }

    /// Fails if any node had no counterpart, with all of them.
    pub fn check_supported(&mut self) -> Result<(), ImportError> {
        if self.unsupported.is_empty() {
            return Ok(());
        }
        let mut all: Vec<UnsupportedTarget> = std::mem::take(&mut self.unsupported).into_values().collect();
        all.sort_by(|a, b| a.target.cmp(&b.target));
        Err(ImportError::Unsupported(all))
    }

    /// Defines a node's results, after checking them against the archive's types.
    fn bind(
        &mut self,
        scope: &mut Scope<'a>,
        node: &'a NodeJson,
        name: &Arc<str>,
        target: &Arc<str>,
        out: Out,
        first: usize,
    ) -> Result<(), ImportError> {
        let results: Vec<Binding> = match out {
            Out::Value(value) => vec![Binding::Tensor(self.aliases.storage(value))],
            Out::Values(values) => values.into_iter().map(|v| Binding::Tensor(self.aliases.storage(v))).collect(),
            Out::Alias(alias) => vec![Binding::Tensor(alias)],
            Out::Aliases(aliases) => aliases.into_iter().map(Binding::Tensor).collect(),
            Out::Int(dim) => vec![Binding::Int(dim)],
            Out::Bindings(bindings) => bindings,
        };
        for id in first..self.graph.len() {
            self.graph.set_origins(NodeId::new(id), [name.clone()]);
        }
        let outputs: Vec<Option<&'a str>> = node.outputs.iter().flat_map(results_of).collect();
        if outputs.len() > results.len() {
            let why = format!("it has {} results, the archive names {}", results.len(), outputs.len());
            return Err(ImportError::Node { node: name.clone(), target: target.clone(), why });
        }
        for (output, binding) in outputs.into_iter().zip(results) {
            let Some(output) = output else { continue };
            if let Binding::Tensor(alias) = binding {
                let hint = format!("{}{output}", scope.prefix);
                let value = self.read(alias, &hint, name, target)?;
                self.name_value(value, &hint, name, first);
                self.check(scope, output, value, name, target)?;
            }
            scope.define(output, binding, name)?;
        }
        Ok(())
    }

    fn read(&mut self, alias: AliasId, hint: &str, node: &Arc<str>, target: &Arc<str>) -> Result<Value, ImportError> {
        let failed = |e: crate::GraphError| ImportError::Node { node: node.clone(), target: target.clone(), why: e.to_string() };
        self.aliases.read(&mut self.graph, alias, hint).map_err(failed)
    }

    /// The node that computes a result takes the archive's name for it; helper nodes keep names with a dot.
    fn name_value(&mut self, value: Value, output: &str, node: &str, first: usize) {
        let computed = self.graph.node(value.node);
        let several = computed.outputs.len() > 1;
        if value.node.index() >= first && !(several && &*computed.name == node) {
            self.graph.rename(value.node, if several { node } else { output });
        }
    }

    fn check(
        &mut self,
        scope: &Scope<'a>,
        output: &str,
        value: Value,
        node: &Arc<str>,
        target: &Arc<str>,
    ) -> Result<(), ImportError> {
        let Some(declared) = self.declared(scope, output)? else { return Ok(()) };
        let inferred = self.graph.ty(value);
        let agree = inferred.dtype == declared.dtype
            && inferred.rank() == declared.rank()
            && inferred.shape.iter().zip(&declared.shape).all(|(a, b)| same_dim(a, b, &self.graph.symbols));
        if agree {
            return Ok(());
        }
        let (inferred, declared, output) = (Box::new(inferred.clone()), Box::new(declared), output.into());
        Err(ImportError::TypeMismatch { node: node.clone(), target: target.clone(), output, inferred, declared })
    }
}

/// True if two dims are equal, by their form or else on sample values of their symbols: sympy writes some sums in forms
/// that the canonical polynomial does not bring together, such as `s - (s + 1)//2` for `s//2`.
pub fn same_dim(a: &Dim, b: &Dim, ranges: &IndexMap<Arc<str>, SymbolRange>) -> bool {
    if a == b {
        return true;
    }
    if a.as_const().is_some() && b.as_const().is_some() {
        return false;
    }
    let mut symbols = indexmap::IndexSet::new();
    a.collect_symbols(&mut symbols);
    b.collect_symbols(&mut symbols);
    [0, 1, 2, 3, 5, 7, 11, 16, 33, 100].iter().all(|&offset| {
        let sample = |(i, symbol): (usize, &Arc<str>)| {
            let range = ranges.get(symbol).copied().unwrap_or(SymbolRange { min: 1, max: None });
            let value = range.min.saturating_add(offset + 3 * i as i64);
            (symbol.clone(), value.min(range.max.unwrap_or(i64::MAX)))
        };
        let bindings: Bindings = symbols.iter().enumerate().map(sample).collect();
        matches!((a.eval(&bindings), b.eval(&bindings)), (Ok(a), Ok(b)) if a == b)
    })
}

fn define_all<'a>(scope: &mut Scope<'a>, node: &'a NodeJson, binding: Binding, name: &str) -> Result<(), ImportError> {
    output_names(&node.outputs).try_for_each(|output| scope.define(output, binding.clone(), name))
}

/// The names that an output binds, in order; `None` where the archive leaves a result out.
fn results_of(output: &Argument) -> Vec<Option<&str>> {
    match output {
        Argument::Tensor(name) => vec![Some(name)],
        Argument::Tensors(names) => names.iter().map(|name| Some(name.as_str())).collect(),
        Argument::OptionalTensors(names) => names.iter().map(Option::as_deref).collect(),
        Argument::SymInt(SymIntArgument::AsName(name)) | Argument::SymBool(Some(name)) => vec![Some(name)],
        _ => vec![None],
    }
}

fn output_names(outputs: &[Argument]) -> impl Iterator<Item = &str> {
    outputs.iter().flat_map(results_of).flatten()
}

/// The names that an argument reads.
fn input_names(argument: &Argument) -> Vec<&str> {
    match argument {
        Argument::SymInts(list) => list
            .iter()
            .filter_map(|item| match item {
                SymIntArgument::AsName(name) => Some(name.as_str()),
                SymIntArgument::AsInt(_) => None,
            })
            .collect(),
        other => results_of(other).into_iter().flatten().collect(),
    }
}
