//! What kernels keep in shared memory is within what their launches ask for, for lines of any length; what they keep in device memory stays
//! small.

use eglu_codegen::{
    cuda::{Target, emit},
    lower,
};
use eglu_ir::{
    Bindings, DType, Dim, Graph, OutputKind, TensorType,
    ops::{Axes, Reduce, ReduceKind, Softmax},
};

/// The number after `text` in `source`.
fn number(source: &str, text: &str) -> i64 {
    let at = source.find(text).unwrap_or_else(|| panic!("no `{text}` in\n{source}")) + text.len();
    let digits: String = source[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|error| panic!("after `{text}`: {error}"))
}

/// Checks every kernel that keeps lines of a softmax over `length`, whose largest extent is `most`; counts them.
fn check(dtype: DType, arch: u32, length: Dim, most: i64) -> usize {
    let mut graph = Graph::new("softmax");
    let x = graph.add_input("x", TensorType::new(dtype, [Dim::from(1000), length]));
    let y = graph.add_call("y", Softmax { dim: 1, log: false, dtype }.into(), [x.into()]).unwrap();
    graph.add_output(y.into(), OutputKind::User);
    let plan = emit(&lower(&graph).unwrap(), Target { arch }).unwrap();
    let mut kept = 0;
    for launch in plan.launches.iter().filter(|launch| launch.shared_bytes > 0) {
        let source = &plan.modules[launch.module].source;
        let body = &source[source.find("extern \"C\"").unwrap()..];
        let width = 16 / dtype.size() as i64;
        let (stage, block) = (number(body, "ring0 + stage * "), i64::from(launch.block[0]));
        let stages = number(body, "stage = stage == ") + 1;
        let threads = number(body, "k++, q += ");
        // Groups that the loops go to: bounded by what the kernel says, or by the lines that it is launched for.
        let groups = match body.contains("q < min(packs, (Index)") {
            true => number(body, "q < min(packs, (Index)"),
            false if launch.grid[0].as_const().is_some() => (most + width - 1) / width,
            false => match number_of_bound(&launch.grid[0].to_string()) {
                Some(longest) => (longest + width - 1) / width,
                None => panic!("nothing bounds the lines of {}", launch.grid[0]),
            },
        };
        let last = (stages - 1) * stage + (groups + threads - 1) / threads * block - 1;
        let slots = i64::from(launch.shared_bytes) / 16;
        assert!(last < slots, "{dtype} × {most} for sm_{arch}: group {last} of {slots} in shared memory of {}", launch.grid[0]);
        kept += 1;
    }
    kept
}

/// The longest line of a launch for lines of unknown length: one less than the largest number its grid divides the length by.
fn number_of_bound(grid: &str) -> Option<i64> {
    let bounds = grid.split("floordiv(n, ").skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<i64>().ok()
    });
    bounds.max().map(|bound| bound - 1)
}

#[test]
fn kept_lines_fit_into_what_is_asked_for() {
    let mut kept = 0;
    for dtype in [DType::F32, DType::Bf16, DType::F64] {
        for arch in [80, 86, 90] {
            let near = |n: i64| [n - 1, n, n + 1];
            let lengths = (8..20).flat_map(|bits| near(1 << bits)).chain([300_000, 1_000_003]);
            kept += lengths.map(|length| check(dtype, arch, Dim::from(length), length)).sum::<usize>();
            kept += check(dtype, arch, Dim::symbol("n"), i64::MAX);
        }
    }
    assert!(kept > 300, "{kept} kernels keep lines");
}

#[test]
fn blocks_that_share_lines_have_sizes_of_a_run() {
    let mut graph = Graph::new("sum");
    let [planes, rows, columns] = ["planes", "rows", "columns"].map(Dim::symbol);
    let x = graph.add_input("x", TensorType::new(DType::I8, [planes, rows, columns]));
    let op = Reduce { kind: ReduceKind::Sum, dims: Axes::from_slice(&[1]), keepdim: false, dtype: DType::I64 };
    let y = graph.add_call("y", op.into(), [x.into()]).unwrap();
    graph.add_output(y.into(), OutputKind::User);
    let plan = emit(&lower(&graph).unwrap(), Target { arch: 90 }).unwrap();
    let sizes = Bindings::from([("planes".into(), 64), ("rows".into(), 4096), ("columns".into(), 1024)]);
    let bytes: i64 = plan.scratch.iter().map(|scratch| scratch.bytes.eval(&sizes).unwrap()).sum();
    assert!((1..1 << 24).contains(&bytes), "{bytes} bytes of partial sums");
    let blocks = plan.launches.iter().map(|launch| launch.grid.iter().map(|dim| dim.eval(&sizes).unwrap()).product::<i64>());
    assert_eq!(blocks.collect::<Vec<_>>(), [768]);
}
