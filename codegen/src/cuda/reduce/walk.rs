//! How a chain's operands are walked: lines by line, elements in groups that move as one access.

use super::{
    super::{
        ctype,
        error::Emit,
        kernel::{Kernel, broadcast_strides, divisible, without},
        loops::Loop,
    },
    chain::Chain,
};
use crate::TensorRef;
use eglu_ir::Dim;

/// The loops over lines and over a line's elements. Operands are the inputs, then the lines, then what the end writes.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// Over lines; an index counts them in the order of the results.
    pub kept: Loop,
    /// Over the elements of a line.
    pub reduced: Loop,
    /// Neighbouring elements that move as one.
    pub width: i64,
    /// Where lines may start off a group: the operand whose start says where groups do, and its offset.
    pub ragged: Option<(usize, Dim)>,
    /// Inputs whose elements are neighbours, but start elsewhere in a group: they move one by one.
    pub loose: Vec<usize>,
    /// True if what the end writes moves in groups, too.
    pub stores_groups: bool,
}

/// What moves in groups, where elements of a line are neighbours.
struct Groups {
    /// Elements of a group.
    width: i64,
    /// Inputs whose elements are neighbours.
    moving: Vec<usize>,
    /// Operands that the end writes.
    written: Vec<usize>,
    /// Elements of those are neighbours, too, or there is one.
    neighbours: bool,
}

impl Groups {
    /// `None` where an input's elements lie apart, or no input's are neighbours.
    fn of(walk: &Walk, chain: &Chain) -> Option<Groups> {
        let operands = chain.operands();
        let step = |i: usize| walk.reduced.strides[i].last();
        let moving: Vec<usize> = (0..chain.inputs.len()).filter(|&i| step(i).is_some_and(|step| step.is(1))).collect();
        let steady = |i: usize| step(i).is_none_or(|step| step.is(0) || step.is(1));
        if moving.is_empty() || !(0..chain.inputs.len()).all(steady) {
            return None;
        }
        let written: Vec<usize> = (chain.inputs.len() + chain.lines.len()..operands.len()).collect();
        let width = widest(moving.iter().chain(&written).map(|&i| operands[i].dtype.size()));
        let neighbours = written.iter().all(|&i| step(i).is_none_or(|step| step.is(1)));
        Some(Groups { width, moving, written, neighbours })
    }
}

/// The names of a kernel's pointers.
pub(super) struct Pointers {
    pub inputs: Vec<String>,
    pub lines: Vec<String>,
    /// Results of each stage that are stored.
    pub stats: Vec<Vec<Option<String>>>,
    pub outputs: Vec<String>,
}

/// 1 where the dim is at most `n`, else 0.
pub(super) fn at_most(dim: &Dim, n: i64) -> Dim {
    Dim::from(1) - more_than(dim, n)
}

/// 1 where the dim is more than `n`, else 0.
pub(super) fn more_than(dim: &Dim, n: i64) -> Dim {
    Dim::min(&dim.floor_div(&Dim::from(n + 1)), &Dim::from(1))
}

/// Steps of its loop that a block has at least where blocks are more than the card takes at once: what begins and ends a block is little then.
const STEPS: i64 = 10;

/// How many blocks share a line (or a group of lines) of so many `steps`: as many as are at work at once, `wave`, or up to four times as many
/// where that leaves each enough to do, so that little of the card is idle while the last are at work.
pub(super) fn splits(wave: u32, lines: &Dim, steps: &Dim) -> Dim {
    let (one, wave) = (Dim::from(1), i64::from(wave));
    let rounds = (steps.clone() * lines.clone()).floor_div(&Dim::from(STEPS * wave));
    let rounds = Dim::max(&Dim::min(&rounds, &Dim::from(4)), &one);
    let wanted = (rounds * Dim::from(wave)).floor_div(&Dim::max(lines, &one));
    Dim::max(&Dim::min(&wanted, steps), &one)
}

/// Elements of the smallest type that 16 bytes hold, as long as the largest type's group stays within 64.
pub(super) fn widest(sizes: impl Iterator<Item = usize> + Clone) -> i64 {
    let (least, most) = (sizes.clone().min().unwrap_or(16), sizes.max().unwrap_or(16));
    (16 / least).min(64 / most) as i64
}

impl Walk {
    /// The walk along lines, in groups where their elements are neighbours.
    pub fn along_lines(chain: &Chain) -> Walk {
        let walk = Walk::single(chain);
        let Some(Groups { width, moving, written, neighbours }) = Groups::of(&walk, chain) else { return walk };
        let operands = chain.operands();
        let (offset, lead) = (|i: usize| &operands[i].layout.offset, moving[0]);
        let aligned = |i: usize| walk.starts(&operands, i).all(|dim| divisible(dim, width));
        let congruent = |i: usize| {
            let same = |a: &Dim, b: &Dim| divisible(&(a.clone() - b.clone()), width);
            walk.starts(&operands, i).zip(walk.starts(&operands, lead)).all(|(a, b)| same(a, b))
        };
        let inner = walk.reduced.shape.last().is_some_and(|inner| divisible(inner, width));
        if inner && aligned(lead) {
            let loose = moving.iter().copied().filter(|&i| !aligned(i)).collect();
            let stores_groups = neighbours && written.iter().all(|&i| aligned(i));
            return Walk { width, loose, stores_groups, ..walk };
        }
        if walk.reduced.shape.len() == 1 {
            let loose = moving.iter().copied().filter(|&i| !congruent(i)).collect();
            let stores_groups = neighbours && written.iter().all(|&i| congruent(i));
            return Walk { width, loose, stores_groups, ragged: Some((lead, offset(lead).clone())), ..walk };
        }
        walk
    }

