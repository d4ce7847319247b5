//! Random contents, the same for the same seed.

use super::{Bound, InputError, Routing, Spec, bounds, defaults};
use eglu_codegen::Plan;
use eglu_ir::{
    Bindings, DType, Tensor,
    eval::{EvalOperand, eval_op},
    ops::Cast,
    tensor::TensorError,
};
use indexmap::IndexMap;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use rand_distr::{Distribution, StandardNormal};

/// Inputs of the plan in signature order: `specs` by position, the rest by [`defaults`].
pub fn generate(
    plan: &Plan,
    bindings: &Bindings,
    specs: &IndexMap<usize, Spec>,
    routing: Routing,
    seed: u64,
) -> Result<Vec<Tensor>, InputError> {
    generate_within(plan, &bounds(plan), bindings, specs, routing, seed)
}

/// [`generate`] where what is known of the inputs is not the plan's own knowledge.
pub fn generate_within(
    plan: &Plan,
    bounds: &[Vec<Bound>],
    bindings: &Bindings,
    specs: &IndexMap<usize, Spec>,
    routing: Routing,
    seed: u64,
) -> Result<Vec<Tensor>, InputError> {
    if let Some(&index) = specs.keys().find(|&&index| index >= plan.inputs.len()) {
        return Err(InputError::Index { model: plan.name.clone(), index, count: plan.inputs.len() });
    }
    let defaults = defaults(plan, bounds, bindings)?;
    plan.inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let spec = specs.get(&index).copied().unwrap_or(defaults[index]);
            let shape = input.ty.concrete(bindings)?;
            let mut rng = StdRng::seed_from_u64(seed.wrapping_add(index as u64));
            let misfit = |why: &str| InputError::Misfit {
                index,
                name: input.name.clone(),
                ty: input.ty.to_string(),
                spec,
                why: why.into(),
            };
            let real = |values: Vec<f64>| cast(DType::F64, &shape, &values, input.ty.dtype, &misfit);
            let ints = |values: Vec<i64>| cast(DType::I64, &shape, &values, input.ty.dtype, &misfit);
            match spec {
                Spec::Normal => real(draw(DType::F64, &shape, || StandardNormal.sample(&mut rng))?),
                Spec::Uniform(low, high) => real(draw(DType::F64, &shape, || rng.random_range(low..=high))?),
                Spec::RandInt(low, high) => ints(draw(DType::I64, &shape, || rng.random_range(low..high))?),
                Spec::TopK(experts) => {
                    let k = shape.last().copied().unwrap_or(1);
                    if k as i64 > experts {
                        return Err(misfit(&format!("a row has {k} ids, of which only {experts} can differ")));
                    }
                    ints(draw(DType::I64, &shape, choose(&mut rng, k, experts as usize, routing))?)
                }
            }
        })
        .collect()
}

fn cast<T: eglu_ir::tensor::Element>(
    from: DType,
    shape: &[usize],
    values: &[T],
    to: DType,
    misfit: &dyn Fn(&str) -> InputError,
) -> Result<Tensor, InputError> {
    let tensor = Tensor::from_slice(from, shape, values)?;
    let cast = Cast { dtype: to }.into();
    match eval_op(&cast, &[EvalOperand::Tensor(&tensor)], &Bindings::new()) {
        Ok(mut all) => Ok(all.swap_remove(0)),
        Err(e) => Err(misfit(&e.to_string())),
    }
}

/// Numbers for a tensor of this shape, or the error of one that is too large for the memory.
fn draw<T>(dtype: DType, shape: &[usize], mut one: impl FnMut() -> T) -> Result<Vec<T>, TensorError> {
    let too_large = || TensorError::TooLarge { dtype, shape: shape.to_vec() };
    let numel = shape.iter().try_fold(1usize, |numel, &extent| numel.checked_mul(extent)).ok_or_else(too_large)?;
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(numel).map_err(|_| too_large())?;
    numbers.extend((0..numel).map(|_| one()));
    Ok(numbers)
}

/// Ids below `experts` one after the other, any `k` of a row distinct.
fn choose(rng: &mut StdRng, k: usize, experts: usize, routing: Routing) -> impl FnMut() -> i64 {
    let mut order: Vec<i64> = (0..experts as i64).collect();
    if routing == Routing::Balanced {
        order.shuffle(rng);
    }
    let (mut drawn, mut left) = (0, Vec::new());
    move || {
        let at = drawn;
        drawn += 1;
        if routing == Routing::Balanced {
            return order[at % experts];
        }
        // Partial Fisher-Yates by weight: each draw of a row takes one of the ids left.
        if at % k.max(1) == 0 {
            left.clone_from(&order);
        }
        let place = match routing {
            Routing::Zipf => {
                let total: f64 = left.iter().map(|&id| 1.0 / (id + 1) as f64).sum();
                let mut draw = rng.random_range(0.0..total);
                let hit = left.iter().position(|&id| {
                    draw -= 1.0 / (id + 1) as f64;
                    draw < 0.0
                });
                hit.unwrap_or(left.len() - 1)
            }
            _ => rng.random_range(0..left.len()),
        };
        left.swap_remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_distinct_experts() {
        for routing in [Routing::Uniform, Routing::Zipf, Routing::Balanced] {
            let mut rng = StdRng::seed_from_u64(1);
            let mut next = choose(&mut rng, 2, 8, routing);
            let ids: Vec<i64> = (0..1600).map(|_| next()).collect();
            assert!(ids.chunks(2).all(|row| row[0] != row[1] && row.iter().all(|id| (0..8).contains(id))));
            let count = |id: i64| ids.iter().filter(|&&other| other == id).count();
            let counts: Vec<usize> = (0..8).map(count).collect();
            match routing {
                Routing::Balanced => assert_eq!(counts, [200; 8]),
                Routing::Zipf => assert!(counts[0] > 2 * counts[7], "{counts:?}"),
                Routing::Uniform => assert!(counts.iter().all(|count| (140..260).contains(count)), "{counts:?}"),
            }
        }
    }
}
