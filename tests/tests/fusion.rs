//! What the standard pipeline makes of real graphs: equal results by the evaluator, equal kernels for both dresses, equal text each time.

use eglu::{
    Graph, Pipeline,
    codegen::cuda::{Target, emit},
    compare::compare_all,
    ir::{eval::eval_graph, text::print},
};
use eglu_tests::{FIXTURES, inputs, load, optimized, plan, reference};

/// Op names of a graph's calls, in topological order.
fn ops(graph: &Graph) -> Vec<&'static str> {
    graph.topological().unwrap().into_iter().filter_map(|id| graph.node(id).op()).map(|op| op.name()).collect()
}

#[test]
fn the_evaluator_agrees_with_pytorch_before_and_after() {
    for (name, endings) in FIXTURES {
        let model = load(name);
        let fused = optimized(name, &Pipeline::standard(), "cpu").graph;
        for ending in *endings {
            let io = reference(name, ending);
            for graph in [&model.graph, &fused] {
                let outputs = eval_graph(graph, &|path| model.weights.get(path).ok(), &inputs(&io)).unwrap();
                for difference in compare_all(&outputs, &io).unwrap() {
                    assert!(difference.within, "{name}.{ending}: {difference:?}");
                }
            }
        }
    }
}

#[test]
fn both_dresses_become_the_same_ops() {
    for form in ["block", "lm", "dyn"] {
        for device in ["cpu", "h200", "a100"] {
            let of = |dress: &str| {
                let mut names = ops(&optimized(&format!("mixtral-{dress}.{form}"), &Pipeline::standard(), device).graph);
                names.sort_unstable();
                names
            };
            assert_eq!(of("grouped_mm"), of("batched_mm"), "{form} on {device}");
        }
    }
}

#[test]
fn results_are_deterministic() {
    for (name, _) in FIXTURES {
        let once = optimized(name, &Pipeline::standard(), "h200");
        let again = optimized(name, &Pipeline::standard(), "h200");
        assert_eq!(print(&once.graph), print(&again.graph), "{name}");
        assert_eq!(once.report.sites, again.report.sites, "{name}");
        let emitted = || emit(&plan(name, &Pipeline::standard(), "h200"), Target { arch: 90 }).unwrap();
        let (one, two) = (emitted(), emitted());
        assert!(one.modules == two.modules && one.launches == two.launches, "{name}");
    }
}
