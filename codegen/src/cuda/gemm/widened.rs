//! f32 products of values that were widened for them, as routers want: 16-bit operands multiply exactly into the same f32 sums, many times
//! faster, and the widened copies need not be made.

use crate::{Arg, Plan, Source, Step, TensorRef};
use eglu_ir::{DType, Op};
use std::collections::{HashMap, HashSet};

/// The products of a plan that multiply what their operands were before.
#[derive(Debug, Default)]
pub(in super::super) struct Widened {
    /// Of each such product's step, its operands.
    products: HashMap<usize, [TensorRef; 2]>,
    /// Steps that only widened for them.
    spared: HashSet<usize>,
}

impl Widened {
    /// Finds them.
    pub fn find(plan: &Plan) -> Widened {
        let lives = plan.lifetimes();
        let widening = |tensor: &TensorRef| {
            let maker = plan.steps.iter().position(|step| step.outputs.iter().any(|output| output.buffer == tensor.buffer))?;
            let source = before_widening(&plan.steps[maker], tensor)?;
            Some((maker, source))
        };
        let mut found = Widened::default();
        for (at, step) in plan.steps.iter().enumerate() {
            let (Op::MatMul(_), [Arg::Tensor(a), Arg::Tensor(b)]) = (&step.op, step.inputs.as_slice()) else { continue };
            let (Some((makes_a, a)), Some((makes_b, b))) = (widening(a), widening(b)) else { continue };
            // What was widened must still be there.
            let stays = |source: &TensorRef| {
                !matches!(plan.buffers[source.buffer].source, Source::Step)
                    || lives[source.buffer].is_some_and(|(_, last)| last >= at)
            };
            if a.dtype == b.dtype && stays(&a) && stays(&b) {
                found.products.insert(at, [a, b]);
                found.spared.extend([makes_a, makes_b]);
            }
        }
        let products = &found.products;
        found.spared.retain(|&step| {
            let written = plan.steps[step].outputs[0].buffer;
            let reads = |other: &Step| other.inputs.iter().any(|arg| matches!(arg, Arg::Tensor(x) if x.buffer == written));
            let elsewhere = plan.steps.iter().enumerate().any(|(i, other)| reads(other) && !products.contains_key(&i));
            !elsewhere && plan.outputs.iter().all(|output| output.tensor.buffer != written)
        });
        found
    }

    /// The operands of the product at this step, if they were widened for it.
    pub fn operands(&self, step: usize) -> Option<&[TensorRef; 2]> {
        self.products.get(&step)
    }

    /// Whether nobody reads what this step makes.
    pub fn spares(&self, step: usize) -> bool {
        self.spared.contains(&step)
    }
}

/// What `tensor` was before `maker` widened it from 16 bits to f32.
fn before_widening(maker: &Step, tensor: &TensorRef) -> Option<TensorRef> {
    let (Op::Cast(_), [Arg::Tensor(source)], [output]) = (&maker.op, maker.inputs.as_slice(), maker.outputs.as_slice()) else {
        return None;
    };
    let widens = matches!(source.dtype, DType::Bf16 | DType::F16) && tensor.dtype == DType::F32 && output.dtype == DType::F32;
    let alike = source.layout.shape == output.layout.shape && source.layout.strides == output.layout.strides;
    (widens && alike && output.layout.offset.is(0)).then(|| {
        let mut layout = tensor.layout.clone();
        layout.offset = layout.offset + source.layout.offset.clone();
        TensorRef { buffer: source.buffer, dtype: source.dtype, layout }
    })
}
