//! Every row that has a derivative, by finite differences on random shapes and numbers away from kinks.

use crate::{differences::agree, draw::Draw};
use eglu_ir::{
    DType, Dim, OpCode, Operand, Scalar, Shape,
    ops::{
        Axes, Cast, Cat, Combine, Convolution, ConvolutionInput, ConvolutionWeight, Cumsum, Derivative, Expand, ExpertMatmul,
        ExpertOuter, Gather, GroupedMm, Index, IndexPut, LayerNorm, MatMul, Permute, Pointwise, Reduce, ReduceKind, Reshape,
        RmsNorm, ScatterAdd, Slice, Softmax, Sort, TopK,
    },
};
use proptest::prelude::*;
use rand::Rng;

fn shape(extents: &[usize]) -> Shape {
    extents.iter().map(|&extent| Dim::from(extent as i64)).collect()
}

fn axes(dims: &[usize]) -> Axes {
    Axes::from_slice(dims)
}

/// Where a function of one argument is smooth.
fn domain(op: Pointwise) -> std::ops::Range<f64> {
    match op {
        Pointwise::Log | Pointwise::Log2 | Pointwise::Log10 | Pointwise::Sqrt | Pointwise::Rsqrt => 0.3..2.0,
        Pointwise::Log1p => -0.7..2.0,
        Pointwise::Asin | Pointwise::Acos | Pointwise::Atanh | Pointwise::Erfinv => -0.8..0.8,
        Pointwise::Acosh => 1.3..3.0,
        Pointwise::Tan => -1.1..1.1,
        Pointwise::Lgamma => 0.5..4.0,
        Pointwise::Reciprocal | Pointwise::Abs | Pointwise::Relu => 0.2..2.0,
        _ => -2.0..2.0,
    }
}

/// An elementwise op; its operands broadcast, and now and then one is a number.
fn elementwise(draw: &mut Draw, op: Pointwise) {
    let (n, m) = (draw.extent(), draw.extent());
    if op.arity() == 1 {
        let sign = if matches!(op, Pointwise::Abs | Pointwise::Relu) && draw.rng.random() { -1.0 } else { 1.0 };
        let range = domain(op);
        let x = draw.floats(&[n, m], range);
        let x = if sign < 0.0 { draw.graph.add_call("n", Pointwise::Neg.into(), [x.into()]).expect("a call").into() } else { x };
        return draw.outputs(op, [x.into()]);
    }
    let mut operands: Vec<Operand> = Vec::new();
    if op == Pointwise::Where {
        let mask = draw.ids(&[n, 1], 2);
        operands.push(draw.graph.add_call("mask", Cast { dtype: DType::Bool }.into(), [mask.into()]).expect("a call").into());
    }
    let shapes = [vec![n, m], vec![m], vec![n, 1], vec![]];
    let number = draw.rng.random_range(0..4);
    for i in 0..2 {
        // The sign of copysign has no gradient.
        if number == i && (op, i) != (Pointwise::CopySign, 0) {
            operands.push(Scalar::Float(draw.rng.random_range(0.3..1.2)).into());
            continue;
        }
        let which = if number < 2 { 0 } else { draw.rng.random_range(0..shapes.len()) };
        let positive = op == Pointwise::Pow && i == 0;
        let value = if positive { draw.floats(&shapes[which], 0.3..2.0) } else { draw.numbers(&shapes[which]) };
        operands.push(value.into());
    }
    draw.outputs(op, operands);
}

