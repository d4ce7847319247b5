use super::*;
use crate::{DType, OutputKind, Scalar, Tensor, TensorType, eval::eval_graph, ops::Expand};

/// A 3 × 4 input with the elements 0 to 11, and its storage.
struct Bench {
    graph: Graph,
    aliases: Aliases,
    base: AliasId,
}

impl Bench {
    fn new() -> Bench {
        let mut graph = Graph::new("aliases");
        let mut aliases = Aliases::default();
        let x = graph.add_input("x", TensorType::fixed(DType::F32, &[3, 4]));
        let base = aliases.storage(x);
        Bench { graph, aliases, base }
    }

    fn view(&mut self, of: AliasId, op: impl Into<Op>) -> AliasId {
        self.aliases.view(&mut self.graph, of, op.into(), "view").unwrap()
    }

    fn rows(&mut self, of: AliasId, start: i64, end: i64) -> AliasId {
        self.view(of, Slice { dim: 0, start: Dim::from(start), end: Dim::from(end), step: 1 })
    }

    fn transposed(&mut self, of: AliasId) -> AliasId {
        self.view(of, Permute { dims: Axes::from_iter([1, 0]) })
    }

    /// `alias *= factor`, or `alias += 100` without one.
    fn scale(&mut self, alias: AliasId, factor: i64) {
        let value = self.aliases.read(&mut self.graph, alias, "read").unwrap();
        let scaled = self.graph.add_call("mul", Pointwise::Mul.into(), [value.into(), Scalar::Int(factor).into()]).unwrap();
        self.aliases.write(&mut self.graph, alias, scaled.into(), "write").unwrap();
    }

    /// What the aliases show now, evaluated on 0 to 11.
    fn show(&mut self, aliases: &[AliasId]) -> Vec<Vec<f32>> {
        let mut graph = self.graph.clone();
        for &alias in aliases {
            let value = self.aliases.read(&mut graph, alias, "shown").unwrap();
            graph.add_output(value, OutputKind::User);
        }
        // Reading caches nodes of the clone: it becomes the graph.
        self.graph = graph.clone();
        let values: Vec<f32> = (0..12u8).map(f32::from).collect();
        let x = Tensor::from_slice(DType::F32, &[3, 4], &values).unwrap();
        let outputs = eval_graph(&graph, &|_| None, &[x]).unwrap();
        outputs[outputs.len() - aliases.len()..].iter().map(|t| t.as_slice::<f32>().to_vec()).collect()
    }
}

#[test]
fn a_write_shows_through_an_alias_of_the_whole() {
    let mut bench = Bench::new();
    let flat = bench.view(bench.base, Reshape { shape: [Dim::from(12)].into_iter().collect() });
    bench.scale(flat, 10);
    let base = bench.base;
    let shown = bench.show(&[base, flat]);
    assert_eq!(shown[0], (0..12).map(|i| 10.0 * i as f32).collect::<Vec<_>>());
    assert_eq!(shown[0], shown[1]);
    assert!(bench.aliases.written(flat));
}

#[test]
fn a_write_through_a_slice_changes_that_part_alone() {
    let mut bench = Bench::new();
    let base = bench.base;
    let middle = bench.rows(base, 1, 2);
    let lower = bench.rows(base, 1, 3);
    bench.scale(middle, 10);
    let shown = bench.show(&[base, lower]);
    assert_eq!(shown[0], [0., 1., 2., 3., 40., 50., 60., 70., 8., 9., 10., 11.]);
    assert_eq!(shown[1], shown[0][4..]);
}

#[test]
fn a_write_through_a_transposed_column_lands_in_the_rows() {
    let mut bench = Bench::new();
    let base = bench.base;
    let transposed = bench.transposed(base);
    let column = bench.rows(transposed, 2, 3);
    bench.scale(column, 10);
    let shown = bench.show(&[base, transposed]);
    assert_eq!(shown[0], [0., 1., 20., 3., 4., 5., 60., 7., 8., 9., 100., 11.]);
    assert_eq!(shown[1], [0., 4., 8., 1., 5., 9., 20., 60., 100., 3., 7., 11.]);
}

#[test]
fn a_strided_write_keeps_what_lies_between() {
    let mut bench = Bench::new();
    let base = bench.base;
    let odd = bench.view(base, Slice { dim: 1, start: Dim::from(1), end: Dim::from(4), step: 2 });
    bench.scale(odd, 0);
    let shown = bench.show(&[base]);
    assert_eq!(shown[0], [0., 0., 2., 0., 4., 0., 6., 0., 8., 0., 10., 0.]);
}

#[test]
fn what_was_read_before_a_write_stays() {
    let mut bench = Bench::new();
    let base = bench.base;
    let before = bench.aliases.read(&mut bench.graph, base, "before").unwrap();
    bench.scale(base, 0);
    let kept = bench.aliases.storage(before);
    let shown = bench.show(&[base, kept]);
    assert_eq!((shown[0][5], shown[1][5]), (0., 5.));
}

#[test]
fn writes_follow_each_other_through_different_views() {
    let mut bench = Bench::new();
    let base = bench.base;
    let upper = bench.rows(base, 0, 2);
    let lower = bench.rows(base, 1, 3);
    bench.scale(upper, 2);
    bench.scale(lower, 10);
    bench.scale(upper, 2);
    let shown = bench.show(&[base]);
    assert_eq!(shown[0], [0., 4., 8., 12., 160., 200., 240., 280., 80., 90., 100., 110.]);
}

#[test]
fn a_copy_is_not_written_to() {
    let mut bench = Bench::new();
    let base = bench.base;
    let value = bench.aliases.read(&mut bench.graph, base, "read").unwrap();
    let copy = bench.aliases.storage(value);
    bench.scale(copy, 0);
    let shown = bench.show(&[base, copy]);
    assert_eq!((shown[0][3], shown[1][3]), (3., 0.));
    assert!(!bench.aliases.written(base));
}

#[test]
fn writes_through_a_broadcast_are_refused() {
    let mut bench = Bench::new();
    let base = bench.base;
    let row = bench.rows(base, 0, 1);
    let wide = bench.view(row, Expand { shape: [3, 4].map(Dim::from).into_iter().collect() });
    let value = bench.aliases.read(&mut bench.graph, wide, "read").unwrap();
    let error = bench.aliases.write(&mut bench.graph, wide, value, "write").unwrap_err();
    assert!(matches!(error, WriteError::Broadcast));
    assert!(!bench.aliases.written(base));
}

#[test]
fn a_long_chain_of_views_needs_no_deep_stack() {
    let mut bench = Bench::new();
    let mut last = bench.base;
    for i in 0..20_000 {
        last = if i % 2 == 0 { bench.transposed(last) } else { bench.view(last, Permute { dims: Axes::from_iter([1, 0]) }) };
    }
    bench.scale(last, 10);
    let base = bench.base;
    assert_eq!(bench.show(&[base])[0][1], 10.);
}
