//! Every kernel that the fixtures need compiles, for every target, without a GPU.

use eglu::{
    Pipeline,
    codegen::cuda::{Module, Target, emit},
    runtime::cuda::{Finding, compile, probe},
};
use eglu_tests::{FIXTURES, plan};

/// Compute capability × 10, NVRTC's name for it, and the device that tiles and costs are chosen for.
const TARGETS: [(u32, &str, &str); 2] = [(80, "sm_80", "a100"), (90, "sm_90a", "h200")];

/// Archives without weights or references, at sizes of real models.
const LARGE: [&str; 3] = ["mixtral-8x7b-grouped_mm", "mixtral-8x7b-experts", "gpt-oss-120b-experts"];

/// What `ptxas` says where it serialises warpgroup products, or ignores a request for registers.
pub const PERFORMANCE_NOTES: [&str; 8] = ["C7504", "C7507", "C7508", "C7509", "C7511", "C7514", "C7515", "C7520"];

#[test]
fn every_kernel_compiles_without_spills() {
    let required = std::env::var_os("EGLU_REQUIRE_NVRTC").is_some_and(|value| value == "1");
    match probe().nvrtc {
        Finding::Found(_) => {}
        Finding::Missing(why) if required => panic!("EGLU_REQUIRE_NVRTC is set, but {why}"),
        Finding::Missing(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    }
    for (arch, name, device) in TARGETS {
        let mut modules: Vec<Module> = vec![];
        for archive in FIXTURES.iter().map(|fixture| fixture.0).chain(LARGE) {
            for pipeline in [Pipeline::standard(), Pipeline::unfused()] {
                let emitted = emit(&plan(archive, &pipeline, device), Target { arch });
                let emitted = emitted.unwrap_or_else(|error| panic!("{archive} {name}: {error}"));
                assert!(!emitted.launches.is_empty(), "{archive}");
                for module in emitted.modules {
                    if !modules.iter().any(|other| other.source == module.source) {
                        modules.push(module);
                    }
                }
            }
        }
        let mut wrong = vec![];
        // One by one where all together fail, so that every failure shows.
        let together = compile(&modules, name);
        for (i, module) in modules.iter().enumerate() {
            let alone = match &together {
                Ok(cubins) => Ok(cubins[i].clone()),
                Err(_) => compile(std::slice::from_ref(module), name).map(|mut cubins| cubins.remove(0)),
            };
            match alone {
                Err(error) => wrong.push(error.to_string()),
                Ok(cubin) if cubin.uses().is_empty() => wrong.push(format!("{} has no kernel:\n{}", module.name, cubin.log)),
                Ok(cubin) if PERFORMANCE_NOTES.iter().any(|note| cubin.log.contains(note)) => {
                    wrong.push(format!("{} is compiled to a slow form:\n{}", module.name, cubin.log));
                }
                Ok(cubin) => {
                    wrong.extend(cubin.uses().iter().filter(|_| module.source.contains("mma.sync")).filter_map(|kernel| {
                        let spills = format!("{} of {} spills {} bytes", kernel.entry, module.name, kernel.spill_bytes);
                        (kernel.spill_bytes > 0).then_some(spills)
                    }))
                }
            }
        }
        eprintln!("{name}: {} kernels", modules.len());
        assert_eq!(modules.iter().any(|module| module.source.contains("wgmma.mma_async")), arch == 90, "{name}");
        assert!(wrong.is_empty(), "{name}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}
