//! Any program inside a sound archive.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|model: &[u8]| {
    if let Some(graph) = eglu_fuzz::import_bytes(&eglu_fuzz::archive(model), "model.pt2") {
        eglu_fuzz::check(&graph);
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    match eglu_fuzz::mutate::document(&data[..size], seed).filter(|changed| seed % 8 > 0 && changed.len() <= max_size) {
        Some(changed) => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        None => fuzzer_mutate(data, size, max_size),
    }
});
