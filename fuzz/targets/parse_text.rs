//! Any text as a graph in the textual form.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match eglu_ir::text::parse(text) {
        Ok(graph) => eglu_fuzz::check(&graph),
        Err(error) => drop(error.to_string()),
    }
});