    /// The walk of lines that start and end on groups in every operand, with a dim that is 1 where the sizes of a run make it so and else 0;
    /// `None` where that is known beforehand.
    pub fn whole_lines(chain: &Chain) -> Option<(Walk, Dim)> {
        let walk = Walk::single(chain);
        let Groups { width, moving, written, neighbours } = Groups::of(&walk, chain)?;
        let operands = chain.operands();
        let starts = moving.iter().chain(&written).flat_map(|&i| walk.starts(&operands, i));
        let mut open: Vec<&Dim> = starts.chain(walk.reduced.shape.last()).filter(|dim| !divisible(dim, width)).collect();
        open.sort_unstable();
        open.dedup();
        let never = open.iter().any(|dim| dim.as_const().is_some());
        if !neighbours || never || open.is_empty() {
            return None;
        }
        let holds = |dim: &Dim| at_most(&dim.rem(&Dim::from(width)), 0);
        let when = open.into_iter().map(holds).fold(Dim::from(1), |all, holds| all * holds);
        Some((Walk { width, stores_groups: true, ..walk.clone() }, when))
    }

    /// What says where an operand's lines start: its offset, and its strides but for that from an element to the next.
    fn starts<'a>(&'a self, operands: &[&'a TensorRef], i: usize) -> impl Iterator<Item = &'a Dim> {
        let outer = self.reduced.strides[i].split_last().map_or(&[][..], |(_, outer)| outer);
        [&operands[i].layout.offset].into_iter().chain(&self.kept.strides[i]).chain(outer)
    }

    /// The walk element by element.
    pub fn single(chain: &Chain) -> Walk {
        let kept_dims: Vec<usize> = (0..chain.full.len()).filter(|i| !chain.dims.contains(i)).collect();
        let ones: Vec<Dim> =
            chain.full.iter().enumerate().map(|(i, d)| if kept_dims.contains(&i) { d.clone() } else { 1.into() }).collect();
        // A capture's dims line up with the full shape's from the right, and its reduced ones are 1.
        let line = |tensor: &TensorRef| {
            let mut strides = broadcast_strides(tensor, &ones);
            chain.dims.iter().for_each(|&dim| strides[dim] = Dim::from(0));
            strides
        };
        let outputs = chain.finish.as_ref().map_or(&[][..], |finish| &finish.outputs);
        let all: Vec<Vec<Dim>> = (chain.inputs.iter().map(|t| broadcast_strides(t, &chain.full)))
            .chain(chain.lines.iter().map(line))
            .chain(outputs.iter().map(|t| broadcast_strides(t, &chain.full)))
            .collect();
        let of = |dims: &[usize]| -> Vec<Vec<Dim>> { all.iter().map(|strides| without(strides, dims)).collect() };
        Walk {
            kept: Loop::new(&without(&chain.full, &chain.dims), &of(&chain.dims)),
            reduced: Loop::new(&without(&chain.full, &kept_dims), &of(&kept_dims)),
            width: 1,
            ragged: None,
            loose: Vec::new(),
            stores_groups: false,
        }
    }

    /// True if neighbours in memory belong to neighbouring lines, not to one.
    pub fn goes_across(&self, chain: &Chain) -> bool {
        let next = |strides: &[Vec<Dim>]| (0..chain.inputs.len()).any(|i| strides[i].last().is_some_and(|step| step.is(1)));
        !next(&self.reduced.strides) && next(&self.kept.strides) && !self.reduced.shape.is_empty()
    }

    /// True if an input's elements move in groups; else one element repeats along each group.
    pub fn moves(&self, input: usize) -> bool {
        self.width == 1 || self.reduced.strides[input].last().is_some_and(|step| step.is(1))
    }

    /// True if an input's line is kept from pass to pass, where several read it and it is this line's own.
    pub fn keeps(&self, chain: &Chain, input: usize) -> bool {
        let shared = !self.kept.shape.is_empty() && self.kept.strides[input].iter().all(|step| step.is(0));
        chain.keeps(input) && self.moves(input) && !shared
    }

    /// Parameters for the operands.
    pub fn pointers(&self, kernel: &mut Kernel, chain: &Chain) -> Emit<Pointers> {
        let read = |kernel: &mut Kernel, tensors: &[TensorRef]| tensors.iter().map(|t| kernel.read(t)).collect::<Emit<_>>();
        let (inputs, lines) = (read(kernel, &chain.inputs)?, read(kernel, &chain.lines)?);
        let mut stats = Vec::new();
        for stage in &chain.stages {
            let stored = stage.outputs.iter().map(|output| output.as_ref().map(|t| kernel.write(t)).transpose());
            stats.push(stored.collect::<Emit<_>>()?);
        }
        let outputs = chain.finish.as_ref().map_or(&[][..], |finish| &finish.outputs);
        Ok(Pointers { inputs, lines, stats, outputs: outputs.iter().map(|t| kernel.write(t)).collect::<Emit<_>>()? })
    }
}

impl Pointers {
    /// Statements that read the captures of a line; `b…` are the starts of its operands.
    pub fn captures(&self, chain: &Chain) -> Emit<String> {
        let mut text = String::new();
        for (i, (line, name)) in chain.lines.iter().zip(&self.lines).enumerate() {
            text += &format!("const {} c{i} = up({name}[b{}]);\n", ctype::opmath(line.dtype)?, chain.inputs.len() + i);
        }
        Ok(text)
    }
}
