//! A chain of reductions over the same dims, each of which may read what the ones before it gave, and an elementwise end: what a plain
//! reduction, a softmax, a norm and a variance have in common.

use super::super::{
    ctype,
    error::Emit,
    program::{self, Results},
};
use crate::TensorRef;
use eglu_ir::{DType, Dim, Program, Ref, ops::ReduceKind};

/// What a parameter of a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Source {
    /// The element of an input.
    Element(usize),
    /// An element's position in its line, as i32.
    Position,
    /// The one value that a capture has for each line.
    Line(usize),
    /// What an earlier stage gave: position among the results of all stages.
    Stat(usize),
}

/// Reductions of one pass.
#[derive(Clone, Debug)]
pub(in super::super) struct Stage {
    /// From elements to the values to reduce.
    pub prologue: Program,
    /// What the prologue's parameters are.
    pub args: Vec<Source>,
    /// One reduction for each result of the prologue.
    pub kinds: Vec<ReduceKind>,
    /// From reduced values, in opmath, and more parameters to the stage's results.
    pub epilogue: Program,
    /// What the epilogue's parameters after the reduced values are: lines and stats.
    pub captures: Vec<Source>,
    /// Where each result goes, if anywhere.
    pub outputs: Vec<Option<TensorRef>>,
}

/// An elementwise program over the same elements at the end.
#[derive(Clone, Debug)]
pub(in super::super) struct Finish {
    pub program: Program,
    pub args: Vec<Source>,
    pub outputs: Vec<TensorRef>,
}

/// What one kernel computes over lines of elements.
#[derive(Clone, Debug)]
pub(in super::super) struct Chain {
    /// Name of its kernels.
    pub name: String,
    /// The shape that inputs broadcast to.
    pub full: Vec<Dim>,
    /// The reduced dims.
    pub dims: Vec<usize>,
    /// Read element by element; they broadcast to `full`.
    pub inputs: Vec<TensorRef>,
    /// One value for each line; they broadcast to `full` with the reduced dims being 1.
    pub lines: Vec<TensorRef>,
    pub stages: Vec<Stage>,
    pub finish: Option<Finish>,
}

impl Stage {
    /// The dtype that reduction `i` takes its values in.
    fn value(&self, i: usize) -> DType {
        let dtype = self.prologue.results[i].1;
        match self.kinds[i] {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean => ctype::accumulator(dtype),
            _ => dtype,
        }
    }

    /// The C++ type of the state of reduction `i`; of positions that keys hold where `keyed`.
    fn state(&self, i: usize, keyed: bool) -> Emit<String> {
        let kind = self.kinds[i];
        Ok(match kind {
            _ if keyed && self.has_keys(i) => {
                // Beside other reductions the prologue may hand the number on widened; its bits are those that it is stored in.
                let stored = self.element(i).map_or(Ok("u8"), ctype::storage)?;
                format!("ArgKeyState<{}, {}, {stored}>", ctype::opmath(self.value(i))?, kind == ReduceKind::Argmax)
            }
            _ if self.rounds(i) => format!("RoundedProdState<{}>", ctype::storage(self.prologue.results[i].1)?),
            ReduceKind::Argmax | ReduceKind::Argmin => format!("{kind:?}State<{}, Index>", ctype::opmath(self.value(i))?),
            _ => format!("{kind:?}State<{}>", ctype::opmath(self.value(i))?),
        })
    }

    /// Bytes on which its states start, for lines of up to `most` elements: whole words move between threads, and no more of them than needed.
    fn state_alignment(&self, most: i64) -> usize {
        let of = |i: usize| match self.kinds[i] {
            ReduceKind::Argmax | ReduceKind::Argmin if most >= 1 << 31 => 8,
            ReduceKind::Any | ReduceKind::All => 4,
            _ => self.value(i).opmath().size().clamp(4, 16),
        };
        (0..self.kinds.len()).map(of).max().unwrap_or(4)
    }

