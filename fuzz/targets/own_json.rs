//! Any text as a graph in the project's JSON.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|text: &str| {
    match eglu_ir::json::from_json(text) {
        Ok(graph) => eglu_fuzz::check(&graph),
        Err(error) => drop(error.to_string()),
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
