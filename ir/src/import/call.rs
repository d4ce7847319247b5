//! One node of the archive while it is translated: its arguments, with the schema's defaults, and what builders need.

use super::{
    ImportError,
    alias::{AliasId, WriteError},
    aten::Row,
    autocast, number,
    schema::{Argument, NodeJson, SymIntArgument},
    translate::{Binding, Scope, Translator},
};
use crate::{
    DType, Dim, GraphError, Op, Operand, Scalar, Shape, TensorType, Value,
    ops::{Axes, Cast, Expand, InferError, Reshape},
};
use smallvec::SmallVec;
use std::sync::Arc;

/// A node with everything that its builder may read or add to.
pub struct Call<'t, 'a> {
    pub translator: &'t mut Translator<'a>,
    pub scope: &'t mut Scope<'a>,
    pub node: &'a NodeJson,
    pub row: &'static Row,
    pub name: Arc<str>,
}

/// What a node computes.
#[derive(Debug)]
pub enum Out {
    /// A tensor in a storage of its own.
    Value(Value),
    Values(SmallVec<[Value; 2]>),
    /// A tensor that shares its storage with others.
    Alias(AliasId),
    Aliases(Vec<AliasId>),
    /// A symbolic integer.
    Int(Dim),
    /// What a sub-graph returns.
    Bindings(Vec<Binding>),
}

/// Why a node is not translated.
#[derive(Debug)]
pub enum Fault {
    /// This use of the op has no counterpart; others may. Collected over the whole graph.
    Unsupported(String),
    /// The node is wrong.
    Bad(String),
    /// Something about the archive is.
    Import(Box<ImportError>),
}

impl From<GraphError> for Fault {
    fn from(error: GraphError) -> Fault {
        match error {
            GraphError::Infer { op, source, .. } => Fault::Bad(format!("{op}: {source}")),
            other => Fault::Bad(other.to_string()),
        }
    }
}

impl From<InferError> for Fault {
    fn from(error: InferError) -> Fault {
        Fault::Bad(error.to_string())
    }
}

impl From<WriteError> for Fault {
    fn from(error: WriteError) -> Fault {
        match error {
            WriteError::Graph(error) => error.into(),
            other => Fault::Unsupported(other.to_string()),
        }
    }
}

impl From<ImportError> for Fault {
    fn from(error: ImportError) -> Fault {
        Fault::Import(Box::new(error))
    }
}

/// What building a node gives.
pub type Built<T = Out> = Result<T, Fault>;

/// The fault of an argument that is not of the kind wanted.
fn wrong<T>(name: &str, want: &str, got: &Argument) -> Built<T> {
    Err(Fault::Bad(format!("the argument `{name}` must be {want}, not {}", got.kind())))
}

