//! Random weights for benchmarks: fast before statistically perfect.

use super::WeightError;
use crate::{Bindings, DType, Tensor, TensorType, tensor::TensorError};

/// Weights are windows of one pool of samples, at random offsets: billions of weights cost a copy each, not a logarithm.
const POOL: usize = 1 << 16;
/// Elements copied from one place; odd, so that windows do not line up with rows.
const WINDOW: usize = 8191;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box and Muller 1958).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// A weight of this name and type.
pub fn tensor(name: &str, ty: &TensorType, seed: u64) -> Result<Tensor, WeightError> {
    let failed = |source: TensorError| WeightError::Tensor { name: name.into(), source };
    let dynamic = |e: crate::dim::DimError| WeightError::Refused { name: name.into(), why: e.to_string().into() };
    let shape = ty.concrete(&Bindings::new()).map_err(dynamic)?;
    let mut tensor = Tensor::zeros(ty.dtype, &shape).map_err(failed)?;
    let fan_in = shape.last().copied().unwrap_or(1).max(1) as f64;
    let (mean, spread) = match shape.len() {
        0 | 1 if name.ends_with("bias") => (0.0, 0.02),
        0 | 1 => (1.0, 0.02),
        _ => (0.0, fan_in.sqrt().recip()),
    };
    let start = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut random = Random(start);
    let wanted = tensor.numel() * if ty.dtype.is_complex() { 2 } else { 1 };
    let samples: Vec<f64> = (0..POOL.min(wanted)).map(|_| mean + spread * random.normal()).collect();
    match ty.dtype {
        DType::F64 => fill(tensor.as_mut_slice::<f64>(), &samples, &mut random),
        DType::F32 => fill(tensor.as_mut_slice::<f32>(), &convert(&samples, |x| x as f32), &mut random),
        DType::F16 => fill(tensor.as_mut_slice::<half::f16>(), &convert(&samples, half::f16::from_f64), &mut random),
        DType::Bf16 => fill(tensor.as_mut_slice::<half::bf16>(), &convert(&samples, half::bf16::from_f64), &mut random),
        DType::C64 => fill(tensor.as_mut_slice::<[f32; 2]>().as_flattened_mut(), &convert(&samples, |x| x as f32), &mut random),
        DType::C128 => fill(tensor.as_mut_slice::<[f64; 2]>().as_flattened_mut(), &samples, &mut random),
        DType::F8E4M3Fn => fill(tensor.bytes_mut(), &convert(&samples, |x| float8::F8E4M3::from_f64(x).to_bits()), &mut random),
        DType::F8E5M2 => fill(tensor.bytes_mut(), &convert(&samples, |x| float8::F8E5M2::from_f64(x).to_bits()), &mut random),
        // A scale of one, 2⁰.
        DType::F8E8M0 => tensor.bytes_mut().fill(127),
        _ => {}
    }
    Ok(tensor)
}

fn convert<T>(samples: &[f64], to: impl Fn(f64) -> T) -> Vec<T> {
    samples.iter().map(|&x| to(x)).collect()
}

/// Fills `out` with windows of the pool.
fn fill<T: Copy>(out: &mut [T], pool: &[T], random: &mut Random) {
    for window in out.chunks_mut(WINDOW) {
        let room = pool.len() - window.len().min(pool.len());
        let start = (random.next() % (room as u64 + 1)) as usize;
        window.copy_from_slice(&pool[start..start + window.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_repeat_by_seed_and_keep_their_scale() {
        let ty = TensorType::fixed(DType::F32, &[300, 400]);
        let [a, b, c] = [(1, "w"), (1, "w"), (2, "w")].map(|(seed, name)| tensor(name, &ty, seed).unwrap());
        assert_eq!(a, b);
        assert_ne!(a, c);
        let square: f32 = a.as_slice::<f32>().iter().map(|x| x * x).sum::<f32>() / a.numel() as f32;
        assert!((square * 400.0 - 1.0).abs() < 0.1, "{square}");
    }

    #[test]
    fn norm_scales_lie_around_one() {
        let scale = tensor("norm.weight", &TensorType::fixed(DType::Bf16, &[64]), 0).unwrap();
        assert!(scale.as_slice::<half::bf16>().iter().all(|x| (x.to_f32() - 1.0).abs() < 0.2));
        let bias = tensor("proj.bias", &TensorType::fixed(DType::F32, &[64]), 0).unwrap();
        assert!(bias.as_slice::<f32>().iter().all(|x| x.abs() < 0.2));
    }
}
