//! What machine code Hopper's kernels become, without a GPU: warpgroup products, nothing in local memory among them, registers that fit, none
//! of the compiler's notes on slow forms.

use crate::{compiles::PERFORMANCE_NOTES, nvrtc, training};
use eglu::{
    Pipeline,
    codegen::cuda::{Module, Target, emit},
    runtime::cuda::{Cubin, compile},
};
use eglu_tests::plan;
use std::collections::BTreeMap;

/// Archives of experts whose matrices lie in several ways, at sizes of real models. Steps of training are tested, too; dense products have a
/// test of their own.
const ARCHIVES: [&str; 3] = ["mixtral-8x7b-grouped_mm", "mixtral-8x7b-experts", "gpt-oss-120b-experts"];

/// The forms, as kernels are called after them.
const FORMS: [&str; 13] = [
    "_few_tokens_8",
    "_few_tokens_16",
    "_few_rows_32",
    "moe_up_bf16_swapped_128x160",
    "moe_down_bf16_swapped_256x160",
    "moe_up_bf16_swapped_128x288",
    "moe_down_bf16_swapped_256x288",
    "moe_up_bf16_swapped_128x352",
    "moe_down_bf16_swapped_256x352",
    "expert_contract_bf16_swapped",
    "expert_contract_bf16_wgmma_128x256",
    "expert_contract_bf16_wgmma_256x128",
    "expert_outer_bf16_wgmma",
];

/// Registers of a multiprocessor.
const REGISTERS: u32 = 1 << 16;

/// Opcodes, the twelve lowest bits of an instruction: a warpgroup product; loads from and stores to local memory.
const WARPGROUP_PRODUCT: u16 = 0x9f0;
const LOCAL: [u16; 2] = [0x387, 0x983];

/// The opcodes of each section of code of an ELF file.
fn sections(image: &[u8]) -> Vec<Vec<u16>> {
    let number = |at: usize, bytes: usize| image[at..at + bytes].iter().rev().fold(0usize, |n, &byte| n << 8 | usize::from(byte));
    let (headers, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    // SHF_EXECINSTR
    let code = (0..count).map(|i| headers + i * size).filter(|&header| number(header + 8, 8) & 4 != 0);
    code.map(|header| {
        let (start, bytes) = (number(header + 24, 8), number(header + 32, 8));
        (0..bytes / 16).map(|i| (number(start + i * 16, 2) & 0xfff) as u16).collect()
    })
    .collect()
}

/// How many warpgroup products there are in a cubin's code.
pub fn warpgroup_products(cubin: &Cubin) -> usize {
    sections(&cubin.image).iter().flatten().filter(|&&opcode| opcode == WARPGROUP_PRODUCT).count()
}

/// What is wrong with the code of a kernel of warpgroup products that `threads` threads run.
pub fn faults(cubin: &Cubin, threads: u32) -> Vec<String> {
    let mut faults = vec![];
    if warpgroup_products(cubin) == 0 {
        faults.push("no warpgroup products".to_string());
    }
    for code in sections(&cubin.image) {
        let is_product = |&opcode: &u16| opcode == WARPGROUP_PRODUCT;
        let first = code.iter().position(is_product).unwrap_or(0);
        let end = code.iter().rposition(is_product).unwrap_or(code.len());
        let local = code[first..end].iter().filter(|opcode| LOCAL.contains(opcode)).count();
        if local > 0 {
            faults.push(format!("{local} accesses to local memory among the products"));
        }
    }
    for kernel in cubin.uses() {
        // Registers are given to warps in units of 256.
        let taken = kernel.registers.next_multiple_of(8) * threads;
        if kernel.registers == 0 || taken > REGISTERS {
            faults.push(format!("{} registers for each of {threads} threads", kernel.registers));
        }
        if kernel.spill_bytes > 0 {
            faults.push(format!("{} bytes of spills", kernel.spill_bytes));
        }
    }
    if cubin.uses().is_empty() {
        faults.push("no word of what the kernel uses".to_string());
    }
    faults.extend(PERFORMANCE_NOTES.iter().filter(|note| cubin.log.contains(**note)).map(|note| format!("note {note}")));
    faults
}

#[test]
fn kernels_of_warpgroup_products_are_what_they_should_be() {
    if nvrtc::is_missing() {
        return;
    }
    // By source, with the threads of a launch.
    let mut modules: BTreeMap<String, (Module, u32)> = BTreeMap::new();
    let archives = ARCHIVES.map(|archive| plan(archive, &Pipeline::standard(), "h200"));
    for plan in archives.into_iter().chain(training::cases().into_iter().map(|(plan, _)| plan)) {
        let emitted = emit(&plan, Target { arch: 90 }).unwrap_or_else(|error| panic!("{}: {error}", plan.name));
        for launch in &emitted.launches {
            let module = &emitted.modules[launch.module];
            if module.source.contains("wgmma.mma_async") {
                modules.insert(module.source.clone(), (module.clone(), launch.block.iter().product()));
            }
        }
    }
    let (modules, threads): (Vec<Module>, Vec<u32>) = modules.into_values().unzip();
    eprintln!("{} kernels", modules.len());
    for form in FORMS {
        assert!(modules.iter().any(|module| module.name.contains(form)), "no kernel {form}");
    }
    let cubins = compile(&modules, "sm_90a").unwrap_or_else(|error| panic!("{error}"));
    let wrong: Vec<String> = (modules.iter().zip(cubins).zip(threads))
        .map(|((module, cubin), threads)| (module, faults(&cubin, threads)))
        .filter(|(_, faults)| !faults.is_empty())
        .map(|(module, faults)| format!("{}: {}", module.name, faults.join(", ")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn faults_of_machine_code_are_found() {
    if nvrtc::is_missing() {
        return;
    }
    let source = "extern \"C\" __global__ void slow(float* x, int n) {\nfloat held[64];\nfor (int i = 0; i < 64; i++) held[i] = x[i];\n\
                  for (int i = 0; i < n; i++) held[(i * 7) % 64] += held[i % 64];\n\
                  asm volatile(\"setmaxnreg.inc.sync.aligned.u32 232;\");\nx[n] = held[n % 64];\n}\n";
    let cubin = compile(&[Module { name: "slow".into(), source: source.into() }], "sm_90a").expect("it compiles").remove(0);
    let found = faults(&cubin, 1 << 14).join(", ");
    for fault in ["no warpgroup products", "accesses to local memory", "registers for each of 16384 threads", "note C7508"] {
        assert!(found.contains(fault), "{fault}: {found}");
    }
}
