//! The tensors behind a graph's weight nodes: kept in the archive until asked for, read from safetensors, or drawn at random.

mod random;
mod stored;

pub use stored::Placement;
pub(crate) use stored::Stored;

use crate::{
    Graph, NodeKind, Tensor, TensorType,
    archive::Archive,
    reference::{self, ReferenceError},
    tensor::TensorError,
};
use indexmap::IndexMap;
use std::{path::Path, sync::Arc};

/// Why a weight cannot be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum WeightError {
    #[error("there is no weight `{0}`: give a file that has it with --weights FILE.safetensors")]
    Missing(String),
    #[error("the weight `{name}` cannot be read: {why}")]
    Refused { name: Arc<str>, why: Arc<str> },
    #[error("the weight `{name}` leaves its storage: {window} needs {needs} bytes, but `{file}` has {has}")]
    OutOfStorage { name: String, file: String, window: String, needs: String, has: u64 },
    #[error("the weight `{name}` cannot be read from the archive: {why}")]
    Damaged { name: String, why: String },
    #[error("the weight `{name}`: {source}")]
    Tensor { name: String, source: TensorError },
    #[error(transparent)]
    File(#[from] ReferenceError),
}

/// Where a weight is.
#[derive(Clone, Debug)]
enum Source {
    Tensor(Tensor),
    Stored(Stored),
    /// Known by name alone, with what to tell whoever asks for it.
    Refused(Arc<str>),
}

/// Weights by their fully qualified names.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    sources: IndexMap<Arc<str>, Source>,
}

impl Weights {
    /// The weight as a dense tensor: a window of the mapped file where its bytes are dense and aligned, else a copy.
    pub fn get(&self, path: &str) -> Result<Tensor, WeightError> {
        match self.sources.get_key_value(path) {
            None => Err(WeightError::Missing(path.into())),
            Some((_, Source::Tensor(tensor))) => Ok(tensor.clone()),
            Some((_, Source::Stored(stored))) => stored.load(path),
            Some((name, Source::Refused(why))) => Err(WeightError::Refused { name: name.clone(), why: why.clone() }),
        }
    }

    /// Sets a weight.
    pub fn insert(&mut self, path: impl Into<Arc<str>>, tensor: Tensor) {
        self.sources.insert(path.into(), Source::Tensor(tensor));
    }

    /// Sets a weight that lies in an archive: a window of its entry `file`. Nothing is read until it is asked for.
    pub fn insert_placed(
        &mut self,
        path: &str,
        archive: &Arc<Archive>,
        file: &str,
        place: &Placement,
    ) -> Result<(), WeightError> {
        self.insert_stored(path, Stored::new(archive, path, file, place)?);
        Ok(())
    }

    /// Where a weight lies that is in an archive: archive, entry and window.
    pub fn placement(&self, path: &str) -> Option<(&Arc<Archive>, &str, Placement)> {
        match self.sources.get(path) {
            Some(Source::Stored(stored)) => Some(stored.placement()),
            _ => None,
        }
    }

    pub(crate) fn insert_stored(&mut self, path: &str, stored: Stored) {
        self.sources.insert(path.into(), Source::Stored(stored));
    }

    pub(crate) fn refuse(&mut self, path: &str, why: &str) {
        self.sources.entry(path.into()).or_insert_with(|| Source::Refused(why.into()));
    }

    /// Takes over all weights of `other`, in place of those of the same name.
    pub fn extend(&mut self, other: Weights) {
        self.sources.extend(other.sources);
    }

    /// True if [`get`](Weights::get) has a tensor of that name.
    pub fn contains(&self, path: &str) -> bool {
        matches!(self.sources.get(path), Some(Source::Tensor(_) | Source::Stored(_)))
    }

    /// Names that can be had, in the archive's order.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.sources.iter().filter(|(_, source)| !matches!(source, Source::Refused(_))).map(|(name, _)| name)
    }

    /// The weights that the graph reads and that are not here, in the graph's order.
    pub fn missing(&self, graph: &Graph) -> Vec<Arc<str>> {
        let mut missing: Vec<Arc<str>> = Vec::new();
        for id in graph.node_ids() {
            if let NodeKind::Weight(path) = &graph.node(id).kind
                && !self.contains(path)
                && graph.use_count(id.into()) > 0
                && !missing.contains(path)
            {
                missing.push(path.clone());
            }
        }
        missing
    }

    /// Bytes of all weights, each as a dense tensor.
    pub fn bytes(&self) -> u64 {
        let bytes = |source: &Source| match source {
            Source::Tensor(tensor) => tensor.bytes().len() as u64,
            Source::Stored(stored) => stored.bytes(),
            Source::Refused(_) => 0,
        };
        self.sources.values().map(bytes).sum()
    }

    /// The weights of a safetensors file, mapped.
    pub fn from_safetensors(path: &Path) -> Result<Weights, WeightError> {
        let tensors = reference::read_tensors(path)?;
        let sources = tensors.into_iter().map(|(name, tensor)| (name.into(), Source::Tensor(tensor))).collect();
        Ok(Weights { sources })
    }

    /// Random weights for every weight node of the graph, the same for the same seed: normal, divided by the square root of the last
    /// extent, so that activations stay finite. 1-d tensors, scales of norms as a rule, lie around one, those named `bias` around zero;
    /// integers are zero.
    pub fn random(graph: &Graph, seed: u64) -> Result<Weights, WeightError> {
        let weight = |id| match &graph.node(id).kind {
            NodeKind::Weight(path) => Some((path, &graph.node(id).outputs[0])),
            _ => None,
        };
        Weights::random_of(graph.node_ids().filter_map(weight), seed)
    }

    /// [`Weights::random`] for weights of these names and types.
    pub fn random_of<'a>(
        types: impl IntoIterator<Item = (&'a Arc<str>, &'a TensorType)>,
        seed: u64,
    ) -> Result<Weights, WeightError> {
        let mut weights = Weights::default();
        for (path, ty) in types {
            if !weights.contains(path) {
                weights.insert(path.clone(), random::tensor(path, ty, seed)?);
            }
        }
        Ok(weights)
    }
}
