use super::*;
use crate::Dim;

fn refused(text: &str) -> String {
    parse(text).expect_err("must be refused").to_string()
}

#[test]
fn reads_what_people_write() {
    let text = r#"
        graph "g"   // a comment
        symbol s0: 2..=8
        %x: f32[s0, 4] = input
        %sum: f32[s0, 1] = reduce(%x) {keepdim=true, kind=sum, dims=[1], dtype=f32}
        %y: f32[s0, 4] = div(%x, %sum)
        output %y
    "#;
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let canonical = print(&graph);
    assert!(canonical.contains("%sum: f32[s0, 1] = reduce(%x) {kind=sum, dims=[1], keepdim=true, dtype=f32}\n"), "{canonical}");
    assert_eq!(print(&parse(&canonical).unwrap_or_else(|e| panic!("{e}"))), canonical);
}

#[test]
fn errors_say_where_and_what() {
    let start = "graph \"g\"\n%x: f32[2, 3] = input\n";
    let check = |line: &str, message: &str| assert_eq!(refused(&format!("{start}{line}")), message);
    check("%y: f32[2, 3] = exp(%z)", "3:22: expected a node defined before, but there is no `%z` yet");
    check("%y: f32[2, 3] = expp(%x)", "3:17: there is no op called `expp`");
    check("%y: f32[2, 2] = exp(%x)", "3:5: expected `f32[2, 3]`, which the operands of `%y` make it");
    check("%y: f32[2, 3] = exp(%x#1)", "3:22: expected an output of `%x` below 1, found 1");
    check("%y: f32[2] = softmax(%x) {dim=1}", "3:14: `softmax` needs the attribute `log`");
    check("%y: f99[2]", "3:5: expected a dtype, found `f99`");
    check("%x: f32[2] = input", "3:2: the node `%x` is defined twice");
    check("%c: f32[2] = constant [1.0]", "3:23: expected the elements of f32[2], found 1");
    check("output", "3:7: expected `%`, found the end of the text");
    check("%d: f32[s7] = input", "3:20: node `d` (input) mentions the symbol `s7`, which the graph does not declare");
}

#[test]
fn deep_nesting_is_refused() {
    let deep = |depth: usize| format!("{}s0{}", "floordiv(".repeat(depth), ", 7)".repeat(depth));
    assert!(deep(20).parse::<Dim>().is_ok());
    let error = deep(100_000).parse::<Dim>().expect_err("must be refused").to_string();
    assert!(error.contains("nest more than 32 deep"), "{error}");
}

#[test]
fn dims_read_as_they_print() {
    for text in ["0", "-3", "2*s0+1", "s0*s0*s1+-1*s1", "floordiv(2*s0+1, 3)", "max(s0, rem(s1, s2))"] {
        assert_eq!(text.parse::<Dim>().map(|dim| dim.to_string()), Ok(text.to_string()));
    }
    assert_eq!("rem(s1, 4)".parse::<Dim>(), "s1 - 4*floordiv(s1, 4)".parse::<Dim>());
    assert_eq!("s0 - 2*s0".parse::<Dim>().map(|dim| dim.to_string()), Ok("-1*s0".to_string()));
}
