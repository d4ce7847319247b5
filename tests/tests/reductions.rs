//! Every reduction × dtype × shape × dims of `fixtures/reductions` against PyTorch's results, refusals included, by the evaluator and by
//! the CPU backend.

use eglu::{
    DType, Device, Executable, Graph, Tensor,
    compare::{Tolerance, tolerance},
    ir::{Weights, eval::eval_graph},
    lower,
};
use eglu_tests::reductions::cases;
use std::collections::BTreeMap;

fn run_on_cpu(graph: &Graph, input: &Tensor) -> Result<Vec<Tensor>, String> {
    let plan = lower(graph).map_err(|e| e.to_string())?;
    let executable = Executable::load(plan, &Weights::default(), &Device::Cpu).map_err(|e| e.to_string())?;
    executable.run(std::slice::from_ref(input)).map_err(|e| e.to_string())
}

#[test]
fn agree_with_pytorch() {
    let (cases, tensors) = cases();
    assert_eq!(cases.len(), 5752);
    assert_eq!(tolerance(DType::I64), Tolerance::Exact);
    let mut wrong: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for case in &cases {
        let graph = case.graph();
        let input = case.input(&tensors);
        let evaluated =
            graph.clone().and_then(|g| eval_graph(&g, &|_| None, std::slice::from_ref(&input)).map_err(|e| e.to_string()));
        let ran = graph.and_then(|graph| run_on_cpu(&graph, &input));
        for (by, got) in [("evaluator", evaluated), ("CPU", ran)] {
            if let Err(why) = case.check(got, &tensors) {
                let key = format!("{} of {} ({by})", case.op, case.dtype);
                let detail = format!("{:?}, dim {:?}, keepdim {}: {why}", case.shape, case.dim, case.keepdim);
                wrong.entry(key).or_insert((0, detail)).0 += 1;
            }
        }
    }
    let lines: Vec<String> = wrong.iter().map(|(key, (count, first))| format!("{count:4} × {key}, first {first}")).collect();
    assert!(wrong.is_empty(), "{} kinds of disagreement:\n{}", wrong.len(), lines.join("\n"));
}
