//! Memory that kernels need while they run, kept from run to run: fresh pages cost more than many a kernel.

use super::matrix::Number;
use std::sync::{Mutex, PoisonError};

/// Buffers that no kernel uses at the moment.
#[derive(Debug, Default)]
pub struct Scratch(Mutex<Vec<Vec<u64>>>);

/// A buffer on loan.
pub struct Loan<'a> {
    words: Vec<u64>,
    home: &'a Scratch,
}

impl Scratch {
    /// Memory for `len` numbers, with any contents.
    pub fn lend<T: Number>(&self, len: usize) -> Loan<'_> {
        let need = (len * size_of::<T>()).div_ceil(size_of::<u64>());
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that is large enough, else the largest grows.
        let fits = (0..idle.len()).filter(|&i| idle[i].len() >= need).min_by_key(|&i| idle[i].len());
        let pick = fits.or_else(|| (0..idle.len()).max_by_key(|&i| idle[i].len()));
        let mut words = pick.map_or_else(Vec::new, |i| idle.swap_remove(i));
        drop(idle);
        if words.len() < need {
            words = vec![0; need];
        }
        Loan { words, home: self }
    }
}

impl Loan<'_> {
    /// The first `len` numbers.
    pub fn get<T: Number>(&mut self, len: usize) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..len]
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.words);
        self.home.0.lock().unwrap_or_else(PoisonError::into_inner).push(words);
    }
}