/// A structured op. False for rows that have no rule.
fn structured(draw: &mut Draw, code: OpCode) -> bool {
    let (n, m, k) = (draw.extent(), draw.extent(), draw.extent());
    let dtype = DType::F64;
    let variant: usize = draw.rng.random_range(0..6);
    match code {
        OpCode::Reshape => {
            let x = draw.numbers(&[n, m, k]);
            draw.outputs(Reshape { shape: shape(&[m * k, n]) }, [x.into()]);
        }
        OpCode::Permute => {
            let x = draw.numbers(&[n, m, k]);
            let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
            draw.outputs(Permute { dims: axes(&orders[variant]) }, [x.into()]);
        }
        OpCode::Expand => {
            let x = draw.numbers(&[n, 1]);
            draw.outputs(Expand { shape: shape(&[k, n, m]) }, [x.into()]);
        }
        OpCode::Slice => {
            let x = draw.numbers(&[n, m + 4]);
            let (start, step) = (variant % 3, 1 + (variant as i64) % 3);
            draw.outputs(Slice { dim: 1, start: (start as i64).into(), end: (m as i64 + 3).into(), step }, [x.into()]);
        }
        OpCode::Cast => {
            let x = draw.numbers(&[n, m]);
            draw.outputs(Cast { dtype }, [x.into()]);
        }
        OpCode::Reduce => {
            let kinds = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Prod, ReduceKind::Amax, ReduceKind::Amin];
            let x = draw.numbers(&[n, m, k]);
            let dims = [axes(&[1]), axes(&[0, 2]), axes(&[0, 1, 2])][variant % 3].clone();
            let kind = kinds[draw.rng.random_range(0..kinds.len())];
            draw.outputs(Reduce { kind, dims, keepdim: variant > 2, dtype }, [x.into()]);
        }
        OpCode::Cumsum => {
            let x = draw.numbers(&[n, m, k]);
            draw.outputs(Cumsum { dim: variant % 3, dtype }, [x.into()]);
        }
        OpCode::Softmax => {
            let x = draw.numbers(&[n, m, k]);
            draw.outputs(Softmax { dim: variant % 3, log: variant > 2, dtype }, [x.into()]);
        }
        OpCode::RmsNorm => {
            let (x, weight) = (draw.numbers(&[n, m + 1]), draw.numbers(&[m + 1]));
            let weight = if variant == 0 { Operand::None } else { weight.into() };
            draw.outputs(RmsNorm { eps: Scalar::Float(1e-3), dtype }, [x.into(), weight]);
        }
        OpCode::LayerNorm => {
            let (x, weight, bias) = (draw.numbers(&[n, m + 2]), draw.numbers(&[m + 2]), draw.numbers(&[m + 2]));
            let given = |value: eglu_ir::Value, given| if given { value.into() } else { Operand::None };
            let operands = [x.into(), given(weight, variant > 0), given(bias, variant > 1)];
            draw.outputs(LayerNorm { eps: Scalar::Float(1e-2), dtype }, operands);
        }
        OpCode::MatMul => {
            let lhs = [vec![n, m], vec![2, n, m], vec![2, 1, n, m]];
            let rhs = [vec![m, k], vec![2, m, k], vec![3, m, k]];
            let (a, b) = (draw.numbers(&lhs[variant % 3]), draw.numbers(&rhs[if variant < 4 { 0 } else { variant % 3 }]));
            let b = if variant == 1 {
                let turned = draw.numbers(&[k, m]);
                draw.graph.add_call("t", Permute { dims: axes(&[1, 0]) }.into(), [turned.into()]).expect("a call").into()
            } else {
                b
            };
            draw.outputs(MatMul {}, [a.into(), b.into()]);
        }
        OpCode::GroupedMm => {
            let (x, w) = (draw.numbers(&[5, m]), draw.numbers(&[2, m, k]));
            let ends = [draw.rng.random_range(0..3), 3 + draw.rng.random_range(0..3)];
            let offs = draw.input(eglu_ir::Tensor::from_slice(DType::I32, &[2], &ends).expect("a tensor"));
            draw.outputs(GroupedMm {}, [x.into(), w.into(), offs.into()]);
        }
        OpCode::Convolution | OpCode::ConvolutionInput | OpCode::ConvolutionWeight => convolution(draw, code, variant),
        OpCode::Index => {
            let x = draw.numbers(&[3, m, 3]);
            let (rows, columns) = (draw.ids(&[n, 1], 3), draw.ids(&[k], 3));
            match variant % 3 {
                0 => draw.outputs(Index { axes: axes(&[0]) }, [x.into(), rows.into()]),
                1 => draw.outputs(Index { axes: axes(&[0, 2]) }, [x.into(), rows.into(), columns.into()]),
                _ => draw.outputs(Index { axes: axes(&[2]) }, [x.into(), columns.into()]),
            }
        }
        OpCode::IndexPut => {
            let (x, values) = (draw.numbers(&[4, m]), draw.numbers(&[[2, 1][variant % 2], m]));
            // Of several values put in one place one wins, and which is not told: places are distinct.
            let first = draw.rng.random_range(0..4i64);
            let places = [first, (first + 1 + draw.rng.random_range(0..3i64)) % 4];
            let places = draw.input(eglu_ir::Tensor::from_slice(DType::I64, &[2], &places).expect("a tensor"));
            draw.outputs(IndexPut { axes: axes(&[0]), accumulate: variant > 2 }, [x.into(), values.into(), places.into()]);
        }
        OpCode::Gather => {
            let (x, index) = (draw.numbers(&[3, m]), draw.ids(&[n, m], 3));
            draw.outputs(Gather { dim: 0 }, [x.into(), index.into()]);
        }
        OpCode::ScatterAdd => {
            let (x, src) = (draw.numbers(&[3, m + 1]), draw.numbers(&[n + 1, m + 1]));
            let index = draw.ids(&[n, m], 3);
            draw.outputs(ScatterAdd { dim: 0 }, [x.into(), index.into(), src.into()]);
        }
        OpCode::Cat => {
            let (a, b) = (draw.numbers(&[n, m]), draw.numbers(&[n, k]));
            draw.outputs(Cat { dim: 1 }, [a.into(), b.into(), a.into()]);
        }
        OpCode::Sort => {
            let x = draw.numbers(&[n, 4, m]);
            draw.outputs(Sort { dim: variant % 3, descending: variant > 2 }, [x.into()]);
        }
        OpCode::TopK => {
            let x = draw.numbers(&[4, n]);
            draw.outputs(TopK { k: 1 + variant % 4, dim: 0, largest: variant > 2 }, [x.into()]);
        }
        OpCode::ExpertMatmul => {
            let (x, w, bias) = (draw.numbers(&[4, m]), draw.numbers(&[3, k, m]), draw.numbers(&[3, k]));
            let ids = draw.ids(&[4], 5);
            let bias = if variant > 2 { bias.into() } else { Operand::None };
            draw.outputs(ExpertMatmul {}, [x.into(), w.into(), bias, ids.into()]);
        }
        OpCode::ExpertOuter => {
            let (a_repeat, b_repeat) = [(1, 1), (2, 1), (1, 2)][variant % 3];
            let (a, b) = (draw.numbers(&[4 / a_repeat, m]), draw.numbers(&[4 / b_repeat, k]));
            let ids = draw.ids(&[4], 3);
            let onto = if variant > 2 { draw.numbers(&[2, m, k]).into() } else { Operand::None };
            draw.outputs(ExpertOuter { experts: 2.into(), a_repeat, b_repeat, dtype }, [a.into(), b.into(), ids.into(), onto]);
        }
        OpCode::Combine => {
            let (y, weights) = (draw.numbers(&[n * m, k]), draw.numbers(&[n, m]));
            draw.outputs(Combine { dtype }, [y.into(), weights.into()]);
        }
        _ => return false,
    }
    true
}

