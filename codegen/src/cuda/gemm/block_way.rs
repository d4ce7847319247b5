//! The ways to run a mixture-of-experts block, and which is taken at how many tokens.

use super::{
    super::{
        BlockWay, COUNTERS, Chosen, Schedule, TOKENS, choices,
        emitter::{Emitter, elements, optional, tensor},
        error::{Emit, Unsupported},
    },
    dispatch,
    expert_product::Engine,
    experts::experts_of,
    few::{Few, few_tokens},
    main_loop::{MainLoop, RowCount},
    swapped::{Swapped, Variant},
    wgmma::{Strides, Wgmma},
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim};

/// How a block runs, with 1 where there are so many tokens and else 0.
pub(super) struct Ways {
    /// Few tokens, whose rows the kernel itself orders.
    pub tokens: Vec<(Few, Dim)>,
    /// Any other number.
    pub any: Vec<(Way, Dim)>,
}

/// A way to run a block whose rows were ordered before it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// Both projections and the weighted sum in one launch.
    Single(Few),
    /// Both projections in one launch.
    Few(Few),
    /// A launch for each.
    Products((Engine, Engine)),
}

impl Way {
    fn tile(self) -> (i64, i64) {
        match self {
            Way::Single(few) | Way::Few(few) => few.tile(),
            Way::Products((up, _)) => up.tile(),
        }
    }

    fn label(self, dtype: DType) -> String {
        match self {
            Way::Single(few) => format!("one launch, {} rows", few.tile().0),
            Way::Few(few) => format!("one launch and the sum, {} rows", few.tile().0),
            Way::Products((up, down)) => format!("{} then {}", up.label(dtype), down.label(dtype)),
        }
    }
}

/// Any way, with the most tokens that it is for.
#[derive(Clone, Copy, PartialEq)]
enum Candidate {
    Tokens(Few, i64),
    Any(Way),
}

/// The tiles that a block's products want of its rows, for the numbers of rows at which they want any.
pub(super) fn tiles(emitter: &Emitter, step: &Step) -> Emit<Vec<dispatch::Height>> {
    Ok(Ways::of(emitter, step)?.heights())
}

/// The ways to run a block at so many tokens, the usual one first.
pub(in super::super) fn ways(emitter: &Emitter, step: &Step, tokens: i64) -> Vec<BlockWay> {
    let Ok(block) = Block::of(emitter, step) else { return vec![] };
    let way = |(name, candidate)| match candidate {
        Candidate::Tokens(_, most) => BlockWay { name, most: Some(most) },
        Candidate::Any(_) => BlockWay { name, most: None },
    };
    block.candidates(tokens).into_iter().map(way).collect()
}

impl Ways {
    /// The ways of this step: those that were chosen, or the usual ones.
    pub fn of(emitter: &Emitter, step: &Step) -> Emit<Ways> {
        let block = Block::of(emitter, step)?;
        let chosen = choices::key(step).and_then(|key| emitter.choices.blocks.get(&key)).and_then(|chosen| block.chosen(chosen));
        Ok(chosen.unwrap_or_else(|| block.usual()))
    }

    /// The tiles that they want.
    pub fn heights(&self) -> Vec<dispatch::Height> {
        self.any.iter().map(|(way, when)| (way.tile(), when.clone())).collect()
    }
}

/// What ways are chosen by.
struct Block<'a> {
    emitter: &'a Emitter,
    x: &'a TensorRef,
    lanes: Vec<&'a TensorRef>,
    down: &'a TensorRef,
    ids: &'a TensorRef,
    experts: i64,
    choices: i64,
    /// The kernel for few rows, unless each projection is to have a launch.
    few: Option<Few>,
    /// Everything is to be one launch.
    single: bool,
}

