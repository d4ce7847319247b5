//! Convolutions of the CPU backend against the reference evaluator, on random geometries.

use eglu_codegen::lower;
use eglu_ir::{
    DType, Graph, Op, OutputKind, Tensor,
    eval::{EvalOperand, eval_graph, eval_op},
    ops::{Axes, Cast, Convolution, ConvolutionInput, ConvolutionWeight},
    weights::Weights,
};
use eglu_runtime::{Device, Executable, compare::compare};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};

fn random(rng: &mut StdRng, dtype: DType, shape: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    let wide = Tensor::from_slice(DType::F64, shape, &values).expect("fits");
    let cast = eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&wide)], &Default::default());
    cast.expect("floats cast").remove(0)
}

fn check(op: Op, inputs: &[Tensor]) -> Result<Tensor, TestCaseError> {
    let mut graph = Graph::new("convolution");
    let operands: Vec<_> = inputs.iter().enumerate().map(|(i, x)| graph.add_input(&format!("x{i}"), x.ty()).into()).collect();
    let node = graph.add_call("y", op, operands).expect("the types fit");
    graph.add_output(node.into(), OutputKind::User);
    let want = eval_graph(&graph, &|_| None, inputs).expect("evaluates").remove(0);
    let executable = Executable::load(lower(&graph).expect("lowers"), &Weights::default(), &Device::Cpu).expect("loads");
    let got = executable.run(inputs).expect("runs").remove(0);
    let difference = compare("y", &got, &want).expect("one type");
    prop_assert!(difference.within, "{difference:?}");
    Ok(want)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn convolutions_and_gradients(seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let dtype = [DType::F32, DType::F64, DType::Bf16, DType::F16][rng.random_range(0..4)];
        let spatial = rng.random_range(1..=3);
        let mut list = |from: usize, to: usize| -> Axes { (0..spatial).map(|_| rng.random_range(from..=to)).collect() };
        let (stride, padding, dilation, kernel) = (list(1, 3), list(0, 2), list(1, 2), list(1, 3));
        let extents = list(5, 8);
        let (groups, samples) = (rng.random_range(1..=3), rng.random_range(1..=2));
        let (channels, filters) = (rng.random_range(1..=3), groups * rng.random_range(1..=3));
        let shape = |a: usize, b: usize, rest: &Axes| -> Vec<usize> { [a, b].into_iter().chain(rest.iter().copied()).collect() };
        let x = random(rng, dtype, &shape(samples, channels * groups, &extents));
        let w = random(rng, dtype, &shape(filters, channels, &kernel));
        let forward = Convolution { stride: stride.clone(), padding: padding.clone(), dilation: dilation.clone(), groups };
        let y = check(forward.into(), &[x.clone(), w.clone()])?;
        let grad = random(rng, dtype, y.shape());
        let dims = extents.iter().map(|&extent| (extent as i64).into()).collect();
        let of_input =
            ConvolutionInput { extents: dims, stride: stride.clone(), padding: padding.clone(), dilation: dilation.clone(), groups };
        check(of_input.into(), &[grad.clone(), w])?;
        check(ConvolutionWeight { extents: kernel, stride, padding, dilation, groups }.into(), &[x, grad])?;
    }
}
