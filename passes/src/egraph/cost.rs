//! What an op costs on a device: the roofline over its flops and bytes, at the sizes expected of symbolic dims.

use eglu_ir::{
    Bindings, DeviceProfile, Dim, Graph, Op, TensorType,
    ops::{Lowering, OperandType},
};
use serde::Serialize;
use std::ops::AddAssign;

/// Estimated work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Price {
    /// Time on the device, seconds.
    pub seconds: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Kernels launched.
    pub launches: f64,
}

impl AddAssign for Price {
    fn add_assign(&mut self, other: Price) {
        self.seconds += other.seconds;
        self.bytes += other.bytes;
        self.launches += other.launches;
    }
}

impl std::iter::Sum for Price {
    fn sum<I: Iterator<Item = Price>>(prices: I) -> Price {
        prices.fold(Price::default(), |mut sum, price| {
            sum += price;
            sum
        })
    }
}

/// Prices ops.
#[derive(Clone, Debug)]
pub struct Pricing {
    profile: DeviceProfile,
    sizes: Bindings,
    inverted: bool,
}

/// A view is free, but one fewer is better.
const VIEW: f64 = 1e-12;
/// The part of a launch that an elementwise op does not cost.
const SHARED: f64 = 0.875;
/// Value taken for a symbolic dim that may have it.
const EXPECTED: i64 = 64;

impl Pricing {
    /// Prices on a device; symbolic dims of the graph take a middling value within their range.
    pub fn new(profile: &DeviceProfile, graph: &Graph) -> Pricing {
        let expected = |min: i64, max: Option<i64>| EXPECTED.min(max.unwrap_or(i64::MAX)).max(min);
        let sizes = graph.symbols.iter().map(|(name, range)| (name.clone(), expected(range.min, range.max))).collect();
        Pricing { profile: profile.clone(), sizes, inverted: false }
    }

    /// What costs most becomes the cheapest, for tests: any member of a class must do.
    pub fn inverted(self) -> Pricing {
        Pricing { inverted: true, ..self }
    }

    fn count(&self, dim: &Dim) -> f64 {
        dim.eval(&self.sizes).map_or(0.0, |value| value.max(0) as f64)
    }

    /// The price of an op on these operands.
    pub fn of(&self, op: &Op, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Price {
        if matches!(op.code().lowering(), Lowering::View | Lowering::Generator) {
            return Price { seconds: VIEW, ..Price::default() };
        }
        let cost = op.cost(operands, outputs);
        let (flops, bytes) = (self.count(&cost.flops), self.count(&cost.bytes));
        let once = self.profile.roofline(flops, bytes, cost.matrix);
        // An elementwise op mostly becomes part of a neighbour's kernel, later on.
        let once = if op.code().lowering() == Lowering::Pointwise { once - SHARED * self.profile.launch_seconds } else { once };
        // A gated unit alone is an activation and a product: it pays only inside a product's kernel.
        let kernels = if matches!(op, Op::Glu(_)) { 2.0 } else { 1.0 };
        // Sums that do not depend on scheduling come of copying, sorting, ranking and adding.
        let steps = if matches!(op, Op::IndexPut(_) | Op::ScatterAdd(_)) { 3.0 } else { 0.0 };
        // At equal price the router, so that all dresses of a model have it.
        let named = if matches!(op, Op::Route(_)) { 16.0 * VIEW } else { 0.0 };
        let seconds = once * kernels + steps * self.profile.launch_seconds + VIEW - named;
        let seconds = if self.inverted { seconds.recip() } else { seconds };
        Price { seconds, bytes: bytes * kernels, launches: kernels }
    }
}
