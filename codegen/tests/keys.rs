//! Positions of 16-bit numbers are held in keys, whose upper half is the number as it is stored, also where other reductions of the same pass
//! widen it.

use eglu_codegen::{
    cuda::{Target, emit},
    lower,
};
use eglu_ir::text::parse;

#[test]
fn keys_hold_numbers_as_they_are_stored() {
    for stored in ["bf16", "f16"] {
        let graph = parse(&format!(
            "graph \"keys\"\n%x: {stored}[4, 9] = input\n\
             %r: ({stored}[4], i64[4]) = map_reduce(%x) {{prologue={{(p0: {stored}) return (p0: f32, p0: f32)}}, kinds=[amax, argmax], \
             dims=[1], keepdim=false, epilogue={{(p0: {stored}, p1: i64) return (p0: {stored}, p1: i64)}}}}\noutput %r#0\noutput %r#1\n"
        ))
        .unwrap();
        let plan = emit(&lower(&graph).unwrap(), Target { arch: 90 }).unwrap();
        let sources: String = plan.modules.iter().map(|module| module.source.as_str()).collect();
        assert!(sources.contains(&format!("ArgKeyState<float, true, {stored}>")), "{stored}");
    }
}
