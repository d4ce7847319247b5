//! Functionalisation: which names share a storage, and what each shows after a write through another.
//!
//! Archives of `torch.export.export` keep in-place ops, also through views. A graph here has immutable values. So every tensor
//! name is an [`AliasId`]: a storage, and the chain of views that leads from it to the name. A write through an alias computes
//! the storage's new contents by undoing its views one by one; a read through any alias of a storage written since applies its
//! views again. `torch.func.functionalize` works the same way (aten/src/ATen/FunctionalStorageImpl.h).

use super::number;
use crate::{
    DType, Dim, Graph, GraphError, Op, Operand, Value,
    ops::{Axes, Bitcast, Cat, Index, IndexPut, Iota, Permute, Pointwise, Reshape, Slice},
};
use smallvec::SmallVec;

/// One alias of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AliasId(u32);

/// All aliases of an import.
#[derive(Debug, Default)]
pub struct Aliases {
    aliases: Vec<Alias>,
    /// How often each storage was written.
    storages: Vec<u32>,
}

#[derive(Debug)]
struct Alias {
    storage: usize,
    /// What it is a view of; `None` for the storage itself.
    view_of: Option<View>,
    /// What it shows, as of this many writes to the storage.
    value: Value,
    version: u32,
}

/// How an alias shows another: an op of it, and of index tensors where it picks elements.
#[derive(Clone, Debug)]
struct View {
    of: AliasId,
    op: Op,
    indices: SmallVec<[Value; 2]>,
}

impl View {
    /// What it shows of `source`.
    fn apply(&self, graph: &mut Graph, source: Value, hint: &str) -> Result<Value, GraphError> {
        let operands = std::iter::once(source).chain(self.indices.iter().copied()).map(Operand::from);
        Ok(graph.add_call(hint, self.op.clone(), operands)?.into())
    }
}

/// Why a write does not reach its storage.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum WriteError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("it writes through a broadcast view, whose elements share places in memory")]
    Broadcast,
    #[error("it writes through `{0}`, which is no view that can be undone")]
    NoView(&'static str),
}

impl Aliases {
    /// A new storage that holds `value`.
    pub fn storage(&mut self, value: Value) -> AliasId {
        self.storages.push(0);
        self.push(Alias { storage: self.storages.len() - 1, view_of: None, value, version: 0 })
    }

    fn push(&mut self, alias: Alias) -> AliasId {
        self.aliases.push(alias);
        AliasId(self.aliases.len() as u32 - 1)
    }

    fn get(&self, id: AliasId) -> &Alias {
        &self.aliases[id.0 as usize]
    }

    /// A view of `of` by the view op `op`; new nodes are called after `hint`.
    pub fn view(&mut self, graph: &mut Graph, of: AliasId, op: Op, hint: &str) -> Result<AliasId, GraphError> {
        self.view_by(graph, View { of, op, indices: SmallVec::new() }, hint)
    }

    /// A view of some elements of `of`, such as a diagonal or overlapping windows: those at `indices` along `axes`.
    pub fn picked(
        &mut self,
        graph: &mut Graph,
        of: AliasId,
        axes: Axes,
        indices: &[Value],
        hint: &str,
    ) -> Result<AliasId, GraphError> {
        self.view_by(graph, View { of, op: Index { axes }.into(), indices: indices.into() }, hint)
    }

    fn view_by(&mut self, graph: &mut Graph, view: View, hint: &str) -> Result<AliasId, GraphError> {
        let source = self.read(graph, view.of, hint)?;
        let value = view.apply(graph, source, hint)?;
        let (storage, version) = (self.get(view.of).storage, self.storages[self.get(view.of).storage]);
        Ok(self.push(Alias { storage, view_of: Some(view), value, version }))
    }

    /// Notes another form of what the alias shows now, of the same type and the same values.
    pub fn show(&mut self, id: AliasId, value: Value) {
        self.aliases[id.0 as usize].value = value;
    }

    /// What the alias shows now.
    pub fn read(&mut self, graph: &mut Graph, id: AliasId, hint: &str) -> Result<Value, GraphError> {
        let current = self.storages[self.get(id).storage];
        let mut stale = Vec::new();
        let mut at = id;
        while self.get(at).version != current {
            let Some(view) = &self.get(at).view_of else { break };
            stale.push(at);
            at = view.of;
        }
        let mut value = self.get(at).value;
        for id in stale.into_iter().rev() {
            let Some(view) = &self.get(id).view_of else { continue };
            value = view.apply(graph, value, &format!("{hint}.view"))?;
            let alias = &mut self.aliases[id.0 as usize];
            (alias.value, alias.version) = (value, current);
        }
        Ok(value)
    }

