//! The text of kernels that take short lines in one pass: a few threads for each line and several lines at once.

use super::{
    super::error::Emit,
    forms::{Form, THREADS},
    rows::Text,
};

impl Text<'_> {
    /// The threads of a line merge all their lines together: each step leaves them half of the lines, or half of the threads to go.
    pub fn short(&mut self, rows: &str, lanes: i64) -> Emit<String> {
        let (chain, walk, Form { groups, lines, .. }) = (self.form.chain, self.form.walk, self.form);
        let bases = self.bases()?;
        let at = format!("u * {groups} + k");
        let [declared, loads] = self.groups(groups * lines, &at, &|_| true)?;
        // The lines of a warp are neighbours, and so are those that it loads at once.
        let (across, warps) = (32 / lanes, THREADS / 32);
        let place = format!(
            "const i64 at_row = ((i64)blockIdx.x * {warps} + threadIdx.x / 32) * {} + u * {across} + threadIdx.x % 32 / {lanes};\n\
             const bool valid = at_row < {rows};\nconst i64 row = valid ? at_row : 0;\n{bases}",
            across * lines
        );
        let each_line = format!("#pragma unroll\nfor (int u = 0; u < {lines}; u++) {{\n{place}");
        let each = |packs: &str| {
            format!(
                "#pragma unroll\nfor (int k = 0; k < {groups}; k++) {{\nconst Index q = lane + k * {lanes};\nif (q < {packs}) {{\n"
            )
        };
        let (first, then) = (each("packs"), each("same"));
        let adds = self.group(0, &|i| walk.moves(i).then(|| format!("h{i}[{at}]")))?;
        let edges = self.edges(0, "valid && ")?;
        // Lines that a thread is left with, and the threads that are left with the same.
        let (left, alike) = ((lines / lanes).max(1), (lanes / lines).max(1));
        let results = self.results(0, &format!("valid && lane % {alike} == 0"))?;
        Ok(format!(
            "const int lane = threadIdx.x % {lanes};\n{declared}{each_line}{first}{loads}}}\n}}\n}}\n\
             State0 states[{lines}];\n{each_line}const Index same = unknown(packs);\n{}{then}{adds}}}\n}}\n{}{edges}states[u] = state0;\n}}\n\
             merge_lines<{lanes}>(states);\n#pragma unroll\nfor (int left = 0; left < {left}; left++) {{\n\
             const int u = lane / {alike} * {left} + left;\n{place}const State0 state0 = states[left];\n{results}}}\n",
            chain.begin(0, self.form.steps(), self.form.keyed())?,
            chain.settle(0, self.form.steps(), self.form.keyed())?,
        ))
    }
}