    /// True for products of floats of 16 bits and fewer: each factor rounds them.
    fn rounds(&self, i: usize) -> bool {
        let dtype = self.prologue.results[i].1;
        self.kinds[i] == ReduceKind::Prod && dtype.is_float() && dtype.opmath() != dtype
    }

    /// The input whose elements, as they are stored, are the values of reduction `i`.
    pub fn stored(&self, i: usize) -> Option<usize> {
        let (Ref::Param(param), dtype) = self.prologue.results[i] else { return None };
        let own = self.prologue.params[param as usize];
        let narrow = own.is_int() || own == DType::Bool;
        let widens = self.kinds[i] == ReduceKind::Sum && narrow && dtype.is_int() && own.size() <= 4;
        match self.args[param as usize] {
            Source::Element(input) if own.opmath() == dtype.opmath() || widens => Some(input),
            _ => None,
        }
    }
}

impl Stage {
    /// The type that holds what a thread has of `width` neighbouring lines in reduction `i`, and the input whose elements it takes as they
    /// are stored, several in a word: elements of 16 bits and fewer.
    pub fn across(&self, i: usize, width: i64) -> Emit<Option<(String, usize)>> {
        let (Some(input), Some(element)) = (self.stored(i), self.element(i)) else { return Ok(None) };
        let half = matches!(element, DType::F16 | DType::Bf16);
        let number = half || matches!(element, DType::I8 | DType::U8 | DType::I16 | DType::U16);
        if element.size() as i64 * width % 4 != 0 {
            return Ok(None);
        }
        let (stored, value) = (ctype::storage(element)?, ctype::opmath(self.value(i))?);
        let largest = matches!(self.kinds[i], ReduceKind::Amax | ReduceKind::Argmax);
        let hold = match self.kinds[i] {
            ReduceKind::Sum if element.size() <= 2 && value == "i64" => format!("SumAcross<{stored}, {width}>"),
            ReduceKind::Amax | ReduceKind::Amin if number || element == DType::Bool => {
                format!("ExtremeAcross<{largest}, {stored}, {width}>")
            }
            ReduceKind::Argmax | ReduceKind::Argmin if number => {
                format!("ArgAcross<{value}, {largest}, Index, {stored}, {width}>")
            }
            _ => return Ok(None),
        };
        Ok(Some((hold, input)))
    }

    /// True for positions of numbers of 16 bits and fewer as they are stored: a key holds such a number and its place.
    fn has_keys(&self, i: usize) -> bool {
        let arg = matches!(self.kinds[i], ReduceKind::Argmax | ReduceKind::Argmin);
        let number = |dtype| matches!(dtype, DType::F16 | DType::Bf16 | DType::I8 | DType::U8 | DType::I16 | DType::U16);
        arg && self.stored(i).is_some() && self.element(i).is_some_and(number)
    }

    /// The dtype that the elements of reduction `i` are stored in, where no program changes them.
    fn element(&self, i: usize) -> Option<DType> {
        match self.prologue.results[i].0 {
            Ref::Param(param) => Some(self.prologue.params[param as usize]),
            _ => None,
        }
    }
}

impl Chain {
    /// The inputs, then the lines, then what the end writes.
    pub fn operands(&self) -> Vec<&TensorRef> {
        let outputs = self.finish.as_ref().map_or(&[][..], |finish| &finish.outputs);
        self.inputs.iter().chain(&self.lines).chain(outputs).collect()
    }

    /// How often the inputs are walked: by each stage, and by the end.
    pub fn passes(&self) -> usize {
        self.stages.len() + usize::from(self.finish.is_some())
    }

    /// True if a program reads where elements stand.
    pub fn reads_positions(&self) -> bool {
        (0..self.passes()).any(|pass| self.args(pass).contains(&Source::Position))
    }

    /// True if a state holds the position of an element.
    pub fn holds_positions(&self) -> bool {
        let kinds = self.stages.iter().flat_map(|stage| &stage.kinds);
        kinds.into_iter().any(|kind| matches!(kind, ReduceKind::Argmax | ReduceKind::Argmin))
    }

