//! Roundings to 16 bits that a fused program must keep.
//!
//! A program computes narrow values in f32 and rounds when it stores them. As long as a chain stays narrow, leaving out the roundings in
//! between makes it only more exact than 16 bits can show. Where a chain is widened, its digits are seen: an f32 result then differs
//! from PyTorch's by 16-bit errors, and a router picks other experts. So each step of such a chain is rounded, as eager mode does it.

use eglu_ir::{DType, Instr, Program, Ref, program::InstrOp};
use smallvec::SmallVec;

/// Rounds every step of the chains that are widened. `captured` tells for each parameter if it is a stored tensor; the others are
/// accumulators, which have not been rounded yet.
pub(crate) fn keep(program: Program, captured: &[bool]) -> Program {
    let shown = shown(&program);
    if !shown.contains(&true) {
        return program;
    }
    let Program { params, instrs, results } = program;
    let mut kept = Program::new(params.iter().copied());
    let mut accumulators: Vec<Option<Ref>> = vec![None; params.len()];
    let mut moved: Vec<Ref> = Vec::with_capacity(instrs.len());
    for (at, Instr { op, args, dtype }) in instrs.into_iter().enumerate() {
        let mut translated: SmallVec<[Ref; 3]> = SmallVec::new();
        for arg in args {
            translated.push(match arg {
                Ref::Instr(i) => moved[i as usize],
                Ref::Param(i) if shown[at] && !captured[i as usize] && is_narrow(params[i as usize]) => {
                    let round = || kept.push(InstrOp::Cast, [arg], params[i as usize]);
                    *accumulators[i as usize].get_or_insert_with(round)
                }
                other => other,
            });
        }
        let result = kept.push(op, translated, dtype);
        let rounds = shown[at] && op != InstrOp::Cast;
        moved.push(if rounds { kept.push(InstrOp::Cast, [result], dtype) } else { result });
    }
    let translate = |result: Ref| if let Ref::Instr(i) = result { moved[i as usize] } else { result };
    kept.results = results.into_iter().map(|(result, dtype)| (translate(result), dtype)).collect();
    kept
}

fn is_narrow(dtype: DType) -> bool {
    dtype.is_float() && dtype.opmath() != dtype
}

/// For each instruction, if it is a narrow step of a chain that is widened.
fn shown(program: &Program) -> Vec<bool> {
    let mut shown = vec![false; program.instrs.len()];
    for at in (0..program.instrs.len()).rev() {
        let Instr { op, args, dtype } = &program.instrs[at];
        for arg in args {
            if let Ref::Instr(i) = *arg {
                let from = program.instrs[i as usize].dtype;
                let widened = *op == InstrOp::Cast && dtype.is_float() && dtype.size() > from.size();
                shown[i as usize] |= is_narrow(from) && (widened || shown[at]);
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_ir::ops::Pointwise;

    /// `widen?(relu(p0 * p1))`, where `p0` is an accumulator.
    fn chain(widened: bool) -> Program {
        let mut program = Program::new([DType::Bf16; 2]);
        let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [Ref::Param(0), Ref::Param(1)], DType::Bf16);
        let relu = program.push(InstrOp::Pointwise(Pointwise::Relu), [product], DType::Bf16);
        let wide = if widened { program.push(InstrOp::Cast, [relu], DType::F32) } else { relu };
        program.results.push((wide, if widened { DType::F32 } else { DType::Bf16 }));
        program
    }

    fn casts(program: &Program) -> usize {
        program.instrs.iter().filter(|instr| instr.op == InstrOp::Cast).count()
    }

    #[test]
    fn only_chains_that_are_widened_round() {
        assert_eq!(keep(chain(false), &[false, true]), chain(false));
        // The accumulator, both steps, and the widening itself.
        assert_eq!(casts(&keep(chain(true), &[false, true])), 4);
        assert_eq!(casts(&keep(chain(true), &[true, true])), 3);
    }
}