    /// Makes the alias show `value`, and every other alias of its storage what follows from that.
    pub fn write(&mut self, graph: &mut Graph, id: AliasId, value: Value, hint: &str) -> Result<(), WriteError> {
        // The chain up to the storage is read before anything changes.
        let mut chain: SmallVec<[AliasId; 4]> = SmallVec::from_iter([id]);
        while let Some(view) = &self.get(chain[chain.len() - 1]).view_of {
            chain.push(view.of);
        }
        let mut contents: SmallVec<[Value; 4]> = SmallVec::from_iter([value]);
        for pair in chain.windows(2) {
            let before = self.read(graph, pair[1], hint)?;
            let Some(view) = &self.get(pair[0]).view_of else { continue };
            contents.push(undo(graph, view, before, contents[contents.len() - 1], hint)?);
        }
        let storage = self.get(id).storage;
        self.storages[storage] += 1;
        for (id, value) in chain.into_iter().zip(contents) {
            let alias = &mut self.aliases[id.0 as usize];
            (alias.value, alias.version) = (value, self.storages[storage]);
        }
        Ok(())
    }

    /// True if anything wrote to the alias's storage.
    pub fn written(&self, id: AliasId) -> bool {
        self.storages[self.get(id).storage] > 0
    }
}

/// What a tensor holds after its view has been overwritten with `value`; `before` is what it held.
fn undo(graph: &mut Graph, view: &View, before: Value, value: Value, hint: &str) -> Result<Value, WriteError> {
    match &view.op {
        Op::Reshape(_) => {
            let shape = graph.ty(before).shape.clone();
            Ok(graph.add_call(&format!("{hint}.back"), Reshape { shape }.into(), [value.into()])?.into())
        }
        Op::Permute(Permute { dims }) => {
            let mut inverse: Axes = dims.clone();
            for (to, &from) in dims.iter().enumerate() {
                inverse[from] = to;
            }
            Ok(graph.add_call(&format!("{hint}.back"), Permute { dims: inverse }.into(), [value.into()])?.into())
        }
        Op::Bitcast(_) => {
            let dtype = graph.ty(before).dtype;
            Ok(graph.add_call(&format!("{hint}.back"), Bitcast { dtype }.into(), [value.into()])?.into())
        }
        Op::Slice(slice) => Ok(overwrite_slice(graph, before, slice, value, hint)?),
        Op::Index(Index { axes }) => {
            let put = IndexPut { axes: axes.clone(), accumulate: false };
            let operands = [before, value].into_iter().chain(view.indices.iter().copied()).map(Operand::from);
            Ok(graph.add_call(&format!("{hint}.written"), put.into(), operands)?.into())
        }
        Op::Expand(_) => Err(WriteError::Broadcast),
        other => Err(WriteError::NoView(other.name())),
    }
}

/// `x` with the elements of `slice` replaced by `value`, which has the slice's type (`slice_scatter`).
pub fn overwrite_slice(graph: &mut Graph, x: Value, slice: &Slice, value: Value, hint: &str) -> Result<Value, GraphError> {
    let extent = graph.ty(x).shape[slice.dim].clone();
    let len = graph.ty(value).shape[slice.dim].clone();
    if slice.step != 1 {
        return overwrite_strided(graph, x, slice, len, value, hint);
    }
    let mut parts: SmallVec<[Operand; 3]> = SmallVec::new();
    let keep = |graph: &mut Graph, start: Dim, end: Dim| -> Result<Option<Operand>, GraphError> {
        if start == end {
            return Ok(None);
        }
        let kept = Slice { dim: slice.dim, start, end, step: 1 };
        Ok(Some(graph.add_call(&format!("{hint}.kept"), kept.into(), [x.into()])?.into()))
    };
    parts.extend(keep(graph, Dim::from(0), slice.start.clone())?);
    parts.push(value.into());
    parts.extend(keep(graph, slice.start.clone() + len, extent)?);
    match parts[..] {
        [_] => Ok(value),
        _ => Ok(graph.add_call(&format!("{hint}.written"), Cat { dim: slice.dim }.into(), parts)?.into()),
    }
}

/// Every `step`-th element replaced: the positions are written as indices.
fn overwrite_strided(
    graph: &mut Graph,
    x: Value,
    slice: &Slice,
    len: Dim,
    value: Value,
    hint: &str,
) -> Result<Value, GraphError> {
    let known = slice.start.as_const();
    let steps = Iota { len, start: known.unwrap_or(0), step: slice.step, dtype: DType::I64 };
    let mut positions: Value = graph.add_call(&format!("{hint}.positions"), steps.into(), [])?.into();
    if known.is_none() {
        let start = number::of_dim(graph, &slice.start, hint)?;
        positions = graph.add_call(&format!("{hint}.positions"), Pointwise::Add.into(), [positions.into(), start])?.into();
    }
    let put = IndexPut { axes: Axes::from_iter([slice.dim]), accumulate: false };
    Ok(graph.add_call(&format!("{hint}.written"), put.into(), [x.into(), value.into(), positions.into()])?.into())
}

#[cfg(test)]
mod tests;
