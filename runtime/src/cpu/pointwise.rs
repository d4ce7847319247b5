//! Elementwise steps: one pass over all operands, however many instructions.

use super::{
    block::{BLOCK, Block},
    call::{Call, Outcome, Source, Taken},
};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements one task handles.
const TASK: usize = 32 * BLOCK;

/// Runs a program over operands broadcast to the outputs' shape.
pub fn map(call: &mut Call<'_>, block: &Block) -> Outcome {
    let Some(first) = call.outputs.first() else { return Ok(Taken::Done) };
    let (shape, numel) = (first.shape.clone(), first.numel());
    let sources: Vec<Source<'_>> = call
        .operands
        .iter()
        .filter_map(|operand| match operand {
            super::call::Operand::Tensor(view) => Some(Source::new(&view.broadcast(&shape))),
            _ => None,
        })
        .collect();
    let outputs = call.shared();
    let defined = AtomicBool::new(true);
    let task = |start: usize| {
        let mut registers = block.registers();
        let end = (start + TASK).min(numel);
        for at in (start..end).step_by(BLOCK) {
            let len = BLOCK.min(end - at);
            for (i, source) in sources.iter().enumerate() {
                source.fill(block, &mut registers, i, at, len);
            }
            if !block.run(&mut registers, len) {
                defined.store(false, Ordering::Relaxed);
            }
            for (i, (memory, size)) in outputs.iter().enumerate() {
                // SAFETY: blocks do not overlap.
                block.store(&registers, i, unsafe { memory.piece(at * size..(at + len) * size) });
            }
        }
    };
    if numel <= TASK {
        (0..numel).step_by(TASK).for_each(task);
    } else {
        (0..numel.div_ceil(TASK)).into_par_iter().for_each(|i| task(i * TASK));
    }
    Ok(if defined.into_inner() { Taken::Done } else { Taken::Refused })
}
