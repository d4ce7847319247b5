//! What programs behind products make: results that are stored, some of them together, and results that are reduced.

use super::super::{Axes, Contract, ExpertContract, InferError, ReduceKind, Types};
use crate::{DType, Dim, Ref, Shape, TensorType};

/// A program's results with how they are stored.
struct Epilogue<'a> {
    results: &'a [(Ref, DType)],
    packed: usize,
    folds: &'a [ReduceKind],
    groups: &'a Axes,
}

impl<'a> Epilogue<'a> {
    /// Results that share an output, that are outputs of their own, and that are reduced.
    fn split(&self) -> [&'a [(Ref, DType)]; 3] {
        let (stored, folded) = self.results.split_at(self.results.len().saturating_sub(self.folds.len()));
        let (packed, apart) = stored.split_at(self.packed.min(stored.len()));
        [packed, apart, folded]
    }

    /// Types of the outputs for products of this shape.
    fn outputs(&self, shape: &Shape) -> Result<Types, InferError> {
        let [packed, apart, folded] = self.split();
        let (folds, groups) = (self.folds.len(), self.groups.len());
        if groups != folds || folded.len() != folds {
            return Err(InferError(format!("{folds} reductions with {groups} groups of {} results", folded.len())));
        }
        if packed.len() != self.packed || self.packed == 1 {
            return Err(InferError(format!("{} of {} results cannot share an output", self.packed, packed.len() + apart.len())));
        }
        let (columns, rows) = shape.split_last().ok_or_else(|| InferError::new("a product has rows and columns"))?;
        let mut outputs = Types::new();
        if let Some(&(_, dtype)) = packed.first() {
            if packed.iter().any(|&(_, other)| other != dtype) {
                return Err(InferError::new("results that share an output have one dtype"));
            }
            let columns = columns.clone() * Dim::from(self.packed as i64);
            outputs.push(TensorType::new(dtype, rows.iter().cloned().chain([columns])));
        }
        outputs.extend(apart.iter().map(|&(_, dtype)| TensorType { dtype, shape: shape.clone() }));
        for ((&kind, &group), &(_, dtype)) in self.folds.iter().zip(self.groups).zip(folded) {
            if !matches!(kind, ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax | ReduceKind::Amin) || !dtype.is_float() {
                return Err(InferError(format!("{} of {dtype} is no reduction of accumulators", kind.name())));
            }
            let whole = columns.as_const().filter(|columns| group > 0 && columns % group as i64 == 0);
            match (group, whole) {
                (0, _) => outputs.push(TensorType::new(dtype, [columns.clone()])),
                (_, Some(columns)) => {
                    let each = Dim::from(columns / group as i64);
                    outputs.push(TensorType::new(dtype, rows.iter().cloned().chain([each])));
                }
                _ => return Err(InferError(format!("{columns} columns are no whole groups of {group}"))),
            }
        }
        Ok(outputs)
    }
}

impl Contract {
    /// One whose results are all outputs of their own.
    pub fn new(lanes: usize, program: impl Into<std::sync::Arc<crate::Program>>) -> Contract {
        Contract { lanes, packed: 0, interleaved: false, folds: Vec::new(), groups: Axes::new(), program: program.into() }
    }

    fn epilogue(&self) -> Epilogue<'_> {
        Epilogue { results: &self.program.results, packed: self.packed, folds: &self.folds, groups: &self.groups }
    }

    /// The program's results that share an output, those that are outputs of their own, and those that are reduced.
    pub fn results(&self) -> [&[(Ref, DType)]; 3] {
        self.epilogue().split()
    }

    /// Types of the outputs for products of this shape.
    pub(super) fn outputs(&self, shape: &Shape) -> Result<Types, InferError> {
        self.epilogue().outputs(shape)
    }
}

impl ExpertContract {
    fn epilogue(&self) -> Epilogue<'_> {
        Epilogue { results: &self.program.results, packed: self.packed, folds: &self.folds, groups: &self.groups }
    }

    /// The program's results that share an output, those that are outputs of their own, and those that are reduced.
    pub fn results(&self) -> [&[(Ref, DType)]; 3] {
        self.epilogue().split()
    }

    /// Types of the outputs for products of this shape.
    pub(super) fn outputs(&self, shape: &Shape) -> Result<Types, InferError> {
        // Rows come by expert, in no order that sums over all of them could be made in.
        if self.groups.contains(&0) {
            return Err(InferError::new("products by expert are reduced along their rows, not over all of them"));
        }
        self.epilogue().outputs(shape)
    }
}
