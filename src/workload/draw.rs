//! Drawing the elements of one input.

use super::{InputSpec, Routing};
use eglu_ir::{
    Bindings, DType, Tensor,
    eval::{EvalError, EvalOperand, eval_op},
    ops::Cast,
    tensor::TensorError,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::index::sample_weighted};
use rand_distr::{Distribution, StandardNormal};

/// Why an input cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DrawError {
    #[error("a row of {k} distinct experts cannot be drawn from {experts}: give topk:E with E of {k} or more")]
    TooFewExperts { k: usize, experts: usize },
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Cast(#[from] EvalError),
}

/// A tensor of this type, drawn as `spec` says. Equal seeds give equal tensors.
pub fn draw(dtype: DType, shape: &[usize], spec: InputSpec, routing: Routing, seed: u64) -> Result<Tensor, DrawError> {
    let mut rng = StdRng::seed_from_u64(seed);
    let count: usize = shape.iter().product();
    let wide = match spec {
        InputSpec::Normal => {
            let data: Vec<f32> = (0..count).map(|_| StandardNormal.sample(&mut rng)).collect();
            Tensor::from_slice(DType::F32, shape, &data)?
        }
        InputSpec::Uniform { lo, hi } => {
            let data: Vec<f64> = (0..count).map(|_| rng.random_range(lo..hi)).collect();
            Tensor::from_slice(DType::F64, shape, &data)?
        }
        InputSpec::RandInt { lo, hi } => {
            let data: Vec<i64> = (0..count).map(|_| rng.random_range(lo..hi)).collect();
            Tensor::from_slice(DType::I64, shape, &data)?
        }
        InputSpec::TopK { experts } => {
            let k = shape.last().copied().unwrap_or(1);
            if k > experts {
                return Err(DrawError::TooFewExperts { k, experts });
            }
            Tensor::from_slice(DType::I64, shape, &expert_ids(count, k, experts, routing, &mut rng))?
        }
    };
    if wide.dtype() == dtype {
        return Ok(wide);
    }
    let mut cast = eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new())?;
    // A cast has one output.
    Ok(cast.swap_remove(0))
}

/// `count` ids in rows of `k` distinct ones.
fn expert_ids(count: usize, k: usize, experts: usize, routing: Routing, rng: &mut StdRng) -> Vec<i64> {
    let rows = count.checked_div(k).unwrap_or(0);
    let weight = |expert: usize| match routing {
        Routing::Zipf => 1.0 / (expert + 1) as f64,
        Routing::Uniform | Routing::Balanced => 1.0,
    };
    let mut ids = Vec::with_capacity(count);
    for row in 0..rows {
        match routing {
            Routing::Balanced => ids.extend((0..k).map(|j| ((row * k + j) % experts) as i64)),
            // Fails only for weights that are negative or not finite.
            _ => match sample_weighted(rng, experts, weight, k) {
                Ok(chosen) => ids.extend(chosen.into_iter().map(|expert| expert as i64)),
                Err(_) => ids.extend((0..k).map(|j| j as i64)),
            },
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(routing: Routing) -> Vec<i64> {
        draw(DType::I64, &[512, 2], InputSpec::TopK { experts: 8 }, routing, 7).unwrap().as_slice::<i64>().to_vec()
    }

    fn load(ids: &[i64], expert: i64) -> usize {
        ids.iter().filter(|&&id| id == expert).count()
    }

    #[test]
    fn rows_hold_distinct_experts() {
        for routing in [Routing::Uniform, Routing::Zipf, Routing::Balanced] {
            let ids = ids(routing);
            assert!(ids.chunks(2).all(|row| row[0] != row[1] && row.iter().all(|&id| (0..8).contains(&id))), "{routing:?}");
        }
    }

    #[test]
    fn routing_shapes_the_load() {
        let (balanced, zipf) = (ids(Routing::Balanced), ids(Routing::Zipf));
        assert!((0..8).all(|expert| load(&balanced, expert) == 128));
        assert!(load(&zipf, 0) > 2 * load(&zipf, 7));
    }

    #[test]
    fn equal_seeds_give_equal_tensors() {
        let of = |seed| draw(DType::Bf16, &[4, 4], InputSpec::Normal, Routing::Uniform, seed).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn too_few_experts_is_an_error() {
        assert!(draw(DType::I64, &[3, 4], InputSpec::TopK { experts: 2 }, Routing::Uniform, 0).is_err());
    }
}
