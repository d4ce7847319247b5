//! Arguments: help, and exit code 2 for what makes no sense.

use super::call::{eglu, fixture};

#[test]
fn help_names_every_subcommand_and_the_exit_codes() {
    let help = eglu(["--help"]).success().stdout;
    for word in ["inspect", "optimize", "emit", "run", "bench", "doctor", "Exit codes"] {
        assert!(help.contains(word), "{word}");
    }
    for command in ["inspect", "optimize", "emit", "run", "bench", "compile", "doctor"] {
        assert!(!eglu([command, "--help"]).success().stdout.is_empty());
    }
    // What a subcommand takes and gives is told by its own help, not only what it is for.
    for (command, words) in [
        ("run", ["input.0", "tolerance", "exit code 1"]),
        ("bench", ["medians", "eager mode", "--trace"]),
        ("inspect", ["after import", "refused", "mermaid"]),
        ("doctor", ["cold start", "reference evaluator", "--no-run"]),
    ] {
        let help = eglu([command, "--help"]).success().stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.iter().all(|word| help.contains(word)), "{help}");
    }
}

#[test]
fn bad_usage_is_two() {
    let (model, io) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    eglu::<&str>([]).error(2, &["Usage"]);
    eglu(["frobnicate"]).error(2, &["frobnicate"]);
    eglu(["run"]).error(2, &["MODEL"]);
    eglu(["run", &model]).error(2, &["--inputs"]);
    eglu(["run", &model, "--inputs", &io, "--device", "tpu"]).error(2, &["tpu"]);
    eglu(["optimize", &model, "--device", "tpu"]).error(2, &["tpu"]);
    eglu(["optimize", &model, "--passes", "canonicalize,magic"]).error(2, &["magic", "egraph"]);
    eglu(["optimize", &model, "--explain", "ghost"]).error(2, &["ghost"]);
    eglu(["optimize", &model, "-o", "graph.xyz"]).error(2, &["graph.xyz", ".json"]);
    eglu(["emit", &model, "--arch", "sm_52", "-o", "out"]).error(2, &["sm_52", "sm_90a"]);
    eglu(["bench", &model, "--input", "0=banana"]).error(2, &["banana"]);
    eglu(["bench", &model, "--input", "7=normal"]).error(2, &["7"]);
    eglu(["bench", &model, "--dim", "s99=4"]).error(2, &["s99"]);
}

#[test]
fn doctor_always_answers() {
    let outcome = eglu(["doctor"]).success();
    assert!(outcome.stdout.contains("NVRTC") && outcome.stdout.contains("driver"), "{outcome:?}");
}
