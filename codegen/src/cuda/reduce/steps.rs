//! A step that is a chain of reductions, as the chain that kernels walk.

use super::{
    super::{
        emitter::tensors,
        error::{Emit, Unsupported},
    },
    chain::{Chain, Finish, Source, Stage},
};
use crate::{Step, TensorRef};
use eglu_ir::{
    Program, Ref, Shape,
    ops::{ReduceChain, infer::broadcast},
};

/// A program with the parameters that it reads alone, and what these are. What has no source is not read.
fn reading(program: &Program, sources: &[Option<Source>]) -> Emit<(Program, Vec<Source>)> {
    let (mut place, mut kept) = (vec![0; program.params.len()], Vec::new());
    let mut only = Program::new([]);
    for (i, read) in program.used().into_iter().enumerate().filter(|&(_, read)| read) {
        debug_assert!(read);
        place[i] = only.params.len() as u32;
        only.params.push(program.params[i]);
        kept.push(sources[i].ok_or_else(|| Unsupported::new(format!("a program reads parameter {i}, which has no one value")))?);
    }
    let renamed = |operand: Ref| match operand {
        Ref::Param(i) => Ref::Param(place[i as usize]),
        other => other,
    };
    for instr in &program.instrs {
        only.push(instr.op, instr.args.iter().map(|&arg| renamed(arg)), instr.dtype);
    }
    only.results = program.results.iter().map(|&(result, dtype)| (renamed(result), dtype)).collect();
    Ok((only, kept))
}

/// The chain of a step.
pub(super) fn chained(step: &Step, op: &ReduceChain) -> Emit<Chain> {
    let operands = tensors(step, 0)?;
    let full = operands
        .iter()
        .try_fold(Shape::new(), |shape, t| broadcast(&shape, &t.layout.shape))
        .map_err(|e| Unsupported::new(e.to_string()))?;
    // An operand of one element for each line.
    let is_line = |tensor: &TensorRef| {
        let shape = &tensor.layout.shape;
        op.dims.iter().all(|&dim| (dim + shape.len()).checked_sub(full.len()).is_none_or(|at| shape[at].is(1)))
    };
    let (mut inputs, mut lines, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    for &tensor in &operands {
        let (list, source): (&mut Vec<TensorRef>, fn(usize) -> Source) =
            if is_line(tensor) { (&mut lines, Source::Line) } else { (&mut inputs, Source::Element) };
        let known = list.iter().position(|other| other == tensor);
        sources.push(Some(source(known.unwrap_or(list.len()))));
        if known.is_none() {
            list.push(tensor.clone());
        }
    }
    let of_lines: Vec<Option<Source>> =
        sources.iter().map(|&source| source.filter(|s| matches!(s, Source::Line(_)))).chain([None]).collect();
    sources.push(Some(Source::Position));

    let (kept, ends) = step.outputs.split_at(op.kept.len());
    let (mut stages, mut kinds, mut stats) = (Vec::new(), op.kinds.iter().copied(), 0);
    for (prologue, epilogue) in op.prologues.iter().zip(&op.epilogues) {
        let given = (0..stats).map(|i| Some(Source::Stat(i)));
        let all: Vec<Option<Source>> = sources.iter().copied().chain(given.clone()).collect();
        let (prologue, args) = reading(prologue, &all)?;
        let kinds: Vec<_> = kinds.by_ref().take(prologue.results.len()).collect();
        let (epilogue, captures) = behind(epilogue, kinds.len(), &of_lines.iter().copied().chain(given).collect::<Vec<_>>())?;
        let outputs = (stats..stats + epilogue.results.len())
            .map(|stat| op.kept.iter().position(|&at| at == stat).map(|at| kept[at].clone()))
            .collect();
        stats += epilogue.results.len();
        stages.push(Stage { prologue, args, kinds, epilogue, captures, outputs });
    }
    let all: Vec<Option<Source>> = sources.into_iter().chain((0..stats).map(|i| Some(Source::Stat(i)))).collect();
    let finish = match ends.is_empty() {
        true => None,
        false => {
            let (program, args) = reading(&op.end, &all)?;
            Some(Finish { program, args, outputs: ends.to_vec() })
        }
    };
    let name = format!("reduce_chain_{}", step.outputs[0].dtype);
    Ok(Chain { name, full: full.to_vec(), dims: op.dims.to_vec(), inputs, lines, stages, finish })
}

/// An epilogue: its first parameters are reduced values, all of which stay.
fn behind(program: &Program, reduced: usize, sources: &[Option<Source>]) -> Emit<(Program, Vec<Source>)> {
    let mut all = program.clone();
    // Reading them keeps them.
    let results = all.results.len();
    all.results.extend((0..reduced as u32).map(|i| (Ref::Param(i), program.params[i as usize])));
    let placed: Vec<Option<Source>> = (0..reduced).map(|i| Some(Source::Stat(i))).chain(sources.iter().copied()).collect();
    let (mut only, kept) = reading(&all, &placed)?;
    only.results.truncate(results);
    Ok((only, kept[reduced..].to_vec()))
}
