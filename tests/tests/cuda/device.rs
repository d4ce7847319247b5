//! Where there is no device, tests that run on one say so and pass; `EGLU_REQUIRE_GPU=1` makes that a failure.

use eglu::runtime::cuda::probe;

/// True, with a note, if there is nothing to run on.
pub fn is_missing() -> bool {
    let probe = probe();
    let required = std::env::var_os("EGLU_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(probe.usable() || !required, "EGLU_REQUIRE_GPU is set, but:\n{probe}");
    if !probe.usable() {
        eprintln!("skipped:\n{probe}");
    }
    !probe.usable()
}
