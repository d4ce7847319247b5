//! Compiling with NVRTC, which needs no GPU. Where there is no NVRTC the tests skip; `EGLU_REQUIRE_NVRTC=1` makes that a failure.

use eglu_codegen::cuda::Module;
use eglu_runtime::cuda::{CudaError, Finding, compile, probe};

fn has_nvrtc() -> bool {
    let probe = probe();
    let required = std::env::var_os("EGLU_REQUIRE_NVRTC").is_some_and(|value| value == "1");
    match probe.nvrtc {
        Finding::Found(_) => true,
        Finding::Missing(why) if required => panic!("EGLU_REQUIRE_NVRTC is set, but {why}"),
        Finding::Missing(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

fn module(name: &str, source: &str) -> Module {
    Module { name: name.into(), source: source.into() }
}

#[test]
fn compiles_for_old_and_new_architectures() {
    if !has_nvrtc() {
        return;
    }
    let modules: Vec<Module> = (0..3)
        .map(|i| {
            let source = format!(
                "extern \"C\" __global__ void add{i}(float *out, const float *in, long long n) {{\n\
                 long long i = blockIdx.x * 256ll + threadIdx.x;\n if (i < n) out[i] = in[i] + {i}.f;\n}}\n"
            );
            module(&format!("add{i}"), &source)
        })
        .collect();
    for arch in ["sm_80", "sm_90a"] {
        let cubins = compile(&modules, arch).unwrap();
        for (i, cubin) in cubins.iter().enumerate() {
            assert!(cubin.image.starts_with(b"\x7fELF"));
            let uses = cubin.uses();
            assert_eq!(uses.len(), 1, "{}", cubin.log);
            assert_eq!((uses[0].entry.clone(), uses[0].spill_bytes), (format!("add{i}"), 0));
            assert!(uses[0].registers > 0);
        }
        assert_eq!(compile(&modules, arch).unwrap(), cubins, "a second time from the cache");
    }
}

#[test]
fn a_broken_source_names_module_and_line() {
    if !has_nvrtc() {
        return;
    }
    let good = module("good", "extern \"C\" __global__ void k() {}\n");
    let broken = module("broken", "extern \"C\" __global__ void k(int *p) {\n    p[0] = undefined_name;\n}\n");
    let error = compile(&[good, broken], "sm_80").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CudaError::Compile(_)), "{text}");
    for part in ["`broken`", "sm_80", "undefined_name", "broken.cu(2)", "p[0] = undefined_name;"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn an_unknown_architecture_is_an_error() {
    if !has_nvrtc() {
        return;
    }
    let error = compile(&[module("k", "extern \"C\" __global__ void k() {}")], "sm_1").unwrap_err().to_string();
    assert!(error.contains("sm_1"), "{error}");
}

#[test]
fn probing_never_fails() {
    let probe = probe();
    assert!(probe.usable() || !probe.problems().is_empty(), "unusable, so something is wrong");
    assert!(serde_json::to_value(&probe).is_ok_and(|json| json["cache"].is_object()));
    assert!(probe.to_string().contains("NVRTC"));
}
