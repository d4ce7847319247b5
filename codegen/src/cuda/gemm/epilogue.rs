//! What happens to accumulators: the program, its captures and the stores.

use super::super::{
    ctype,
    error::Emit,
    kernel::{Kernel, divisible},
};
use crate::BufferId;
use eglu_ir::{DType, Dim, Program, Ref, ops::Pointwise, program::InstrOp};

/// A tensor read or written at (row, column): `pointer[base + row · row_stride + column · column_stride]`.
pub(super) struct Place {
    pub pointer: String,
    pub base: String,
    pub row_stride: Dim,
    pub column_stride: Dim,
    /// Condition under which it reads as zero.
    pub absent: Option<&'static str>,
    /// What is read, with the offset of its first element: tells which places are neighbours.
    pub origin: Option<(BufferId, Dim)>,
    /// Its rows lie in the order of the tiles.
    pub ordered: bool,
}

impl Place {
    /// A matrix of `columns` columns, dense from `base` on.
    pub fn dense(pointer: String, base: String, columns: &Dim) -> Place {
        let column_stride = Dim::from(1);
        Place { pointer, base, row_stride: columns.clone(), column_stride, absent: None, origin: None, ordered: false }
    }

    fn at(&self, kernel: &mut Kernel, column: &str) -> String {
        let row = if self.ordered { "place" } else { "row" };
        let offset = kernel.offset(&[row.into(), column.into()], &[self.row_stride.clone(), self.column_stride.clone()]);
        format!("{}[{} + {offset}]", self.pointer, self.base)
    }
}

/// A read of several values at once: `ty name` from `at`.
pub(super) struct Load {
    /// The capture, or the even one of two that take turns.
    pub capture: usize,
    pub ty: String,
    pub name: String,
    pub at: String,
    /// Values read: 1 for what a row has by itself.
    pub run: usize,
}

/// Where a visit finds what is read at once.
#[derive(Clone, Copy)]
enum Reads<'a> {
    /// In memory.
    Now,
    /// In `held`.
    Ahead,
    /// By these expressions, by name; `held` has the row.
    Pieces(&'a [(String, String)]),
}

/// A reduction along rows of a result that is not stored: its parts, of neighbouring columns each, are.
pub(super) struct Part {
    /// The result.
    pub result: usize,
    /// The type of a part.
    pub state: String,
    /// Where parts lie, row by row.
    pub scratch: usize,
    /// Columns of a part, and parts of a row.
    pub width: i64,
    pub each: i64,
}

/// The parts of an epilogue whose captures are read ahead.
pub(super) struct Fetched {
    /// Statements that declare `Held`, what a visit needs, and the lambda `fetch(m, n)` that reads it.
    pub declare: String,
    /// The lambda `visit(m, n, values, held)` that stores a run of columns.
    pub visit: String,
}

/// An epilogue: `program` takes the accumulators of each lane, then the captures.
pub(super) struct Epilogue<'a> {
    pub program: &'a Program,
    pub captures: Vec<Place>,
    pub outputs: Vec<Place>,
    /// The number of columns.
    pub columns: Dim,
    /// Expression of the row that tile row `m` stands for.
    pub row: String,
    /// Expression of its row in tensors in the order of the tiles.
    pub place: Option<String>,
    /// Condition under which zeros are stored instead.
    pub dropped: Option<&'static str>,
    /// Condition under which the products are zero.
    pub empty: Option<&'static str>,
    /// How many neighbouring columns a visit brings.
    pub run: usize,
    /// The output whose runs the tile stages in shared memory.
    pub staged: Option<usize>,
    /// Results that are reduced along their rows.
    pub parts: &'a [Part],
    /// A result that is not stored but goes to `staged[m * pitch + n]` of shared memory, and the pitch.
    pub folded: Option<(usize, i64)>,
}

