//! Any bytes as an archive.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(graph) = eglu_fuzz::import_bytes(bytes, "bytes.pt2") {
        eglu_fuzz::check(&graph);
    }
});