    /// The registers of the largest stage's states, for lines of up to `most` elements.
    pub fn state_registers(&self, most: i64) -> i64 {
        let of = |stage: &Stage, i: usize| {
            let value = stage.value(i).opmath().size() as i64 / 4;
            match stage.kinds[i] {
                ReduceKind::Argmax | ReduceKind::Argmin => value.max(1) + if most < 1 << 31 { 1 } else { 2 },
                _ => value.max(1),
            }
        };
        let stages = self.stages.iter().map(|stage| (0..stage.kinds.len()).map(|i| of(stage, i)).sum());
        stages.max().unwrap_or(1)
    }

    /// True if results depend on the order of elements more than rounding once does: products that every factor rounds.
    pub fn rounds(&self) -> bool {
        self.stages.iter().any(|stage| (0..stage.kinds.len()).any(|i| stage.rounds(i)))
    }

    /// True if every result is a float of 16 bits or fewer.
    fn is_narrow(&self) -> bool {
        let stats = self.stages.iter().flat_map(|stage| stage.outputs.iter().flatten());
        let narrow = |tensor: &TensorRef| tensor.dtype.is_float() && tensor.dtype.size() <= 2;
        stats.chain(self.finish.iter().flat_map(|finish| &finish.outputs)).all(narrow)
    }

    fn args(&self, pass: usize) -> &[Source] {
        match self.stages.get(pass) {
            Some(stage) => &stage.args,
            None => self.finish.as_ref().map_or(&[], |finish| &finish.args),
        }
    }

    /// True if a pass reads elements of an input.
    pub fn reads(&self, pass: usize, input: usize) -> bool {
        self.args(pass).contains(&Source::Element(input))
    }

    /// True if it pays to keep elements of an input: more than one pass reads them.
    pub fn keeps(&self, input: usize) -> bool {
        (0..self.passes()).filter(|&pass| self.reads(pass, input)).count() > 1
    }

    /// An upper bound of the bytes of a state of the first stage.
    pub fn state_bytes(&self) -> i64 {
        16 * self.stages[0].kinds.len().max(1) as i64
    }

    /// The types and functions that kernels of the chain use, for lines of up to `most` elements; positions are in keys where `keyed`.
    pub fn items(&self, most: i64, keyed: bool) -> Emit<String> {
        // Of a place in a line.
        let mut text = format!("typedef {} Index;\n", if most < 1 << 31 { "i32" } else { "i64" });
        for (s, stage) in self.stages.iter().enumerate() {
            text += &program::function(&format!("prologue{s}"), &stage.prologue, Results::Opmath)?;
            text += &program::function(&format!("epilogue{s}"), &stage.epilogue, Results::Stored)?;
            let (mut fields, mut merges) = (String::new(), String::new());
            for i in 0..stage.kinds.len() {
                fields += &format!("    {} s{i};\n", stage.state(i, keyed)?);
                merges += &format!("        s{i}.merge(other.s{i});\n");
            }
            text += &format!(
                "struct alignas({}) State{s} {{\n{fields}    DEVICE void merge(const State{s}& other) {{\n{merges}    }}\n}};\n",
                stage.state_alignment(most)
            );
        }
        if let Some(finish) = &self.finish {
            text += &program::function("finish", &finish.program, Results::Opmath)?;
        }
        // What is rounded to 16 bits or fewer in the end does not need the last bits of an exponential.
        Ok(if self.is_narrow() { text.replace("exp_(", "quick_exp_(") } else { text })
    }

    /// What a thread holds besides the state of stage `s` while it adds groups of `width` that lie `step` elements apart, where positions are
    /// not `keyed`: type and name.
    fn holds(&self, s: usize, (width, step): (i64, i64), keyed: bool) -> Emit<Vec<(usize, String)>> {
        let stage = &self.stages[s];
        let mut holds = Vec::new();
        for i in (0..stage.kinds.len()).filter(|&i| width > 1 && !keyed && stage.has_keys(i)) {
            let (value, stored) = (ctype::opmath(stage.value(i))?, stage.element(i).map_or(Ok("u8"), ctype::storage)?);
            let largest = stage.kinds[i] == ReduceKind::Argmax;
            holds.push((i, format!("ArgAlong<{value}, {largest}, Index, {stored}, {width}, {step}>")));
        }
        Ok(holds)
    }