impl<'a> Call<'_, 'a> {
    /// Runs the row's builder; in-place rows then write its result into `self`.
    pub fn build(&mut self) -> Built {
        for input in &self.node.inputs {
            if !input.name.is_empty() && !self.row.has(&input.name) {
                return Err(Fault::Unsupported(format!("the argument `{}` is not known", input.name)));
            }
        }
        let out = (self.row.build)(self)?;
        match (self.row.in_place, out) {
            (true, Out::Value(value)) => {
                let target = self.alias("self")?;
                let ty = self.alias_ty(target)?;
                let value = self.cast(value, ty.dtype)?;
                let value = self.expand(value, &ty.shape)?;
                let name = self.name.clone();
                self.translator.aliases.write(&mut self.translator.graph, target, value, &name)?;
                Ok(Out::Alias(target))
            }
            (_, out) => Ok(out),
        }
    }

    /// The argument, or its default.
    pub fn argument(&self, name: &str) -> Built<&'a Argument> {
        if let Some(given) = self.node.inputs.iter().find(|input| input.name == name) {
            return Ok(&given.arg);
        }
        self.row.default(name).ok_or_else(|| Fault::Bad(format!("the argument `{name}` is missing")))
    }

    /// True unless the argument is none.
    pub fn given(&self, name: &str) -> Built<bool> {
        Ok(!matches!(self.argument(name)?, Argument::None))
    }

    fn named_alias(&self, name: &str) -> Built<AliasId> {
        match self.scope.lookup(name) {
            Some(Binding::Tensor(alias)) => Ok(*alias),
            Some(_) => Err(Fault::Bad(format!("`{name}` is no tensor"))),
            None => Err(ImportError::Undefined { node: self.name.clone(), name: name.into() }.into()),
        }
    }

    fn named_dim(&self, argument: &SymIntArgument) -> Built<Dim> {
        let name = match argument {
            SymIntArgument::AsInt(value) => return Ok(Dim::from(*value)),
            SymIntArgument::AsName(name) => name,
        };
        match self.scope.lookup(name) {
            Some(Binding::Int(dim)) => Ok(dim.clone()),
            Some(_) => Err(Fault::Bad(format!("`{name}` is no integer"))),
            None => Err(ImportError::Undefined { node: self.name.clone(), name: name.clone() }.into()),
        }
    }

    /// The name of a tensor argument.
    pub fn tensor_name(&self, name: &str) -> Built<&'a str> {
        match self.argument(name)? {
            Argument::Tensor(tensor) => Ok(tensor),
            other => wrong(name, "a tensor", other),
        }
    }

    /// A tensor argument, with what it shares.
    pub fn alias(&self, name: &str) -> Built<AliasId> {
        self.named_alias(self.tensor_name(name)?)
    }

    /// What an alias shows now.
    pub fn read(&mut self, alias: AliasId) -> Built<Value> {
        Ok(self.translator.aliases.read(&mut self.translator.graph, alias, &self.name)?)
    }

    /// A tensor argument's value as of now.
    pub fn tensor(&mut self, name: &str) -> Built<Value> {
        let alias = self.alias(name)?;
        let value = self.read(alias)?;
        self.under_autocast(value)
    }

    /// An operand as autocast converts it before the op runs.
    fn under_autocast(&mut self, value: Value) -> Built<Value> {
        let of = self.ty(value).dtype;
        if !self.scope.autocast || self.row.in_place {
            return Ok(value);
        }
        let Some(result) = self.declared(0)? else { return Ok(value) };
        match autocast::operand(&self.node.target, of, result.dtype) {
            Some(dtype) => self.cast(value, dtype),
            None => Ok(value),
        }
    }

    /// A tensor argument that may be none.
    pub fn optional(&mut self, name: &str) -> Built<Option<Value>> {
        if self.given(name)? { self.tensor(name).map(Some) } else { Ok(None) }
    }

    /// A list of tensors.
    pub fn tensors(&mut self, name: &str) -> Built<Vec<Value>> {
        self.optional_tensors(name)?.into_iter().map(|t| t.ok_or_else(|| Fault::Bad(format!("`{name}` has a gap")))).collect()
    }

    /// A list of tensors, some of which may be none.
    pub fn optional_tensors(&mut self, name: &str) -> Built<Vec<Option<Value>>> {
        let names: Vec<Option<&str>> = match self.argument(name)? {
            Argument::Tensors(names) => names.iter().map(|name| Some(name.as_str())).collect(),
            Argument::OptionalTensors(names) => names.iter().map(Option::as_deref).collect(),
            other => return wrong(name, "a list of tensors", other),
        };
        let mut values = Vec::with_capacity(names.len());
        for name in names {
            values.push(match name {
                Some(name) => {
                    let value = self.named_alias(name).and_then(|alias| self.read(alias))?;
                    Some(self.under_autocast(value)?)
                }
                None => None,
            });
        }
        Ok(values)
    }

    /// A number, if one is given.
    pub fn number(&self, name: &str) -> Built<Option<Scalar>> {
        Ok(Some(match self.argument(name)? {
            Argument::Int(value) => Scalar::Int(*value),
            Argument::Float(value) => Scalar::Float(*value),
            Argument::Bool(value) => Scalar::Bool(*value),
            Argument::None => return Ok(None),
            Argument::SymInt(symbol) => match self.named_dim(symbol)?.as_const() {
                Some(value) => Scalar::Int(value),
                None => return Err(Fault::Unsupported(format!("`{name}` depends on a dynamic size"))),
            },
            other => return wrong(name, "a number", other),
        }))
    }

    /// A number.
    pub fn scalar(&self, name: &str) -> Built<Scalar> {
        self.number(name)?.ok_or_else(|| Fault::Bad(format!("the argument `{name}` is missing")))
    }

    /// A number as a float.
    pub fn float(&self, name: &str) -> Built<f64> {
        self.scalar(name).map(Scalar::as_f64)
    }

    /// A tensor or a number.
    pub fn operand(&mut self, name: &str) -> Built<Operand> {
        match self.argument(name)? {
            Argument::Tensor(_) => self.tensor(name).map(Operand::from),
            Argument::SymInt(symbol) => {
                let dim = self.named_dim(symbol)?;
                self.size(&dim)
            }
            _ => self.scalar(name).map(Operand::from),
        }
    }

    /// A size as an operand: a number, or a 0-d tensor where it is dynamic.
    pub fn size(&mut self, dim: &Dim) -> Built<Operand> {
        Ok(number::of_dim(&mut self.translator.graph, dim, &self.name)?)
    }

    /// An integer that may be symbolic, if one is given.
    pub fn optional_dim(&self, name: &str) -> Built<Option<Dim>> {
        match self.argument(name)? {
            Argument::None => Ok(None),
            Argument::Int(value) => Ok(Some(Dim::from(*value))),
            Argument::SymInt(symbol) => self.named_dim(symbol).map(Some),
            other => wrong(name, "an integer", other),
        }
    }

    /// An integer that may be symbolic.
    pub fn dim(&self, name: &str) -> Built<Dim> {
        self.optional_dim(name)?.ok_or_else(|| Fault::Bad(format!("the argument `{name}` is missing")))
    }

    /// An integer known at import.
    pub fn int(&self, name: &str) -> Built<i64> {
        let dim = self.dim(name)?;
        dim.as_const().ok_or_else(|| Fault::Unsupported(format!("`{name}` depends on the dynamic size {dim}")))
    }

    /// A list of integers that may be symbolic; a single one counts as a list.
    pub fn dims(&self, name: &str) -> Built<Vec<Dim>> {
        match self.argument(name)? {
            Argument::Ints(list) => Ok(list.iter().map(|&value| Dim::from(value)).collect()),
            Argument::SymInts(list) => list.iter().map(|item| self.named_dim(item)).collect(),
            Argument::Int(_) | Argument::SymInt(_) => Ok(vec![self.dim(name)?]),
            // An empty list has no element to tell its kind by.
            Argument::Tensors(list) if list.is_empty() => Ok(Vec::new()),
            other => wrong(name, "a list of integers", other),
        }
    }

    /// A list of integers known at import, if one is given.
    pub fn optional_ints(&self, name: &str) -> Built<Option<Vec<i64>>> {
        if !self.given(name)? {
            return Ok(None);
        }
        let known = |dim: Dim| dim.as_const().ok_or_else(|| Fault::Unsupported(format!("`{name}` depends on the size {dim}")));
        self.dims(name)?.into_iter().map(known).collect::<Built<_>>().map(Some)
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> Built<bool> {
        match self.argument(name)? {
            Argument::Bool(value) => Ok(*value),
            Argument::Int(value) => Ok(*value != 0),
            Argument::None => Ok(false),
            other => wrong(name, "true or false", other),
        }
    }

    /// A list of truth values; empty for none.
    pub fn flags(&self, name: &str) -> Built<Vec<bool>> {
        match self.argument(name)? {
            Argument::Bools(list) => Ok(list.clone()),
            Argument::None => Ok(Vec::new()),
            other => wrong(name, "a list of truth values", other),
        }
    }

    /// A text; empty for none.
    pub fn text(&self, name: &str) -> Built<&'a str> {
        match self.argument(name)? {
            Argument::Str(text) => Ok(text),
            Argument::None => Ok(""),
            other => wrong(name, "a text", other),
        }
    }

    /// A dtype, if one is given.
    pub fn dtype(&self, name: &str) -> Built<Option<DType>> {
        match self.argument(name)? {
            Argument::None => Ok(None),
            Argument::DType(code) => match DType::from_export_code(*code) {
                Some(dtype) => Ok(Some(dtype)),
                None => Err(Fault::Unsupported(format!("the dtype number {code}"))),
            },
            other => wrong(name, "a dtype", other),
        }
    }

    /// A position among `rank` dims, negative ones counted from the end; a 0-d tensor counts as having one dim.
    pub fn axis(&self, name: &str, rank: usize) -> Built<usize> {
        position(self.int(name)?, rank)
    }

    /// Positions among `rank` dims; `None` where no list is given.
    pub fn axes(&self, name: &str, rank: usize) -> Built<Option<Axes>> {
        let Some(list) = self.optional_ints(name)? else { return Ok(None) };
        let mut axes = Axes::new();
        for dim in list {
            let axis = position(dim, rank)?;
            if axes.contains(&axis) {
                return Err(Fault::Bad(format!("dim {dim} appears twice in `{name}`")));
            }
            axes.push(axis);
        }
        axes.sort_unstable();
        Ok(Some(axes))
    }

    /// Type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        self.translator.graph.ty(value)
    }

    /// Type of what an alias shows.
    pub fn alias_ty(&mut self, alias: AliasId) -> Built<TensorType> {
        let value = self.read(alias)?;
        Ok(self.ty(value).clone())
    }

    /// The type that the archive declares for the node's result number `i`.
    pub fn declared(&mut self, i: usize) -> Built<Option<TensorType>> {
        let name = self.node.outputs.iter().flat_map(|output| match output {
            Argument::Tensor(name) => std::slice::from_ref(name),
            Argument::Tensors(names) => names.as_slice(),
            _ => &[],
        });
        match name.clone().nth(i) {
            Some(name) => Ok(self.translator.declared(self.scope, name)?),
            None => Ok(None),
        }
    }

    /// Adds an op.
    pub fn op(&mut self, op: impl Into<Op>, operands: impl IntoIterator<Item = Operand>) -> Built<Value> {
        Ok(self.ops(op, operands)?.into())
    }

    /// Adds an op of several outputs.
    pub fn ops(&mut self, op: impl Into<Op>, operands: impl IntoIterator<Item = Operand>) -> Built<crate::NodeId> {
        let op = op.into();
        let hint = format!("{}.{}", self.name, op.name());
        Ok(self.translator.graph.add_call(&hint, op, operands)?)
    }

    /// A view of an alias; a view that changes nothing is the alias itself.
    pub fn view(&mut self, of: AliasId, op: impl Into<Op>) -> Built<AliasId> {
        let op = op.into();
        let value = self.read(of)?;
        let nothing = match &op {
            Op::Reshape(reshape) => reshape.shape == self.ty(value).shape,
            Op::Expand(expand) => expand.shape == self.ty(value).shape,
            Op::Permute(permute) => permute.dims.iter().copied().eq(0..self.ty(value).rank()),
            Op::Slice(slice) => slice.step == 1 && slice.start.is(0) && self.ty(value).shape.get(slice.dim) == Some(&slice.end),
            _ => false,
        };
        if nothing {
            return Ok(of);
        }
        let hint = format!("{}.{}", self.name, op.name());
        Ok(self.translator.aliases.view(&mut self.translator.graph, of, op, &hint)?)
    }

    /// A view of the elements at `indices` along `axes`.
    pub fn picked(&mut self, of: AliasId, axes: &[usize], indices: &[Value]) -> Built<AliasId> {
        let hint = format!("{}.picked", self.name);
        let axes = axes.iter().copied().collect();
        Ok(self.translator.aliases.picked(&mut self.translator.graph, of, axes, indices, &hint)?)
    }

    /// Conversion; nothing where the dtype is right already.
    pub fn cast(&mut self, value: Value, dtype: DType) -> Built<Value> {
        if self.ty(value).dtype == dtype {
            return Ok(value);
        }
        self.op(Cast { dtype }, [value.into()])
    }

    /// A 0-d tensor as a vector of one element, as which PyTorch counts it along a dim; others as they are.
    pub fn lines(&mut self, value: Value) -> Built<Value> {
        match self.ty(value).rank() {
            0 => self.op(Reshape { shape: Shape::from_iter([Dim::from(1)]) }, [value.into()]),
            _ => Ok(value),
        }
    }

    /// Broadcasting; nothing where the shape is right already.
    pub fn expand(&mut self, value: Value, shape: &Shape) -> Built<Value> {
        if self.ty(value).shape == *shape {
            return Ok(value);
        }
        self.op(Expand { shape: shape.clone() }, [value.into()])
    }
}

fn position(dim: i64, rank: usize) -> Built<usize> {
    let rank = rank.max(1) as i64;
    if dim < -rank || dim >= rank {
        return Err(Fault::Bad(format!("dim {dim} is out of range for {rank} dims")));
    }
    Ok(dim.rem_euclid(rank) as usize)
}
