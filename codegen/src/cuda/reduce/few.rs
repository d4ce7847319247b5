//! Lines of a few elements that are far apart while neighbouring lines are neighbours in memory, such as the sum over a token's experts: a
//! thread takes a group of whole lines.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Code, Header, Kernel, divisible},
    },
    chain::{Chain, Source},
    walk::{Walk, widest},
};
use eglu_ir::{Dim, types::numel};

/// The most elements of a line: a thread has them all under way at once.
const MOST: i64 = 16;
const THREADS: i64 = 256;

/// The number of elements of a line and of lines in a group, where this form can run: one pass, and groups that start on their own size in
/// every operand.
pub(super) fn fits(chain: &Chain, walk: &Walk) -> Option<[i64; 2]> {
    let stage = chain.stages.first().filter(|_| chain.passes() == 1)?;
    let length = numel(&walk.reduced.shape).as_const().filter(|&n| (1..=MOST).contains(&n))?;
    let inner = walk.kept.shape.last()?;
    let step = |i: usize| walk.kept.strides[i].last();
    let operands = chain.inputs.len() + chain.lines.len();
    let moving: Vec<usize> = (0..operands).filter(|&i| step(i).is_some_and(|step| step.is(1))).collect();
    let steady = (0..operands).all(|i| step(i).is_none_or(|step| step.is(0) || step.is(1)));
    let tensor = |i: usize| chain.inputs.get(i).unwrap_or_else(|| &chain.lines[i - chain.inputs.len()]);
    let written = stage.outputs.iter().flatten().map(|y| y.dtype.size());
    let width = widest(moving.iter().map(|&i| tensor(i).dtype.size()).chain(written).collect::<Vec<_>>().into_iter()).min(8);
    let aligned = |i: usize| {
        let outer = walk.kept.strides[i].split_last().map_or(&[][..], |(_, outer)| outer);
        outer.iter().chain(&walk.reduced.strides[i]).chain([&tensor(i).layout.offset]).all(|dim| divisible(dim, width))
    };
    let whole = divisible(inner, width) && moving.iter().all(|&i| aligned(i));
    let captures = stage.captures.iter().all(|capture| matches!(capture, Source::Line(_)));
    (captures && steady && whole && width > 1).then_some([length, width])
}

/// Emits the kernel.
pub(super) fn emit(emitter: &mut Emitter, chain: &Chain, walk: &Walk, [length, width]: [i64; 2]) -> Emit<()> {
    let Some((inner, outer)) = walk.kept.shape.split_last() else { return Ok(()) };
    let groups = numel(outer) * inner.floor_div(&Dim::from(width));
    let mut kernel = Kernel::new(chain.name.clone());
    let pointers = walk.pointers(&mut kernel, chain)?;
    let (inner_name, groups_name) = (kernel.dim(inner), kernel.dim(&groups));
    let mut body = format!(
        "const i64 group = (i64)blockIdx.x * {THREADS} + threadIdx.x;\nif (group >= {groups_name}) return;\n\
         const i64 inner_groups = {inner_name} / {width};\n[[maybe_unused]] const i64 over = group / inner_groups, column = group % inner_groups * {width};\n"
    );
    let (split, mut names) = kernel.split("over", "i", outer);
    names.push("column".into());
    body += &split;
    for (i, strides) in walk.kept.strides.iter().enumerate() {
        body += &format!("const i64 b{i} = {};\n", kernel.offset(&names, strides));
    }
    // Every element is asked for before any is used.
    let (split, names) = kernel.split("k", "j", &walk.reduced.shape);
    let moves = |i: usize| walk.kept.strides[i].last().is_some_and(|step| step.is(1));
    let mut loads = String::new();
    for (i, (input, name)) in chain.inputs.iter().zip(&pointers.inputs).enumerate() {
        let (ty, offset) = (ctype::storage(input.dtype)?, kernel.offset(&names, &walk.reduced.strides[i]));
        body += &format!("Pack<{ty}, {}> h{i}[{length}];\n", if moves(i) { width } else { 1 });
        loads += &match moves(i) {
            true => format!("load_pack(h{i}[k], {name} + b{i} + {offset});\n"),
            false => format!("h{i}[k].at[0] = {name}[b{i} + {offset}];\n"),
        };
    }
    body += &format!("#pragma unroll\nfor (int k = 0; k < {length}; k++) {{\n{split}{loads}}}\n");
    for (i, (line, name)) in chain.lines.iter().zip(&pointers.lines).enumerate() {
        let (ty, at) = (ctype::storage(line.dtype)?, chain.inputs.len() + i);
        body += &match moves(at) {
            true => format!("Pack<{ty}, {width}> c{i};\nload_pack(c{i}, {name} + b{at});\n"),
            false => format!("const Pack<{ty}, 1> c{i} = {{{name}[b{at}]}};\n"),
        };
    }
    body += &lines(chain, &moves, [length, width], &pointers.stats[0])?;
    let code = Code {
        headers: vec![Header::Math, Header::Warp, Header::Reduce, Header::Lines],
        items: chain.items(MOST, false)?,
        body,
        threads: [THREADS as u32, 1],
        ..Code::default()
    };
    emitter.launch(kernel, code, flat(groups.ceil_div(THREADS)));
    Ok(())
}

/// Reduces and stores each line of a group.
fn lines(chain: &Chain, moves: &dyn Fn(usize) -> bool, [length, width]: [i64; 2], stored: &[Option<String>]) -> Emit<String> {
    let stage = &chain.stages[0];
    let value = |source: &Source| match *source {
        // Chains that read positions go along lines.
        Source::Position => String::new(),
        Source::Line(i) => format!("up(c{i}.at[{}])", if moves(chain.inputs.len() + i) { "e" } else { "0" }),
        Source::Element(i) | Source::Stat(i) => format!("up(h{i}[k].at[{}])", if moves(i) { "e" } else { "0" }),
    };
    let mut args: Vec<String> = stage.args.iter().map(value).collect();
    let (mut values, mut adds, mut results) = (String::new(), String::new(), Vec::new());
    for (i, &(_, dtype)) in stage.prologue.results.iter().enumerate() {
        values += &format!("{} p{i};\n", ctype::opmath(dtype)?);
        args.push(format!("p{i}"));
        adds += &format!("state.s{i}.add(p{i}, k);\n");
        results.push(format!("cast<{}>(state.s{i}.result({length}))", ctype::opmath(stage.epilogue.params[i])?));
    }
    results.extend(stage.captures.iter().map(value));
    let (mut declared, mut stores) = (String::new(), String::new());
    for (i, (&(_, dtype), y)) in stage.epilogue.results.iter().zip(stored).enumerate() {
        let ty = ctype::storage(dtype)?;
        declared += &format!("Pack<{ty}, {width}> o{i};\n");
        results.push(format!("o{i}.at[e]"));
        if let Some(y) = y {
            stores += &format!("store_pack({y} + group * {width}, o{i});\n");
        }
    }
    Ok(format!(
        "{declared}#pragma unroll\nfor (int e = 0; e < {width}; e++) {{\nState0 state;\n#pragma unroll\nfor (int k = 0; k < {length}; k++) {{\n\
         {values}prologue0({});\n{adds}}}\nepilogue0({});\n}}\n{stores}",
        args.join(", "),
        results.join(", ")
    ))
}
