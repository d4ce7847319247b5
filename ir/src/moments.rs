//! Mean and variance of a row, by Welford's algorithm in lanes, joined pairwise (Chan, Golub & LeVeque 1979).
//!
//! A layer norm subtracts a rounded mean, so a mean one unit off moves every element of a row far from zero. The order in which PyTorch's
//! CPU kernel joins (`RowwiseMoments`, aten/src/ATen/native/cpu/moments_utils.h, compiled with fused multiply-adds) is therefore part of
//! the result, and is kept here: lanes of 32 bytes, chunks of 16 vectors, a binary counter of chunks, then lane by lane.

use crate::ops::pointwise::Real;
use smallvec::{SmallVec, smallvec};

/// Vectors that one chunk accumulates.
const CHUNK: usize = 16;
/// Lanes of a vector: 8 of f32; of f64 the upper half idles.
const LANES: usize = 8;

/// Moments of the elements seen so far, in each lane.
#[derive(Clone, Copy, Debug)]
struct Moments<T, const L: usize> {
    count: usize,
    mean: [T; L],
    /// `Σ (x - mean)²`.
    squares: [T; L],
}

impl<T: Real> Moments<T, 1> {
    /// As `join`, in the form that the lanes of a vector are joined in.
    #[inline(always)]
    fn join_lane(&mut self, count: usize, mean: T, squares: T) {
        let (mine, all) = (T::lit(self.count as f64), self.count + count);
        if all == 0 {
            return;
        }
        let share = T::lit(count as f64) / T::lit(all as f64);
        let apart = mean - self.mean[0];
        self.mean[0] = share.mul_add(apart, self.mean[0]);
        self.squares[0] = self.squares[0] + (apart * apart * share).mul_add(mine, squares);
        self.count = all;
    }
}

impl<T: Real, const L: usize> Moments<T, L> {
    #[inline(always)]
    fn none() -> Self {
        Moments { count: 0, mean: [T::zero(); L], squares: [T::zero(); L] }
    }

    #[inline(always)]
    fn join(&mut self, other: &Self) {
        let (mine, count) = (T::lit(self.count as f64), self.count + other.count);
        if count == 0 {
            return;
        }
        let share = T::lit(other.count as f64) / T::lit(count as f64);
        for lane in 0..L {
            let apart = other.mean[lane] - self.mean[lane];
            let step = share * apart;
            self.mean[lane] = self.mean[lane] + step;
            self.squares[lane] = (apart * mine).mul_add(step, self.squares[lane] + other.squares[lane]);
        }
        self.count = count;
    }

    /// The moments of a chunk of vectors of `width` elements.
    #[inline(always)]
    fn of_chunk(chunk: &[T], width: usize) -> Self {
        let mut moments = Self::none();
        for vector in chunk.chunks_exact(width) {
            moments.count += 1;
            let share = T::one() / T::lit(moments.count as f64);
            for (lane, &x) in vector.iter().enumerate().take(L) {
                let apart = x - moments.mean[lane];
                moments.mean[lane] = apart.mul_add(share, moments.mean[lane]);
                moments.squares[lane] = apart.mul_add(x - moments.mean[lane], moments.squares[lane]);
            }
        }
        moments
    }
}

/// The mean of a row and `1 / sqrt(variance + eps)`, the variance without correction.
///
/// Squares that leave the range of `T` are summed in f64 instead, where PyTorch's result would be 0 or NaN.
#[inline(always)]
pub fn standardization<T: Real>(row: &[T], eps: f64) -> (T, T) {
    let (mean, variance) = moments(row);
    if variance.is_finite() || row.is_empty() {
        return (mean, T::one() / (variance + T::lit(eps)).sqrt());
    }
    let wide = |x: &T| x.to_f64().unwrap_or(f64::NAN);
    let count = row.len() as f64;
    let mean = row.iter().map(wide).sum::<f64>() / count;
    let variance = row.iter().map(|x| (wide(x) - mean).powi(2)).sum::<f64>() / count;
    (T::lit(mean), T::lit(1.0 / (variance + eps).sqrt()))
}

/// Mean and variance; NaN of no elements.
#[inline(always)]
fn moments<T: Real>(row: &[T]) -> (T, T) {
    let width = LANES * size_of::<f32>() / size_of::<T>();
    let vectors = row.len() / width;
    let chunks = vectors.div_ceil(CHUNK);
    let depth = (chunks.max(2) - 1).ilog2() as usize + 1;
    let mut levels: SmallVec<[Moments<T, LANES>; 8]> = smallvec![Moments::none(); depth];
    for (i, chunk) in row[..vectors * width].chunks(CHUNK * width).enumerate() {
        levels[0].join(&Moments::of_chunk(chunk, width));
        // A level moves up when it is full, as a binary counter carries.
        for level in 1..depth.min((i + 1).trailing_zeros() as usize + 1) {
            let full = std::mem::replace(&mut levels[level - 1], Moments::none());
            levels[level].join(&full);
        }
    }
    let (first, rest) = levels.split_at_mut(1);
    rest.iter().for_each(|level| first[0].join(level));
    // What fills no vector comes first, then the lanes in order.
    let mut total = Moments::<T, 1>::none();
    for &x in &row[vectors * width..] {
        let apart = x - total.mean[0];
        total.count += 1;
        total.mean[0] = total.mean[0] + apart / T::lit(total.count as f64);
        total.squares[0] = apart.mul_add(x - total.mean[0], total.squares[0]);
    }
    for lane in 0..width {
        total.join_lane(first[0].count, first[0].mean[lane], first[0].squares[lane]);
    }
    let count = T::lit(row.len() as f64);
    if row.is_empty() { (T::nan(), T::nan()) } else { (total.mean[0], total.squares[0] / count) }
}

#[cfg(test)]
mod tests;
