//! The tiles of a router's product: some tokens by all experts, K split over a cluster.

use super::{
    bulk::{DEPTH, MULTIPROCESSORS, ceil_div},
    operand::Walk,
};
use eglu_ir::Dim;

/// Shared memory of a block, less what a router declares besides its ring and its logits, bytes.
const ROOM: i64 = (227 << 10) - (18 << 10);
/// Numbers of tokens up to which a kernel of its own may run where the number is a symbol, and what stands for more.
const LIMITS: [i64; 4] = [16, 256, 1024, 4096];
const MANY: i64 = 16384;

/// `rows` tokens by `groups · parts` pieces of 64 experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouterTile {
    pub rows: i64,
    pub groups: i64,
    pub parts: i64,
    /// Blocks of a cluster, which share K.
    pub splits: i64,
    pub stages: i64,
    pub walk: Walk,
    experts: i64,
    /// Bytes of a logit.
    size: i64,
}

impl RouterTile {
    /// The fastest tiles for `tokens` tokens, each with a factor of its grid: 1 where it runs and else 0.
    pub fn cases(walk: Walk, [experts, depth]: [i64; 2], size: i64, tokens: &Dim) -> Vec<(RouterTile, Dim)> {
        let fastest = |tokens: i64| RouterTile::all(walk, experts, size).min_by_key(|tile| tile.clocks(tokens, depth));
        if let Some(tokens) = tokens.as_const() {
            return fastest(tokens).map(|tile| (tile, Dim::from(1))).into_iter().collect();
        }
        let mut cases: Vec<(RouterTile, Dim)> = vec![];
        let mut from = Dim::from(1);
        let beyond = |limit: i64| Dim::min(&tokens.floor_div(&Dim::from(limit + 1)), &Dim::from(1));
        for (limit, above) in LIMITS.map(|limit| (limit, beyond(limit))).into_iter().chain([(MANY, Dim::from(0))]) {
            let Some(tile) = fastest(limit) else { return vec![] };
            let when = from - above.clone();
            from = above;
            match cases.last_mut() {
                Some((last, condition)) if *last == tile => *condition = condition.clone() + when,
                _ => cases.push((tile, when)),
            }
        }
        cases
    }

    fn all(walk: Walk, experts: i64, size: i64) -> impl Iterator<Item = RouterTile> {
        let (groups, parts) = match ceil_div(experts, 64) {
            1 => (1, 1),
            2 => (2, 1),
            3 => (3, 1),
            4 => (2, 2),
            5 | 6 => (3, 2),
            _ => (4, 2),
        };
        let rows = [8, 16, 32, 64, 128].into_iter();
        let all = rows.flat_map(move |rows| {
            [1, 2, 4, 8].map(|splits| RouterTile { rows, groups, parts, splits, stages: 0, walk, experts, size })
        });
        all.filter_map(|tile| {
            let stages = (ROOM - tile.own_rows() * tile.pitch() * tile.size).div_euclid(tile.stage_bytes() + 16).min(8);
            // The more warpgroups, the fewer registers each thread has.
            let most = [128, 128, 64, 32][tile.groups as usize - 1];
            let fits = stages >= 2
                && tile.accumulators() <= most
                && (tile.splits == 1 || tile.rows * tile.width() * 4 <= stages * tile.stage_bytes());
            fits.then_some(RouterTile { stages, ..tile })
        })
    }

    /// Tokens that a block finishes: neighbours, in runs of eight.
    pub fn own_rows(self) -> i64 {
        ceil_div(self.rows / 8, self.splits) * 8
    }

    /// Experts that there is room for.
    pub fn width(self) -> i64 {
        64 * self.groups * self.parts
    }

    /// Accumulators of a thread.
    fn accumulators(self) -> i64 {
        self.rows / 2 * self.parts
    }

    /// Warps that multiply, one that fills the ring, and as many more, which choose only, as registers allow: a choice is a chain of
    /// dependent steps, so that it takes many warps to keep a multiprocessor busy.
    pub fn threads(self) -> u32 {
        // Registers are given out to four warps at a time: one more than sixteen would leave each thread 96 in place of 128.
        let (fewest, most) = (self.groups as u32 * 128 + 32, if self.accumulators() <= 64 { 512 } else { 0 });
        // A warp for each token is enough.
        if self.own_rows() <= i64::from(fewest / 32) { fewest } else { fewest.max(most) }
    }

    /// Logits from token to token: the lanes of a warp, which hold two tokens by eight experts four times over, then meet in no bank.
    pub fn pitch(self) -> i64 {
        ceil_div(self.experts, 16) * 16 + 4
    }

    pub fn shared_bytes(self) -> u32 {
        (1024 + self.stages * (self.stage_bytes() + 16) + self.own_rows() * self.pitch() * self.size) as u32
    }

    fn stage_bytes(self) -> i64 {
        (self.rows + self.width()) * 128
    }

    /// About how many clocks a router takes; the rates are those of `Stream::clocks`, and a warp chooses for a token in about 2,500 clocks.
    fn clocks(self, tokens: i64, depth: i64) -> i64 {
        let clusters = ceil_div(tokens, self.rows);
        let turns = ceil_div(clusters, MULTIPROCESSORS.div_euclid(self.splits));
        let steps = ceil_div(ceil_div(depth, i64::from(DEPTH)), self.splits);
        let step = (self.stage_bytes() / 36).max(2000 / (self.stages - 1)).max(self.groups * self.parts * 64 * self.rows / 32);
        let sums = self.rows * self.width() * 4 * (self.splits - 1) / self.splits;
        let adding = if self.splits > 1 { 2000 + sums / 4 } else { 0 };
        let tokens_of_block = tokens.min(self.own_rows());
        let choosing = ceil_div(tokens_of_block, i64::from(self.threads() / 32)) * 2500;
        turns * (steps * step + adding + choosing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_ir::Bindings;

    #[test]
    fn every_number_of_tokens_has_one_kernel() {
        for experts in [8, 60, 128, 160, 256, 320, 512] {
            let cases = RouterTile::cases(Walk::KMajor, [experts, 2048], 4, &Dim::symbol("t"));
            for tokens in [1, 16, 17, 256, 257, 1024, 4096, 4097, 70000] {
                let bindings = Bindings::from([("t".into(), tokens)]);
                let runs = cases.iter().filter(|(_, when)| when.eval(&bindings) == Ok(1)).count();
                assert_eq!(runs, 1, "{experts} experts, {tokens} tokens: {cases:?}");
            }
        }
    }

    #[test]
    fn tiles_fit_shared_memory_and_hold_all_experts() {
        for experts in 1..=512 {
            for (tile, _) in RouterTile::cases(Walk::KMajor, [experts, 7168], 4, &Dim::symbol("t")) {
                assert!(tile.width() >= experts && tile.rows % tile.own_rows() == 0, "{tile:?}");
                // Static: a run's bits, and four numbers for each expert; then what lies beside them.
                let words = ceil_div(tile.own_rows(), 32);
                let bytes = i64::from(tile.shared_bytes()) + experts * (words * 4 + 16) + 512;
                assert!(bytes <= 227 << 10, "{tile:?}: {bytes}");
            }
        }
    }
}