impl Epilogue<'_> {
    /// Statements that store a finished `tile` of `rows` rows at column `n0`.
    pub fn store(&self, kernel: &mut Kernel, lanes: usize) -> Emit<String> {
        Ok(format!("tile.each({});\n", self.visit(kernel, lanes)?))
    }

    /// The same in parts, for tiles that read what several visits need before the first of them.
    pub fn fetched(&self, kernel: &mut Kernel, lanes: usize) -> Emit<Fetched> {
        let loads = self.loads(kernel, lanes)?;
        let (mut fields, mut fetches) = (String::new(), String::new());
        for Load { ty, name, at, .. } in &loads {
            fields += &format!("{ty} {name};\n");
            fetches += &format!("held.{name} = *(const {ty}*)&{at};\n");
        }
        let (columns, rows) = (kernel.dim(&self.columns), self.rows());
        let visit = self.visiting(kernel, lanes, Reads::Ahead)?;
        let declare = format!(
            "struct Held {{\n{fields}}};\nconst auto fetch = [&](int m, int n) {{\nHeld held{{}};\nconst i64 column = n0 + n;\n\
             if (m < rows && column < {columns}) {{\n{rows}{fetches}}}\nreturn held;\n}};\n"
        );
        Ok(Fetched { declare, visit })
    }

    /// The lambda that stores a run of columns of such a tile.
    pub fn visit(&self, kernel: &mut Kernel, lanes: usize) -> Emit<String> {
        self.visiting(kernel, lanes, Reads::Now)
    }

    /// The lambda `visit(m, n, values, held, piece)` that stores a run of columns, whose captures are these expressions, by name.
    pub fn visit_of(&self, kernel: &mut Kernel, lanes: usize, pieces: &[(String, String)]) -> Emit<String> {
        self.visiting(kernel, lanes, Reads::Pieces(pieces))
    }

    /// What a visit reads at once.
    pub fn loads(&self, kernel: &mut Kernel, lanes: usize) -> Emit<Vec<Load>> {
        let mut loads = Vec::new();
        for i in 0..self.captures.len() {
            self.read(kernel, i, self.program.params[lanes + i], &mut loads)?;
        }
        Ok(loads)
    }

    /// Statements that find the row of a visit.
    pub fn rows(&self) -> String {
        let place =
            self.place.as_ref().map_or_else(String::new, |place| format!("[[maybe_unused]] const i64 place = {place};\n"));
        format!("[[maybe_unused]] const i64 row = {};\n{place}", self.row)
    }

    fn visiting(&self, kernel: &mut Kernel, lanes: usize, reads: Reads<'_>) -> Emit<String> {
        let mut args = Vec::new();
        for (lane, &dtype) in self.program.params.iter().take(lanes).enumerate() {
            let ty = ctype::opmath(dtype)?;
            args.push(match self.empty {
                Some(condition) => format!("({condition} ? ({ty})0 : ({ty})acc[{lane}][e])"),
                None => format!("({ty})acc[{lane}][e]"),
            });
        }
        let mut loads = Vec::new();
        for i in 0..self.captures.len() {
            let read = self.read(kernel, i, self.program.params[lanes + i], &mut loads)?;
            args.push(match self.captures[i].absent {
                Some(condition) => format!("({condition} ? decltype({read})(0) : {read})"),
                None => read,
            });
        }
        let load = |Load { ty, name, at, .. }: &Load| match reads {
            Reads::Now => format!("const {ty} {name} = *(const {ty}*)&{at};\n"),
            Reads::Ahead => format!("const {ty} {name} = held.{name};\n"),
            Reads::Pieces(pieces) => {
                let piece = pieces.iter().find(|(of, _)| of == name).map_or("", |(_, piece)| piece);
                format!("const {ty} {name} = {piece};\n")
            }
        };
        let mut declare: String = loads.iter().map(load).collect();
        let (mut zero, mut stores) = (String::new(), String::new());
        for (i, &(_, dtype)) in self.program.results.iter().enumerate() {
            let ty = ctype::storage(dtype)?;
            declare += &format!("Pack<{ty}, {}> q{i};\n", self.run);
            args.push(format!("q{i}.at[e]"));
            zero += &format!("q{i}.at[e] = cast<{ty}>(0.0f);\n");
            if let Some(part) = self.parts.iter().find(|part| part.result == i) {
                stores += &self.store_part(kernel, part);
                continue;
            }
            let Some(output) = self.outputs.get(i) else {
                let pitch = self.folded.filter(|&(result, _)| result == i).map(|(_, pitch)| pitch);
                let stage = |pitch| format!("for (int e = 0; e < {}; e++) staged[m * {pitch} + n + e] = q{i}.at[e];\n", self.run);
                stores += &pitch.map_or_else(String::new, stage);
                continue;
            };
            stores += &if self.staged == Some(i) {
                format!("tile.stage(m, n, q{i});\n")
            } else if self.in_runs(output) && output.column_stride.is(1) {
                format!("*(Pack<{ty}, {}>*)&{} = q{i};\n", self.run, output.at(kernel, "column"))
            } else if self.take_turns(i) {
                let (at, odd, both) = (output.at(kernel, "column"), i + 1, 2 * self.run);
                let turns: Vec<String> = (0..self.run).map(|e| format!("q{i}.at[{e}], q{odd}.at[{e}]")).collect();
                format!("*(Pack<{ty}, {both}>*)&{at} = Pack<{ty}, {both}>{{{{{}}}}};\n", turns.join(", "))
            } else if i > 0 && self.take_turns(i - 1) {
                String::new()
            } else {
                format!("for (int e = 0; e < valid; e++) {} = q{i}.at[e];\n", output.at(kernel, "(column + e)"))
            };
        }
        let call = format!("epilogue({});\n", args.join(", "));
        let call = match self.dropped {
            Some(condition) => format!("if ({condition}) {{\n{zero}}} else {call}"),
            None => call,
        };
        let columns = kernel.dim(&self.columns);
        let checked =
            !matches!(reads, Reads::Now) || !self.captures.is_empty() || self.outputs.len() > usize::from(self.staged.is_some());
        if !checked {
            // The copy engine leaves out what lies outside.
            return Ok(format!(
                "[&](int m, int n, const auto& acc) {{\n{declare}#pragma unroll\nfor (int e = 0; e < {}; e++) {call}{stores}}}",
                self.run
            ));
        }
        let (run, valid) = match self.run {
            1 => (1, "1".to_string()),
            run if divisible(&self.columns, run as i64) => (run, run.to_string()),
            run => (run, format!("column + {run} <= {columns} ? {run} : (int)({columns} - column)")),
        };
        let (held, rows) = match reads {
            Reads::Now => ("", self.rows()),
            Reads::Ahead => (", [[maybe_unused]] const Held& held", self.rows()),
            Reads::Pieces(_) => {
                let rows = "[[maybe_unused]] const i64 row = held.row, place = start + m;\n".to_string();
                (", const Held& held, [[maybe_unused]] const auto& piece", rows)
            }
        };
        Ok(format!(
            "[&](int m, int n, const auto& acc{held}) {{\nconst i64 column = n0 + n;\nif (m >= rows || column >= {columns}) return;\n\
             {rows}const int valid = {valid};\n{declare}\
             #pragma unroll\nfor (int e = 0; e < {run}; e++) {{\nif (e >= valid) break;\n{call}}}\n{stores}}}"
        ))
    }
}

