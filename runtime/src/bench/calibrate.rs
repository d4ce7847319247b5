//! The host's own peak rates, measured in about a tenth of a second.

use eglu_ir::DeviceProfile;
use rayon::prelude::*;
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// How long each rate is measured.
const TIME: Duration = Duration::from_millis(30);

/// A profile of this host under the current rayon pool: bandwidth of a large copy, rates of f32 products and of f32 multiply-adds.
pub fn host() -> DeviceProfile {
    DeviceProfile {
        name: "cpu".into(),
        multiprocessors: rayon::current_num_threads() as u32,
        bandwidth: bandwidth(),
        matrix_flops: matrix_flops(),
        vector_flops: vector_flops(),
        launch_seconds: launch_seconds(),
        ..eglu_ir::profile::CPU.clone()
    }
}

/// The shortest time of one `f`, seconds, after a first one that is not counted.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed() < TIME {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best.max(1e-9)
}

fn bandwidth() -> f64 {
    // Four times a usual last-level cache share; two buffers.
    const LEN: usize = 16 << 20;
    let (from, mut to) = (vec![1.0f32; LEN], vec![0.0f32; LEN]);
    let piece = LEN.div_ceil(4 * rayon::current_num_threads());
    let seconds = best(|| to.par_chunks_mut(piece).zip(from.par_chunks(piece)).for_each(|(to, from)| to.copy_from_slice(from)));
    black_box(&to);
    2.0 * (LEN * size_of::<f32>()) as f64 / seconds
}

fn matrix_flops() -> f64 {
    const N: usize = 512;
    let threads = rayon::current_num_threads();
    let (a, b) = (vec![1e-3f32; N * N], vec![1e-3f32; N * N]);
    let mut outs = vec![vec![0.0f32; N * N]; threads];
    let seconds = best(|| outs.par_iter_mut().for_each(|out| crate::cpu::square_product(&a, &b, out, N)));
    black_box(&outs);
    (2 * N * N * N * threads) as f64 / seconds
}

fn vector_flops() -> f64 {
    const LEN: usize = 4096;
    const ROUNDS: usize = 64;
    let mut lanes = vec![vec![1.0f32; LEN]; rayon::current_num_threads()];
    let seconds = best(|| {
        lanes.par_iter_mut().for_each(|lane| {
            for _ in 0..ROUNDS {
                crate::cpu::simd(|| lane.iter_mut().for_each(|x| *x = *x * 0.999 + 0.001));
            }
        });
    });
    black_box(&lanes);
    (2 * LEN * ROUNDS * lanes.len()) as f64 / seconds
}

/// What it costs to hand work to all threads and wait for them.
fn launch_seconds() -> f64 {
    best(|| {
        (0..4 * rayon::current_num_threads()).into_par_iter().for_each(|i| {
            black_box(i);
        })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn rates_are_plausible() {
        let profile = super::host();
        assert!(profile.bandwidth > 1e8 && profile.bandwidth < 1e13, "{profile:?}");
        assert!(profile.matrix_flops > 1e7 && profile.vector_flops > 1e6, "{profile:?}");
    }
}
