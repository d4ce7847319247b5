//! What cannot be differentiated is refused by name; what carries no gradient is no obstacle.

use eglu_ir::{Graph, OutputKind, text::parse};
use eglu_passes::{AutodiffError, Gradients, autodiff::differentiate};

fn graph(text: &str) -> Graph {
    parse(&format!("graph \"g\"\n{text}")).expect("the text parses")
}

fn by(names: &[&str]) -> Gradients {
    Gradients { by: names.iter().map(|&name| name.into()).collect(), ..Gradients::default() }
}

#[test]
fn an_op_without_derivative_is_named() {
    let graph = graph("%x: f32[4] = input\n%y: f32[4] = input\n%h: f32[4] = digamma(%x)\n%z: f32[4] = mul(%h, %y)\noutput %z\n");
    let error = differentiate(&graph, &Gradients::default()).expect_err("no derivative");
    assert_eq!(
        error.to_string(),
        "node `h`: `digamma` has no derivative: the table has no trigamma function; a gradient by `x` is asked through it"
    );
    // The other factor's gradient does not pass through it.
    let joint = differentiate(&graph, &by(&["y"])).expect("differentiable by y");
    assert_eq!(joint.outputs()[1].kind, OutputKind::Gradient("y".into()));
}

#[test]
fn fused_ops_are_refused() {
    let graph =
        graph("%x: f32[4] = input\n%y: f32[4] = map(%x) {program={(p0: f32) v0: f32 = exp(p0); return (v0: f32)}}\noutput %y\n");
    let error = differentiate(&graph, &Gradients::default()).expect_err("fused").to_string();
    assert!(error.contains("`map`") && error.contains("before it is fused"), "{error}");
}

#[test]
fn integers_carry_nothing() {
    let graph = graph(
        "%x: f32[4] = input\n%n: i64[4] = input\n%i: i64[4] = cast(%x) {dtype=i64}\n%k: f32[4] = cast(%i) {dtype=f32}\n\
         %f: f32[4] = floor(%x)\n%a: f32[4] = add(%k, %f)\n%y: f32[4] = add(%a, %x)\noutput %y\n",
    );
    let joint = differentiate(&graph, &Gradients::default()).expect("differentiable");
    // The tangent itself: only the last addition carries a gradient.
    let gradients: Vec<_> = joint.outputs().iter().skip(1).collect();
    assert_eq!(gradients.len(), 1);
    assert_eq!(&*joint.node(gradients[0].value.node).name, "tangent");
    let error = differentiate(&graph, &by(&["n"])).expect_err("integers");
    assert_eq!(error.to_string(), "the input `n` is of i64: only real floats have gradients");
}

#[test]
fn complex_numbers_are_refused() {
    let graph = graph("%x: f32[4] = input\n%c: c64[4] = cast(%x) {dtype=c64}\n%y: f32[4] = abs(%c)\noutput %y\n");
    let error = differentiate(&graph, &Gradients::default()).expect_err("complex").to_string();
    assert!(error.starts_with("node `y`: `abs` has no derivative: gradients of complex numbers"), "{error}");
}

#[test]
fn names_are_checked() {
    let graph = graph("%x: f32[4] = input\n%w: f32[4] = weight \"a.b\"\n%y: f32[4] = mul(%x, %w)\noutput %y\n");
    let unknown = differentiate(&graph, &by(&["q"])).expect_err("no such input").to_string();
    assert!(unknown.contains("`q`") && unknown.contains("x, a.b"), "{unknown}");
    let of = |name: &str| Gradients { of: vec![name.into()], ..Gradients::default() };
    assert!(matches!(differentiate(&graph, &of("7")), Err(AutodiffError::UnknownOutput { .. })));
    let joint = differentiate(&graph, &of("y")).expect("differentiable");
    assert_eq!(joint.outputs().len(), 3);
    assert_eq!(differentiate(&joint, &Gradients::default()).expect_err("joint already"), AutodiffError::Joint);
    let kinds = |by: Gradients| -> Vec<_> {
        let joint = differentiate(&graph, &by).expect("differentiable");
        joint.outputs().iter().skip(1).map(|output| output.kind.clone()).collect()
    };
    let (x, w) = (OutputKind::Gradient("x".into()), OutputKind::Gradient("a.b".into()));
    assert_eq!(kinds(Gradients::default()), [x.clone(), w.clone()]);
    assert_eq!(kinds(by(&["w", "x", "a.b"])), [w.clone(), x.clone()]);
    assert_eq!(kinds(by(&["inputs"])), std::slice::from_ref(&x));
    assert_eq!(kinds(by(&["parameters"])), [w]);
    assert_eq!(kinds(Gradients { buffers: vec!["a.b".into()], ..Gradients::default() }), [x]);
}

#[test]
fn what_has_no_influence_has_a_gradient_of_zeros_if_it_is_named() {
    let graph = graph("%x: f32[4] = input\n%z: f32[2] = input\n%y: f32[4] = exp(%x)\noutput %y\n");
    assert_eq!(differentiate(&graph, &Gradients::default()).expect("differentiable").outputs().len(), 2);
    let joint = differentiate(&graph, &by(&["z", "x"])).expect("differentiable");
    let zero = joint.outputs()[1].value;
    assert_eq!(joint.node(zero.node).op().map(|op| op.name()), Some("full"));
    assert!(matches!(differentiate(&graph, &by(&["inputs"])), Ok(joint) if joint.outputs().len() == 2));
}
