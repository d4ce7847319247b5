//! What an op costs on a device: the roofline over flops and bytes, at the sizes expected of symbolic dims.

use eglu_ir::{Bindings, DeviceProfile, Dim, Graph, Op, Shape, TensorType, ops::Lowering};

/// Prices ops.
#[derive(Clone, Debug)]
pub struct Pricing {
    profile: DeviceProfile,
    sizes: Bindings,
}

/// A view is free, but one fewer is better.
const VIEW: f64 = 1e-12;
/// Value taken for a symbolic dim that nothing bounds.
const EXPECTED: i64 = 64;

impl Pricing {
    /// Prices on a device; symbolic dims of the graph take a middling value within their range.
    pub fn new(profile: &DeviceProfile, graph: &Graph) -> Pricing {
        let sizes = graph
            .symbols
            .iter()
            .map(|(name, range)| (name.clone(), EXPECTED.max(range.min).min(range.max.unwrap_or(i64::MAX))))
            .collect();
        Pricing { profile: profile.clone(), sizes }
    }

    fn count(&self, dim: &Dim) -> f64 {
        dim.eval(&self.sizes).map_or(EXPECTED as f64, |value| value.max(0) as f64)
    }

    fn numel(&self, shape: &Shape) -> f64 {
        shape.iter().map(|dim| self.count(dim)).product()
    }

    fn bytes(&self, ty: &TensorType) -> f64 {
        self.numel(&ty.shape) * ty.dtype.size() as f64
    }

    fn extent(&self, ty: Option<&TensorType>, dim: usize) -> f64 {
        ty.and_then(|ty| ty.shape.get(dim)).map_or(1.0, |dim| self.count(dim))
    }

    /// Seconds that the op takes; operands that are no tensors are `None`.
    pub fn seconds(&self, op: &Op, operands: &[Option<&TensorType>], outputs: &[&TensorType]) -> f64 {
        match op.code().lowering() {
            Lowering::View | Lowering::Generator => return VIEW,
            Lowering::Pointwise | Lowering::Kernel => {}
        }
        let written: f64 = outputs.iter().map(|ty| self.bytes(ty)).sum();
        let read: f64 =
            operands.iter().enumerate().map(|(i, ty)| ty.map_or(0.0, |ty| self.read(op, i, ty, operands, written))).sum();
        let (flops, matrix) = self.flops(op, operands, outputs);
        let once = self.profile.roofline(flops, read + written, matrix);
        // A gated unit alone is an activation and a product: it pays only inside a product's kernel.
        let passes = if matches!(op, Op::Glu(_)) { 2.0 } else { 1.0 };
        once * passes + VIEW
    }

    /// Bytes read of operand `i`: gathers and expert products read only what is picked.
    fn read(&self, op: &Op, i: usize, ty: &TensorType, operands: &[Option<&TensorType>], written: f64) -> f64 {
        let whole = self.bytes(ty);
        let touched = |experts: f64, rows: f64| whole * (rows / experts.max(1.0)).min(1.0);
        match op {
            Op::Index(_) | Op::Gather(_) if i == 0 => written,
            Op::ExpertMatmul(_) if i == 1 => touched(self.count(&ty.shape[0]), self.extent(operands[0], 0)),
            Op::GroupedMm(_) if i == 1 => touched(self.count(&ty.shape[0]), self.extent(operands[0], 0)),
            Op::Moe(_) if matches!(i, 1 | 3 | 5) => {
                let rows = self.extent(operands[7], 0) * self.extent(operands[7], 1);
                touched(self.count(&ty.shape[0]), rows)
            }
            _ => whole,
        }
    }

    fn flops(&self, op: &Op, operands: &[Option<&TensorType>], outputs: &[&TensorType]) -> (f64, bool) {
        let out: f64 = outputs.iter().map(|ty| self.numel(&ty.shape)).sum();
        let ty = |i: usize| operands.get(i).copied().flatten();
        let numel = |i: usize| ty(i).map_or(0.0, |ty| self.numel(&ty.shape));
        let inner = |i: usize| ty(i).map_or(1.0, |ty| self.extent(Some(ty), ty.rank().saturating_sub(1)));
        match op {
            Op::MatMul(_) | Op::GroupedMm(_) | Op::ExpertMatmul(_) => (2.0 * out * inner(0), true),
            Op::Contract(contract) => (2.0 * out * inner(0) * contract.lanes as f64, true),
            Op::DenseGlu(_) => (4.0 * out * inner(0), true),
            Op::Moe(_) => {
                let per_row = |i: usize| self.extent(ty(i), 1) * self.extent(ty(i), 2);
                (2.0 * numel(7) * (per_row(1) + per_row(3) + per_row(5)), true)
            }
            _ => {
                let elements = operands.iter().flatten().map(|ty| self.numel(&ty.shape)).fold(out, f64::max);
                (4.0 * elements, false)
            }
        }
    }
}