impl<'a> Block<'a> {
    fn of(emitter: &'a Emitter, step: &'a Step) -> Emit<Block<'a>> {
        let (x, gate, down, ids) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 5)?, tensor(step, 7)?);
        let lanes: Vec<&TensorRef> = [Some(gate), optional(step, 3)].into_iter().flatten().collect();
        let Some(choices) = ids.layout.shape[1].as_const() else {
            return Err(Unsupported::new("the number of experts a token takes must be known"));
        };
        let schedule = emitter.choices.schedule;
        let few = match Few::choose(emitter.target, x, &lanes, down) {
            Err(why) if schedule == Schedule::Single => {
                return Err(Unsupported::new(format!(
                    "no single kernel takes this block: {why}; choose the schedule `split` or `auto`"
                )));
            }
            few => few.ok().filter(|_| schedule != Schedule::Split),
        };
        let single = schedule == Schedule::Single;
        Ok(Block { emitter, x, lanes, down, ids, experts: experts_of(gate)?, choices, few, single })
    }

    /// What is taken where nobody chooses.
    fn usual(&self) -> Ways {
        let counts = RowCount::by_expert(self.emitter.target, self.x.dtype, &elements(self.ids), self.experts);
        let mut any = RowCount::chosen(counts, |rows| self.usual_for(rows));
        if let [(Way::Single(few), when)] = &mut any[..] {
            // Each of its tiles has a counter, of which there are enough but for very many tokens.
            let most = (COUNTERS as i64 / 2 - 4 - self.experts) * few.tile().0 / self.choices;
            let tokens = &self.ids.layout.shape[0];
            if self.emitter.most(tokens).is_none_or(|tokens| tokens > most) {
                let beyond = Dim::min(&tokens.floor_div(&Dim::from(most + 1)), &Dim::from(1));
                *when = when.clone() - beyond.clone();
                any.push((Way::Products(self.engines(None)), beyond));
            }
        }
        let tokens = self.few.map_or_else(Vec::new, |few| few_tokens(few, &self.ids.layout.shape[0], self.choices));
        // So few tokens are few rows for each expert.
        any[0].1 = tokens.iter().fold(any[0].1.clone(), |when, (_, fewer)| when - fewer.clone());
        any.retain(|(_, when)| !when.is(0));
        Ways { tokens, any }
    }

    fn usual_for(&self, rows: Option<i64>) -> Way {
        match self.few {
            Some(few) if self.single => Way::Single(few),
            Some(few) if Few::is_best_for(rows) => Way::Few(few),
            _ => Way::Products(self.engines(rows)),
        }
    }

    /// The ways by these names, if the block has them all.
    fn chosen(&self, chosen: &[Chosen]) -> Option<Ways> {
        let count = &self.ids.layout.shape[0];
        let (mut ways, mut left, mut before) = (Ways { tokens: vec![], any: vec![] }, Dim::from(1), 0);
        for Chosen { up_to, way } in chosen {
            let known = count.as_const();
            let most = up_to.unwrap_or(i64::MAX).min(known.unwrap_or(i64::MAX));
            let (_, candidate) = self.candidates(known.unwrap_or(before + 1)).into_iter().find(|(name, _)| name == way)?;
            let above = up_to.map_or(Dim::from(0), |limit| Dim::min(&count.floor_div(&Dim::from(limit + 1)), &Dim::from(1)));
            let when = left - above.clone();
            (left, before) = (above, most);
            if when.is(0) {
                continue;
            }
            match candidate {
                Candidate::Tokens(_, limit) if limit < most => return None,
                Candidate::Tokens(few, _) => ways.tokens.push((few, when)),
                Candidate::Any(way) => match ways.any.iter_mut().find(|(other, _)| *other == way) {
                    Some((_, known)) => *known = known.clone() + when,
                    None => ways.any.push((way, when)),
                },
            }
        }
        left.is(0).then_some(ways)
    }

    /// All ways at so many tokens by name, the usual one first.
    fn candidates(&self, tokens: i64) -> Vec<(String, Candidate)> {
        let dtype = self.x.dtype;
        let mut found: Vec<(String, Candidate)> = vec![];
        let mut add = |candidate: Candidate| {
            let name = match candidate {
                Candidate::Tokens(_, most) => format!("one launch, up to {most} tokens"),
                Candidate::Any(way) => way.label(dtype),
            };
            if found.iter().all(|(known, _)| *known != name) {
                found.push((name, candidate));
            }
        };
        let at_these = |when: &Dim| when.eval(&[(TOKENS.into(), tokens)].into_iter().collect()) == Ok(1);
        let tokens_dim = Dim::symbol(TOKENS);
        let rows = RowCount::by_expert(self.emitter.target, dtype, &(tokens_dim.clone() * Dim::from(self.choices)), self.experts);
        let few_of_tokens = self.few.map_or_else(Vec::new, |few| few_tokens(few, &tokens_dim, self.choices));
        let of_tokens = few_of_tokens.iter().filter(|(_, when)| at_these(when));
        of_tokens.for_each(|(few, _)| add(Candidate::Tokens(*few, few.tile().0)));
        let usual = rows.iter().filter(|count| at_these(&count.when));
        usual.for_each(|count| add(Candidate::Any(self.usual_for(count.rows))));
        if !self.single {
            rows.iter().for_each(|count| add(Candidate::Any(Way::Products(self.engines(count.rows)))));
            let few_rows = self.few.filter(|few| tokens * self.choices <= few.tile().0 * self.experts);
            few_rows.into_iter().flat_map(|few| [Way::Few(few), Way::Single(few)]).for_each(|way| add(Candidate::Any(way)));
        }
        found
    }

    /// The engines of the block's products, over one list of row tiles: `lanes` side by side, then `down`, for about so many rows an expert.
    fn engines(&self, rows: Option<i64>) -> (Engine, Engine) {
        let Block { emitter, x, lanes, down, .. } = self;
        let (inner, outer) = (&lanes[0].layout.shape[1], &down.layout.shape[1]);
        let activations = Strides { row: inner, k: &Dim::from(1), bases: vec![] };
        let swapped = |rows_of: &Strides<'_>, depth: &Dim, weights: &[&TensorRef]| {
            Swapped::choose(emitter.target, [x.dtype; 2], Variant::of(rows, &elements(self.ids)), rows_of, depth, weights)
        };
        let up = swapped(&Strides::of_rows(x), &x.layout.shape[1], lanes);
        if let (Ok(up), Ok(down)) = (up, swapped(&activations, inner, &[down])) {
            return (Engine::Swapped(up), Engine::Swapped(down));
        }
        let choose =
            |x_strides: &Strides<'_>, weights: &[&TensorRef]| Wgmma::choose(emitter.target, x.dtype, rows, x_strides, weights);
        match (choose(&Strides::of_rows(x), lanes), choose(&activations, &[down])) {
            (Ok(up), Ok(down)) => (Engine::Clusters(up), Engine::Clusters(down)),
            (Err(why), _) | (_, Err(why)) => {
                let block = |lanes, columns: &Dim| MainLoop::choose(emitter.target, x.dtype, lanes, rows, columns.as_const());
                let (up, down) = block(lanes.len(), inner).over_same_rows(block(1, outer));
                (Engine::Blocks(up, why), Engine::Blocks(down, why))
            }
        }
    }
}
