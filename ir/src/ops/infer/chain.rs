//! Chains of reductions.

use super::{
    broadcast, check_axis,
    pointwise::{broadcast_all, check_params},
    reduce::reduced,
};
use crate::{
    DType, Dim, Program, Shape, TensorType,
    ops::{Args, Cost, InferError, OpDef, OperandType, ReduceChain, Types, cost::instructions},
};

impl ReduceChain {
    /// The dtypes of a prologue's parameters: operands, the position, and what the first `passes` gave.
    fn params(&self, operands: &[DType], passes: usize) -> Vec<DType> {
        let stats = self.epilogues[..passes].iter().flat_map(|epilogue| epilogue.results.iter().map(|&(_, dtype)| dtype));
        operands.iter().copied().chain([DType::I32]).chain(stats).collect()
    }

    /// How many values the passes give each line.
    pub fn stats(&self) -> usize {
        self.epilogues.iter().map(|epilogue| epilogue.results.len()).sum()
    }

    /// Checks a pass's epilogue; `reduced` are its first parameters' number, and operands that have no one element for each line must not be read.
    fn check_epilogue(
        &self,
        epilogue: &Program,
        reduced: usize,
        params: &[DType],
        operands: &[&TensorType],
        lines: &[Dim],
    ) -> Result<(), InferError> {
        if epilogue.params.len() < reduced {
            return Err(InferError(format!("{reduced} reduced values for an epilogue of {} parameters", epilogue.params.len())));
        }
        let dtypes: Vec<DType> = epilogue.params[..reduced].iter().chain(params).copied().collect();
        check_params(epilogue, dtypes.into_iter())?;
        let read = epilogue.used();
        for (i, operand) in operands.iter().enumerate().filter(|&(i, _)| read[reduced + i]) {
            if broadcast(lines, &operand.shape)?[..] != *lines {
                return Err(InferError(format!("operand {i}, {operand}, has more than one element for each line")));
            }
        }
        if read[reduced + operands.len()] {
            return Err(InferError("a line has no one position".into()));
        }
        Ok(())
    }
}

impl OpDef for ReduceChain {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let types: Vec<&TensorType> = (0..operands.len()).map(|i| args.tensor(i, "x")).collect::<Result<_, _>>()?;
        let full = broadcast_all(operands)?;
        let whole = TensorType { dtype: DType::Bool, shape: full.clone() };
        for &dim in &self.dims {
            check_axis(dim, &whole)?;
        }
        if self.prologues.len() != self.epilogues.len() || self.prologues.is_empty() {
            return Err(InferError(format!("{} prologues and {} epilogues", self.prologues.len(), self.epilogues.len())));
        }
        let lines = reduced(&full, &self.dims, true);
        let dtypes: Vec<DType> = types.iter().map(|ty| ty.dtype).collect();
        let mut kinds = self.kinds.len();
        for (pass, (prologue, epilogue)) in self.prologues.iter().zip(&self.epilogues).enumerate() {
            let params = self.params(&dtypes, pass);
            check_params(prologue, params.iter().copied())?;
            kinds = kinds.checked_sub(prologue.results.len()).ok_or_else(|| InferError::new("more values than reductions"))?;
            self.check_epilogue(epilogue, prologue.results.len(), &params, &types, &lines)?;
        }
        if kinds != 0 {
            return Err(InferError(format!("{kinds} more reductions than values")));
        }
        check_params(&self.end, self.params(&dtypes, self.epilogues.len()).into_iter())?;
        let stats: Vec<DType> =
            self.epilogues.iter().flat_map(|epilogue| epilogue.results.iter().map(|&(_, dtype)| dtype)).collect();
        let mut results = Types::new();
        for &kept in &self.kept {
            let dtype = *stats.get(kept).ok_or_else(|| InferError(format!("there is no value {kept} of {}", stats.len())))?;
            results.push(TensorType { dtype, shape: lines.clone() });
        }
        results.extend(self.end.results.iter().map(|&(_, dtype)| TensorType { dtype, shape: full.clone() }));
        match results.is_empty() {
            true => Err(InferError::new("it has no result")),
            false => Ok(results),
        }
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let full: Shape = broadcast_all(operands).unwrap_or_default();
        let programs = self.prologues.iter().chain([&self.end]);
        let each = programs.fold(Dim::from(self.kinds.len() as i64), |sum, program| sum + instructions(program));
        Cost::of(operands, outputs, crate::types::numel(&full) * each, false)
    }
}
