//! Every kernel that the fixtures need compiles, for every target, without a GPU.

use crate::fixture::{ARCHIVES, Form, plan};
use eglu_codegen::cuda::{Module, Target, emit};
use eglu_ir::{DeviceProfile, profile};
use eglu_runtime::cuda::{Finding, compile, probe};

const TARGETS: [(u32, &str, DeviceProfile); 2] = [(80, "sm_80", profile::A100), (90, "sm_90a", profile::H200)];

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
    for (arch, name, profile) in TARGETS {
        let mut modules: Vec<Module> = vec![];
        for archive in ARCHIVES {
            for form in [Form::Fused, Form::Unfused] {
                let emitted = emit(&plan(archive, form, &profile).0, Target { arch });
                let emitted = emitted.unwrap_or_else(|error| panic!("{archive} {form:?} {name}: {error}"));
                assert!(!emitted.launches.is_empty(), "{archive} {form:?}");
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
                Ok(cubin) => {
                    wrong.extend(cubin.uses().iter().filter(|_| module.source.contains("mma.sync")).filter_map(|kernel| {
                        let spills = format!("{} of {} spills {} bytes", kernel.entry, module.name, kernel.spill_bytes);
                        (kernel.spill_bytes > 0).then_some(spills)
                    }))
                }
            }
        }
        eprintln!("{name}: {} kernels", modules.len());
        assert!(wrong.is_empty(), "{name}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}