    /// Statements before the adds of stage `s`: what a thread adds to.
    pub fn begin(&self, s: usize, steps: (i64, i64), keyed: bool) -> Emit<String> {
        let mut text = format!("State{s} state{s};\n");
        for (i, hold) in self.holds(s, steps, keyed)? {
            text += &format!("{hold} hold{s}_{i};\n");
        }
        Ok(text)
    }

    /// Statements after those adds.
    pub fn settle(&self, s: usize, steps: (i64, i64), keyed: bool) -> Emit<String> {
        let holds = self.holds(s, steps, keyed)?;
        Ok(holds.iter().map(|(i, _)| format!("hold{s}_{i}.give(state{s}.s{i});\n")).collect())
    }

    /// Where the results of stage `s` start among those of all stages.
    pub fn first_stat(&self, s: usize) -> usize {
        self.stages[..s].iter().map(|stage| stage.epilogue.results.len()).sum()
    }

    /// A parameter's value in opmath; `element` gives that of an input.
    pub fn value(&self, source: Source, element: &dyn Fn(usize) -> String) -> String {
        match source {
            Source::Element(input) => element(input),
            Source::Position => "(i32)(r + e)".into(),
            Source::Line(line) => format!("c{line}"),
            Source::Stat(stat) => format!("up(stat{stat})"),
        }
    }

    /// Statements that turn the merged state `state` of stage `s` into its stats.
    pub fn epilogue(&self, s: usize, state: &str, length: &str) -> Emit<String> {
        let (stage, first) = (&self.stages[s], self.first_stat(s));
        let mut text = String::new();
        let mut args = Vec::new();
        for (i, &dtype) in stage.epilogue.params.iter().take(stage.kinds.len()).enumerate() {
            args.push(format!("cast<{}>({state}.s{i}.result({length}))", ctype::opmath(dtype)?));
        }
        args.extend(stage.captures.iter().map(|&source| self.value(source, &|_| String::new())));
        for (i, &(_, dtype)) in stage.epilogue.results.iter().enumerate() {
            text += &format!("{} stat{};\n", ctype::storage(dtype)?, first + i);
            args.push(format!("stat{}", first + i));
        }
        Ok(text + &format!("epilogue{s}({});\n", args.join(", ")))
    }

    /// Statements that add to `state` of stage `s` the `width` neighbouring elements at position `r`. `pack` names what has an input's
    /// elements as they are stored, `element` one of them in opmath by its place `e`.
    pub fn add(
        &self,
        s: usize,
        state: &str,
        (width, keyed): (i64, bool),
        pack: &dyn Fn(usize) -> Option<String>,
        element: &dyn Fn(usize) -> String,
    ) -> Emit<String> {
        let stage = &self.stages[s];
        let (mut declared, mut adds, mut run) = (String::new(), String::new(), false);
        let mut args: Vec<String> = stage.args.iter().map(|&source| self.value(source, element)).collect();
        for (i, &(_, dtype)) in stage.prologue.results.iter().enumerate() {
            declared += &format!("{} p{i}[{width}];\n", ctype::opmath(dtype)?);
            args.push(format!("p{i}[e]"));
            match stage.stored(i).and_then(pack) {
                Some(pack) if width > 1 && !keyed && stage.has_keys(i) => adds += &format!("hold{s}_{i}.add({pack}, r);\n"),
                Some(pack) => adds += &format!("add_pack({state}.s{i}, {pack}, r);\n"),
                None => {
                    adds += &format!("add_values({state}.s{i}, p{i}, r, 1);\n");
                    run = true;
                }
            }
        }
        if !run {
            return Ok(adds);
        }
        Ok(format!("{declared}#pragma unroll\nfor (int e = 0; e < {width}; e++) prologue{s}({});\n{adds}", args.join(", ")))
    }
}
