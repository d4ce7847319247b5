//! Rows of the op table that no fixture needs compile too.

use crate::nvrtc::is_missing;
use eglu::{
    DType, Graph, TensorType,
    codegen::cuda::{Target, emit},
    ir::{
        OutputKind,
        ops::{Axes, Convolution, ConvolutionInput, ConvolutionWeight, Pointwise, Reduce, ReduceKind, TypeRule},
    },
    lower,
    runtime::cuda::compile,
};

fn check(graph: &Graph) {
    let plan = lower(graph).unwrap_or_else(|error| panic!("{error}"));
    for (arch, name) in [(80, "sm_80"), (90, "sm_90a")] {
        let emitted = emit(&plan, Target { arch }).unwrap_or_else(|error| panic!("{name}: {error}"));
        compile(&emitted.modules, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn every_elementwise_row_compiles_for_every_arithmetic() {
    if is_missing() {
        return;
    }
    let mut graph = Graph::new("elementwise");
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::I64, DType::I8, DType::Bool] {
        let x = graph.add_input(&format!("x_{dtype}"), TensorType::fixed(dtype, &[5]));
        let mask = graph.add_input(&format!("mask_{dtype}"), TensorType::fixed(DType::Bool, &[5]));
        for &op in Pointwise::ALL {
            let operands = (0..op.arity()).map(|i| if op.rule() == TypeRule::Select && i == 0 { mask } else { x }.into());
            // Not every row is defined for every dtype: inference says so.
            if let Ok(id) = graph.add_call(&format!("{}_{dtype}", op.name()), op.into(), operands) {
                graph.add_output(id.into(), OutputKind::User);
            }
        }
    }
    check(&graph);
}

#[test]
fn complex_reductions_compile() {
    if is_missing() {
        return;
    }
    let mut graph = Graph::new("complex");
    for dtype in [DType::C64, DType::C128] {
        let x = graph.add_input(&format!("x_{dtype}"), TensorType::fixed(dtype, &[5, 7]));
        let power = graph.add_call(&format!("exp_{dtype}"), Pointwise::Exp.into(), [x.into()]).expect("a number");
        let log = graph.add_call(&format!("log_{dtype}"), Pointwise::Log.into(), [power.into()]).expect("a number");
        for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Prod, ReduceKind::Any] {
            for dim in [0, 1] {
                let result = if kind == ReduceKind::Any { DType::Bool } else { dtype };
                let op = Reduce { kind, dims: Axes::from_slice(&[dim]), keepdim: false, dtype: result };
                let id = graph.add_call(&format!("{}_{dim}_{dtype}", kind.name()), op.into(), [log.into()]).expect("defined");
                graph.add_output(id.into(), OutputKind::User);
            }
        }
    }
    check(&graph);
}

#[test]
fn convolutions_and_their_gradients_compile() {
    if is_missing() {
        return;
    }
    let mut graph = Graph::new("convolutions");
    for dtype in [DType::F32, DType::F16] {
        let x = graph.add_input(&format!("x_{dtype}"), TensorType::fixed(dtype, &[2, 4, 7, 8]));
        let w = graph.add_input(&format!("w_{dtype}"), TensorType::fixed(dtype, &[6, 2, 3, 2]));
        let list = |a: usize, b: usize| Axes::from_slice(&[a, b]);
        let (stride, padding, dilation, groups) = (list(2, 1), list(1, 0), list(1, 2), 2);
        let forward = Convolution { stride: stride.clone(), padding: padding.clone(), dilation: dilation.clone(), groups };
        let y = graph.add_call(&format!("y_{dtype}"), forward.into(), [x.into(), w.into()]).expect("fits");
        let extents = [7.into(), 8.into()].into_iter().collect();
        let of_input =
            ConvolutionInput { extents, stride: stride.clone(), padding: padding.clone(), dilation: dilation.clone(), groups };
        let of_input = graph.add_call(&format!("dx_{dtype}"), of_input.into(), [y.into(), w.into()]).expect("fits");
        let of_weight = ConvolutionWeight { extents: list(3, 2), stride, padding, dilation, groups };
        let of_weight = graph.add_call(&format!("dw_{dtype}"), of_weight.into(), [x.into(), y.into()]).expect("fits");
        for id in [y, of_input, of_weight] {
            graph.add_output(id.into(), OutputKind::User);
        }
    }
    check(&graph);
}