impl Epilogue<'_> {
    /// Statements that store a visit's part of a reduction.
    fn store_part(&self, kernel: &mut Kernel, part: &Part) -> String {
        let Part { result, state, scratch, width, each } = part;
        let (to, run) = (kernel.scratch(state, *scratch), self.run as i64);
        if *width < run {
            return format!(
                "for (int e = 0; e < valid; e++) {{\n{state} part;\npart.add(q{result}.at[e], 0);\n{to}[row * {each} + column + e] = part;\n}}\n"
            );
        }
        // Wider parts are those of eight neighbouring lanes.
        let (merge, first) = if *width > run { ("merge_eight(part);\n", "if (threadIdx.x % 8 == 0) ") } else { ("", "") };
        format!(
            "{{\n{state} part;\nfor (int e = 0; e < valid; e++) part.add(q{result}.at[e], e);\n{merge}{first}{to}[row * {each} + column / {width}] = part;\n}}\n"
        )
    }

    /// Column `e` of capture `i`, as arithmetic sees it. What a visit reads at once joins `loads`: neighbouring columns that lie together, or the
    /// one value of a row.
    fn read(&self, kernel: &mut Kernel, i: usize, dtype: DType, loads: &mut Vec<Load>) -> Emit<String> {
        let capture = &self.captures[i];
        let ty = ctype::storage(dtype)?;
        let even = |place: &Place| place.origin.as_ref().is_some_and(|(_, offset)| divisible(offset, self.run as i64));
        if self.in_runs(capture) && capture.column_stride.is(1) && even(capture) && dtype.size() <= 4 {
            let (ty, run) = (format!("Pack<{ty}, {}>", self.run), self.run);
            loads.push(Load { capture: i, ty, name: format!("c{i}"), at: capture.at(kernel, "column"), run });
            return Ok(format!("up(c{i}.at[e])"));
        }
        if capture.column_stride.is(0) {
            loads.push(Load { capture: i, ty: ty.into(), name: format!("c{i}"), at: capture.at(kernel, "column"), run: 1 });
            return Ok(format!("up(c{i})"));
        }
        // Two captures may take turns; the earlier of them reads for both.
        let partner = (0..self.captures.len()).find(|&other| self.interleave(i, other) || self.interleave(other, i));
        if let Some(other) = partner {
            let even = if self.interleave(i, other) { i } else { other };
            if i < other {
                let at = self.captures[even].at(kernel, "column");
                let (ty, run) = (format!("Pack<{ty}, {}>", 2 * self.run), 2 * self.run);
                loads.push(Load { capture: even, ty, name: format!("c{even}"), at, run });
            }
            return Ok(format!("up(c{even}.at[2 * e + {}])", usize::from(i != even)));
        }
        Ok(format!("up({})", capture.at(kernel, "(column + e)")))
    }

    /// Captures `first` and `second` are the even and odd columns of one tensor of 16-bit elements.
    fn interleave(&self, first: usize, second: usize) -> bool {
        let (a, b) = (&self.captures[first], &self.captures[second]);
        let lanes = self.program.params.len() - self.captures.len();
        let dtypes = [first, second].map(|i| self.program.params[lanes + i]);
        let (Some((from, offset)), Some((other, next))) = (&a.origin, &b.origin) else { return false };
        from == other
            && *next == offset.clone() + Dim::from(1)
            && dtypes[0] == dtypes[1]
            && dtypes[0].size() == 2
            && [&a.column_stride, &b.column_stride].iter().all(|stride| stride.is(2))
            && a.row_stride == b.row_stride
            && a.base == b.base
            && a.absent == b.absent
            && self.in_runs(a)
            && divisible(&a.row_stride, 2 * self.run as i64)
            && divisible(offset, 2 * self.run as i64)
    }

    /// A visit's columns all exist, and start on a multiple of their number in a row.
    fn in_runs(&self, place: &Place) -> bool {
        let run = self.run as i64;
        run > 1 && divisible(&place.row_stride, run) && divisible(&self.columns, run)
    }

    /// Results `i` and `i + 1` take turns in one tensor.
    fn take_turns(&self, i: usize) -> bool {
        let (Some(a), Some(b)) = (self.outputs.get(i), self.outputs.get(i + 1)) else { return false };
        let dtypes = [i, i + 1].map(|i| self.program.results[i].1);
        a.pointer == b.pointer
            && [a, b].iter().all(|place| place.column_stride.is(2) && self.in_runs(place))
            && (a.base.as_str(), b.base.as_str()) == ("0", "1")
            && dtypes[0] == dtypes[1]
            && dtypes[0].size() <= 4
    }
}

