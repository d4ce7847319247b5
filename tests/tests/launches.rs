//! How many kernels a whole block at a real model's size takes, by the number of tokens and by what it is told.

use eglu::{
    Pipeline,
    codegen::cuda::{BlockShape, Choices, Chosen, CudaPlan, Schedule, Target, block_ways, blocks, emit_with},
    ir::Bindings,
};
use eglu_tests::plan;

const HOPPER: Target = Target { arch: 90 };

fn block(choices: &Choices) -> CudaPlan {
    emit_with(&plan("mixtral-8x7b-grouped_mm", &Pipeline::standard(), "h200"), HOPPER, choices).unwrap()
}

fn shape() -> BlockShape {
    let mut found = blocks(&plan("mixtral-8x7b-grouped_mm", &Pipeline::standard(), "h200"));
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// The kernels that run at so many tokens, in order.
fn running(plan: &CudaPlan, tokens: i64) -> Vec<&str> {
    let bindings: Bindings = plan.plan.symbols.keys().map(|name| (name.clone(), tokens)).collect();
    let blocks = |grid: &[eglu::Dim; 3]| grid.iter().map(|dim| dim.eval(&bindings).unwrap()).product::<i64>();
    plan.launches.iter().filter(|launch| blocks(&launch.grid) > 0).map(|launch| launch.entry.as_str()).collect()
}

fn starts(entries: &[&str], with: &[&str]) -> bool {
    entries.len() == with.len() && entries.iter().zip(with).all(|(entry, start)| entry.starts_with(start))
}

#[test]
fn a_block_is_its_router_and_three_kernels_at_most() {
    let plan = block(&Choices::default());
    for tokens in [1, 7, 8] {
        let found = running(&plan, tokens);
        assert!(starts(&found, &["router", "moe_bf16_few_tokens"]), "{tokens}: {found:?}");
    }
    for tokens in [64, 100, 4096, 65536] {
        let found = running(&plan, tokens);
        assert!(found[0].starts_with("router") && found.len() <= 4, "{tokens}: {found:?}");
        assert!(found[1..].iter().all(|entry| entry.starts_with("moe_")), "{tokens}: {found:?}");
    }
}

#[test]
fn a_split_block_has_a_kernel_for_each_projection_at_any_number_of_tokens() {
    let plan = block(&Choices { schedule: Schedule::Split, ..Choices::default() });
    for tokens in [1, 64, 4096] {
        let found = running(&plan, tokens);
        assert!(starts(&found, &["router", "moe_up", "moe_down", "moe_combine"]), "{tokens}: {found:?}");
    }
}

#[test]
fn a_single_block_is_one_kernel_at_any_number_of_tokens_or_an_error() {
    let single = Choices { schedule: Schedule::Single, ..Choices::default() };
    let plan = block(&single);
    for (tokens, kernel) in
        [(1, "moe_bf16_few_tokens"), (17, "moe_bf16_few_block"), (4096, "moe_bf16_few_block"), (65536, "moe_bf16_few_block")]
    {
        let found = running(&plan, tokens);
        assert!(starts(&found, &["router", kernel]), "{tokens}: {found:?}");
    }
    let f32 = eglu_tests::plan("mixtral-grouped_mm.block", &Pipeline::standard(), "h200");
    let error = emit_with(&f32, HOPPER, &single).unwrap_err().to_string();
    assert!(error.contains("16 bits") && error.contains("`split` or `auto`"), "{error}");
}

#[test]
fn a_block_runs_the_ways_that_were_chosen_for_it() {
    let shape = shape();
    let names = |tokens| block_ways(&shape, HOPPER, Schedule::Auto, tokens);
    assert!(names(1)[0].most.is_some(), "few tokens have a way of their own: {:?}", names(1));
    let (usual, other) = {
        let mut ways = names(4096).into_iter().filter(|way| way.most.is_none());
        (ways.next().unwrap().name, ways.next().unwrap().name)
    };
    let table = vec![Chosen { up_to: Some(2000), way: usual.clone() }, Chosen { up_to: None, way: other }];
    let of = |key: String, table| block(&Choices { blocks: [(key, table)].into_iter().collect(), ..Choices::default() });
    let chosen = of(shape.key.clone(), table.clone());
    let (few, many) = (running(&chosen, 2000), running(&chosen, 2001));
    assert!(starts(&few, &["router", "moe_up", "moe_down", "moe_combine"]), "{few:?}");
    assert!(few[1..3] != many[1..3] && many.len() == 4, "{few:?} and {many:?}");
    assert_eq!(running(&chosen, 1)[1..], few[1..], "no way is left to what was not chosen");
    // What is not known of this block, or not of any number of tokens, changes nothing.
    let plain = block(&Choices::default());
    let unknown = vec![Chosen { up_to: None, way: "another".into() }];
    let open = vec![Chosen { up_to: Some(16), way: usual }];
    for (key, table) in [("another block".into(), table), (shape.key.clone(), unknown), (shape.key.clone(), open)] {
        let other = of(key, table);
        assert!(other.modules == plain.modules && other.launches == plain.launches);
    }
}
