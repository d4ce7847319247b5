//! Norms, softmax, variances and losses, forward and backward, take one kernel for the lines' elements, and compute what PyTorch did.

use eglu::{
    Device, Executable, Pipeline,
    compare::compare_all,
    ir::{Weights, eval::eval_graph},
};
use eglu_tests::{
    inputs,
    norms::{cases, planned},
};

#[test]
fn each_takes_as_few_kernels_as_it_should() {
    let cases = cases();
    assert!(cases.len() > 80, "{} cases", cases.len());
    let mut more = vec![];
    for case in &cases {
        let (_, kernels) = planned(case.graph(), &Pipeline::standard(), "h200");
        if kernels > case.allowed() {
            more.push(format!("{}: {kernels} kernels, not {}", case.name, case.allowed()));
        }
    }
    assert!(more.is_empty(), "{}", more.join("\n"));
}

#[test]
fn cpu_and_evaluator_give_what_pytorch_did() {
    for case in cases() {
        for pipeline in [Pipeline::standard(), Pipeline::unfused()] {
            let (plan, _) = planned(case.graph(), &pipeline, "cpu");
            let executable = Executable::load(plan, &Weights::default(), &Device::Cpu)
                .unwrap_or_else(|error| panic!("{}: {error}", case.name));
            let outputs = executable.run(&inputs(&case.tensors)).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            for difference in compare_all(&outputs, &case.tensors).unwrap() {
                assert!(difference.within, "{}: {difference:?}", case.name);
            }
        }
        let evaluated =
            eval_graph(&case.graph(), &|_| None, &inputs(&case.tensors)).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        for difference in compare_all(&evaluated, &case.tensors).unwrap() {
            assert!(difference.within, "{}: {difference:?}", case.name);
        }
    }
}
