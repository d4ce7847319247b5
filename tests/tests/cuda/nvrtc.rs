//! Where there is no NVRTC, tests that compile say so and pass; `EGLU_REQUIRE_NVRTC=1` makes that a failure.

use eglu::runtime::cuda::{Finding, probe};

/// True, with a note, if there is nothing to compile with.
pub fn is_missing() -> bool {
    let required = std::env::var_os("EGLU_REQUIRE_NVRTC").is_some_and(|value| value == "1");
    match probe().nvrtc {
        Finding::Found(_) => false,
        Finding::Missing(why) if required => panic!("EGLU_REQUIRE_NVRTC is set, but {why}"),
        Finding::Missing(why) => {
            eprintln!("skipped: {why}");
            true
        }
    }
}