fn convolution(draw: &mut Draw, code: OpCode, variant: usize) {
    let (groups, stride, dilation) = (1 + variant % 2, 1 + variant / 3, 1 + variant % 3);
    let attrs = (axes(&[stride]), axes(&[1]), axes(&[dilation]));
    let (length, kernel, filters) = (6, 2, 2 * groups);
    let convolved = (length + 2 - dilation * (kernel - 1) - 1) / stride + 1;
    let (x, w) = (draw.numbers(&[2, 2 * groups, length]), draw.numbers(&[filters, 2, kernel]));
    let grad = draw.numbers(&[2, filters, convolved]);
    let (stride, padding, dilation) = attrs;
    match code {
        OpCode::Convolution => draw.outputs(Convolution { stride, padding, dilation, groups }, [x.into(), w.into()]),
        OpCode::ConvolutionInput => {
            let op = ConvolutionInput { extents: shape(&[length]), stride, padding, dilation, groups };
            draw.outputs(op, [grad.into(), w.into()]);
        }
        _ => {
            let op = ConvolutionWeight { extents: axes(&[kernel]), stride, padding, dilation, groups };
            draw.outputs(op, [x.into(), grad.into()]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_row_agrees_with_finite_differences(seed in any::<u64>()) {
        for code in OpCode::all() {
            let mut draw = Draw::new(seed);
            let drawn = match (code.derivative(), code) {
                (Derivative::Expression(_), OpCode::Pointwise(op)) => {
                    elementwise(&mut draw, op);
                    true
                }
                (Derivative::Rule, code) => structured(&mut draw, code),
                _ => continue,
            };
            prop_assert!(drawn, "`{}` has a derivative, but no instance here", code.name());
            agree(&format!("{} (seed {seed})", code.name()), &draw.graph, &draw.inputs, seed);
        }
    }
}

/// A product is differentiated by a factor of zero, too.
#[test]
fn products_with_zeros() {
    for zeros in 0..3usize {
        let mut draw = Draw::new(7);
        let mut factors = [1.5, -0.5, 2.0, 0.75];
        factors[..zeros].fill(0.0);
        let x = draw.input(eglu_ir::Tensor::from_slice(DType::F64, &[4], &factors).expect("a tensor"));
        draw.outputs(Reduce { kind: ReduceKind::Prod, dims: axes(&[0]), keepdim: false, dtype: DType::F64 }, [x.into()]);
        agree(&format!("product with {zeros} zeros"), &draw.graph, &draw.inputs, 1);
    }
}

/// At its bounds a clamp passes the gradient on; of two equal tensors each gets half of it.
#[test]
fn ties() {
    use eglu_passes::{Gradients, autodiff::differentiate};
    let gradients = |bound: Option<f64>| {
        let mut draw = Draw::new(0);
        let x = draw.input(eglu_ir::Tensor::from_slice(DType::F64, &[2], &[1.0, 3.0]).expect("a tensor"));
        let y: Operand = match bound {
            Some(bound) => Scalar::Float(bound).into(),
            None => draw.input(eglu_ir::Tensor::from_slice(DType::F64, &[2], &[1.0, 2.0]).expect("a tensor")).into(),
        };
        draw.outputs(Pointwise::Maximum, [x.into(), y]);
        let joint = differentiate(&draw.graph, &Gradients::default()).expect("differentiable");
        draw.inputs.push(eglu_ir::Tensor::from_slice(DType::F64, &[2], &[1.0, 1.0]).expect("a tensor"));
        let results = eglu_ir::eval::eval_graph(&joint, &|_: &str| None, &draw.inputs).expect("the graph evaluates");
        results[1..].iter().map(|result| result.as_slice::<f64>().to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(gradients(Some(1.0)), [vec![1.0, 1.0]]);
    assert_eq!(gradients(None), [vec![0.5, 1.0], vec![0.5, 0.0]]);
}