/// `program` with each lane's bias, where it has one, added first; biases become parameters after the lanes.
pub(super) fn with_biases(program: &Program, biases: &[Option<DType>]) -> Program {
    let lanes = program.params.len();
    let mut biased = Program::new(program.params.iter().copied().chain(biases.iter().flatten().copied()));
    let mut inputs: Vec<Ref> = (0..lanes as u32).map(Ref::Param).collect();
    let mut next = lanes as u32;
    for (lane, bias) in biases.iter().enumerate() {
        if bias.is_some() {
            let args = [Ref::Param(lane as u32), Ref::Param(next)];
            inputs[lane] = biased.push(InstrOp::Pointwise(Pointwise::Add), args, program.params[lane]);
            next += 1;
        }
    }
    let shift = biased.instrs.len() as u32;
    let moved = |operand: Ref| match operand {
        Ref::Param(i) => inputs[i as usize],
        Ref::Instr(i) => Ref::Instr(i + shift),
        scalar => scalar,
    };
    for instr in &program.instrs {
        biased.push(instr.op, instr.args.iter().map(|&arg| moved(arg)), instr.dtype);
    }
    biased.results = program.results.iter().map(|&(result, dtype)| (moved(result), dtype)).collect();
    biased
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_added_before_the_program() {
        let mut glu = Program::new([DType::Bf16; 2]);
        let product = glu.push(InstrOp::Pointwise(Pointwise::Mul), [Ref::Param(0), Ref::Param(1)], DType::Bf16);
        glu.results.push((product, DType::Bf16));
        let biased = with_biases(&glu, &[None, Some(DType::Bf16)]);
        assert_eq!(biased.params.len(), 3);
        assert_eq!(biased.instrs[0].args[..], [Ref::Param(1), Ref::Param(2)]);
        assert_eq!(biased.instrs[1].args[..], [Ref::Param(0), Ref::Instr(0)]);
        assert_eq!(biased.results[0], (Ref::Instr(1), DType::Bf16));
    }
}
