//! Graphs as backward passes have them: transposed gathers, and weight gradients by expert.

use crate::{
    blocks::Sizes,
    build::{Builder, int, shape},
    fusing::count,
    soundness::random,
};
use eglu_ir::{
    DType, Graph, Operand, Scalar, Tensor, Value,
    eval::eval_graph,
    ops::{Axes, Cat, Expand, ExpertOuter, Full, IndexPut, Iota, Pointwise, Reduce, ReduceKind},
    profile::H200,
};
use eglu_passes::egraph::saturate;

impl Builder {
    fn zeros(&mut self, dtype: DType, dims: &[i64]) -> Value {
        self.call(Full { shape: shape(dims), value: Scalar::Int(0), dtype }, &[])
    }

    /// `values` added, or written, at `places` of zeros.
    fn put(&mut self, dims: &[i64], values: Value, places: Value, accumulate: bool) -> Value {
        let onto = self.zeros(self.graph.ty(values).dtype, dims);
        let put = IndexPut { axes: Axes::from_slice(&[0]), accumulate };
        self.call(put, &[onto.into(), values.into(), places.into()])
    }

    fn outer(&mut self, a: Value, b: Value, ids: Value, experts: i64) -> Value {
        let dtype = self.graph.ty(a).dtype;
        self.call(ExpertOuter { experts: experts.into(), a_repeat: 1, b_repeat: 1, dtype }, &[a.into(), b.into(), ids.into()])
    }

    /// Each row of `x[T, h]` k times, as `expand` does it.
    fn expanded(&mut self, x: Value, [t, k, h]: [i64; 3]) -> Value {
        let x = self.reshape(x, &[t, 1, h]);
        let x = self.call(Expand { shape: shape(&[t, k, h]) }, &[x.into()]);
        self.reshape(x, &[t * k, h])
    }

    /// Ids of `rows` rows, each below `experts`.
    fn ids(&mut self, rows: i64, experts: i64) -> Value {
        let logits = self.input("logits", DType::F32, &[rows, experts]);
        let (_, ids) = self.topk(logits, 1);
        self.reshape(ids, &[rows])
    }

    /// The group of each row of `rows`, by where groups end: what a product ragged in K is imported with.
    fn groups(&mut self, rows: i64, experts: i64, ends: Value) -> Value {
        let positions = self.iota(rows);
        let ends = self.reshape(ends, &[experts, 1]);
        let ended = self.call(Pointwise::Ge, &[positions.into(), ends.into()]);
        let count = Reduce { kind: ReduceKind::Sum, dims: Axes::from_slice(&[0]), keepdim: false, dtype: DType::I64 };
        self.call(count, &[ended.into()])
    }
}

/// A graph with one output; `f` builds it.
fn graph(name: &str, f: impl FnOnce(&mut Builder) -> Value) -> Graph {
    let mut b = Builder::new(name);
    let y = f(&mut b);
    b.output(y);
    b.graph
}

/// Rows scattered to a permutation or its inverse, and by one index permuted like them.
fn scattered(rows: i64) -> Vec<Graph> {
    let noise = |b: &mut Builder| {
        let noise = b.input("noise", DType::F32, &[rows]);
        b.sort(noise).1
    };
    let mut graphs = Vec::new();
    for (inverse, accumulate) in [(false, true), (true, true), (false, false)] {
        graphs.push(graph("scattered", |b| {
            let p = noise(b);
            let places = if inverse { b.inverse(p, rows) } else { p };
            let v = b.input("v", DType::F32, &[rows, 3]);
            b.put(&[rows, 3], v, places, accumulate)
        }));
    }
    graphs.push(graph("scattered-alike", |b| {
        let p = noise(b);
        let (v, ids) = (b.input("v", DType::F32, &[rows, 3]), b.ids(rows, 3));
        let (v, ids) = (b.index(v, p), b.index(ids, p));
        b.put(&[3, 3], v, ids, true)
    }));
    graphs
}

/// What autograd makes of repeated rows.
fn repeated(Sizes { t, k, h, .. }: Sizes, dtype: DType) -> Vec<Graph> {
    vec![
        graph("expanded", |b| {
            let x = b.input("x", dtype, &[t, h]);
            let wide = b.cast(x, DType::F32);
            b.expanded(wide, [t, k, h])
        }),
        graph("picked", |b| {
            let x = b.input("x", dtype, &[t, h]);
            let wide = b.cast(x, DType::F32);
            let positions = b.iota(t * k);
            let tokens = b.floor_divide(positions, k);
            b.index(wide, tokens)
        }),
        graph("summed", |b| {
            let v = b.input("v", dtype, &[t * k, h]);
            let positions = b.iota(t * k);
            let tokens = b.floor_divide(positions, k);
            b.put(&[t, h], v, tokens, true)
        }),
        graph("summed-kept", |b| {
            let v = b.input("v", dtype, &[t, h]);
            b.sum(v, 1, true, DType::F32)
        }),
    ]
}

/// Gradients of the two halves, or of the lanes, of one tensor.
fn joined(rows: i64, swapped: bool) -> Vec<Graph> {
    let sum = |b: &mut Builder, x: Value, y: Value| if swapped { b.add(y, x) } else { b.add(x, y) };
    vec![
        graph("halves", |b| {
            let (x, y) = (b.input("x", DType::F32, &[rows, 3]), b.input("y", DType::F32, &[rows, 2]));
            let (before, after) = (b.zeros(DType::F32, &[rows, 3]), b.zeros(DType::F32, &[rows, 2]));
            let x = b.call(Cat { dim: 1 }, &[x.into(), after.into()]);
            let y = b.call(Cat { dim: 1 }, &[before.into(), y.into()]);
            sum(b, x, y)
        }),
        graph("lanes", |b| {
            let lanes: Vec<Value> = [("x", 0), ("y", 1)]
                .into_iter()
                .map(|(name, start)| {
                    let x = b.input(name, DType::F32, &[rows, 3]);
                    let columns = b.call(Iota { len: 3.into(), start, step: 2, dtype: DType::I64 }, &[]);
                    let onto = b.zeros(DType::F32, &[rows, 6]);
                    let put = IndexPut { axes: Axes::from_slice(&[1]), accumulate: false };
                    b.call(put, &[onto.into(), x.into(), columns.into()])
                })
                .collect();
            sum(b, lanes[0], lanes[1])
        }),
    ]
}

/// Gradients of a bias and of a weight by ids, the latter as a batch of outer products in some spelling.
fn by_id(rows: i64, experts: i64, spelling: usize) -> Graph {
    let mut b = Builder::new("by-id");
    let ids = b.ids(rows, experts);
    let (x, y) = (b.input("x", DType::F32, &[rows, 3]), b.input("y", DType::F32, &[rows, 2]));
    let (column, row) = (b.reshape(x, &[rows, 3, 1]), b.reshape(y, &[rows, 1, 2]));
    let products = match spelling {
        0 => b.matmul(column, row),
        1 => b.mul(column, row),
        _ => b.mul(row, column),
    };
    let weight = b.put(&[experts, 3, 2], products, ids, true);
    let weight = b.permute(weight, &[0, 2, 1]);
    let bias = b.put(&[experts, 3], x, ids, true);
    b.output(weight);
    b.output(bias);
    b.graph
}

/// A weight gradient over rows sorted by expert; without `bounded`, ids may exceed the experts and rows of none are masked.
fn grouped(rows: i64, experts: i64, bounded: bool, counted: DType) -> Graph {
    graph(if bounded { "grouped" } else { "experts" }, |b| {
        let ids = if bounded { b.ids(rows, experts) } else { b.input("ids", DType::I64, &[rows]) };
        let (sorted, p) = b.sort(ids);
        let (x, y) = (b.input("x", DType::F32, &[rows, 3]), b.input("y", DType::F32, &[rows, 2]));
        let mut operands = [x, y].map(|x| b.index(x, p));
        if !bounded {
            let dropped = b.call(Pointwise::Ge, &[sorted.into(), int(experts)]);
            let dropped = b.reshape(dropped, &[rows, 1]);
            operands = operands.map(|x| b.masked(dropped, x));
        }
        let ends = b.offsets(sorted, experts, experts - 1, counted);
        let groups = b.groups(rows, experts, ends);
        b.outer(operands[0], operands[1], groups, experts)
    })
}

/// Sums by id of rows that repeat, on either side, stored in f32 and rounded.
fn of_repeated(Sizes { t, k, e, .. }: Sizes, left: bool) -> Graph {
    graph("of-repeated", |b| {
        let ids = b.ids(t * k, e);
        let (x, y) = (b.input("x", DType::Bf16, &[t, 3]), b.input("y", DType::Bf16, &[t * k, 2]));
        let x = b.expanded(x, [t, k, 3]);
        let op = ExpertOuter { experts: e.into(), a_repeat: 1, b_repeat: 1, dtype: DType::F32 };
        let operands: [Operand; 3] = if left { [x.into(), y.into(), ids.into()] } else { [y.into(), x.into(), ids.into()] };
        let sums = b.call(op, &operands);
        b.cast(sums, DType::Bf16)
    })
}

/// Rows and ids permuted alike by anything.
fn permuted(rows: i64, experts: i64) -> Graph {
    graph("permuted", |b| {
        let noise = b.input("noise", DType::F32, &[rows]);
        let (_, p) = b.sort(noise);
        let ids = b.ids(rows, experts);
        let (x, y) = (b.input("x", DType::F32, &[rows, 3]), b.input("y", DType::F32, &[rows, 2]));
        let [x, y, ids] = [x, y, ids].map(|x| b.index(x, p));
        b.outer(x, y, ids, experts)
    })
}

/// All of them.
pub fn graphs(rows: i64, sizes: Sizes) -> Vec<Graph> {
    let experts = sizes.e;
    let mut graphs = scattered(rows);
    for dtype in [DType::F32, DType::Bf16] {
        graphs.extend(repeated(sizes, dtype));
    }
    for swapped in [false, true] {
        graphs.extend(joined(rows, swapped));
        graphs.push(of_repeated(sizes, swapped));
    }
    graphs.extend((0..3).map(|spelling| by_id(rows, experts, spelling)));
    for counted in [DType::F32, DType::I64] {
        graphs.extend([grouped(rows, experts, true, counted), grouped(rows, experts, false, counted)]);
    }
    graphs.push(permuted(rows, experts));
    graphs
}

/// Rewrites, and checks that the result still computes the same.
fn rewritten(graph: &Graph, ids: i64) -> Graph {
    let (fused, _) = saturate(graph, &H200).unwrap();
    let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| random(graph, id.into(), 3, ids)).collect();
    let run = |g: &Graph| eval_graph(g, &|_| None, &inputs).unwrap();
    for (want, got) in run(graph).iter().zip(run(&fused)) {
        assert!(eglu_passes::certify::relative_error(&got, want).unwrap() < 1e-5, "{}", graph.name);
    }
    fused
}

#[test]
fn no_dispatch_is_left_of_weight_gradients() {
    for graph in [grouped(12, 4, true, DType::F32), grouped(12, 4, false, DType::I64)] {
        let fused = rewritten(&graph, 5);
        let left = ["sort", "index", "where", "histc", "cumsum", "reduce"].map(|op| count(&fused, op));
        assert_eq!((left, count(&fused, "expert_outer")), ([0; 6], 1), "{}", fused.name);
    }
    for spelling in 0..3 {
        let fused = rewritten(&by_id(12, 4, spelling), 1);
        assert_eq!((count(&fused, "index_put"), count(&fused, "expert_outer")), (0, 2));
    }
}

#[test]
fn scatters_that_only_look_like_transposed_gathers() {
    let kept = |name: &str, f: &dyn Fn(&mut Builder) -> Value| {
        assert_eq!(count(&rewritten(&graph(name, f), 1), "index_put"), 1, "{name} must stay");
    };
    kept("onto something", &|b| {
        let (noise, x) = (b.input("noise", DType::F32, &[6]), b.input("x", DType::F32, &[6, 3]));
        let (v, p) = (b.input("v", DType::F32, &[6, 3]), b.sort(noise).1);
        let put = IndexPut { axes: Axes::from_slice(&[0]), accumulate: true };
        b.call(put, &[x.into(), v.into(), p.into()])
    });
    kept("into more rows", &|b| {
        let (noise, v) = (b.input("noise", DType::F32, &[6]), b.input("v", DType::F32, &[6, 3]));
        let p = b.sort(noise).1;
        b.put(&[8, 3], v, p, true)
    });
    kept("by another divisor", &|b| {
        let v = b.input("v", DType::F32, &[6, 3]);
        let positions = b.iota(6);
        let tokens = b.floor_divide(positions, 2);
        b.put(&[4, 3], v, tokens, true)
    });
    kept("the last of each", &|b| {
        let v = b.input("v", DType::F32, &[6, 3]);
        let positions = b.iota(6);
        let tokens = b.floor_divide(positions, 2);
        b.put(&[3, 3], v, tokens, false)
    });
    kept("an embedding", &|b| {
        let (v, ids) = (b.input("v", DType::F32, &[6, 3]), b.ids(6, 4));
        b.put(&[4, 3], v, ids, true)
    });
}

#[test]
fn lanes_that_overlap_are_added() {
    let overlapping = graph("overlapping", |b| {
        let (x, y) = (b.input("x", DType::F32, &[5, 3]), b.input("y", DType::F32, &[5, 3]));
        let columns = b.call(Iota { len: 3.into(), start: 0, step: 2, dtype: DType::I64 }, &[]);
        let lanes = [x, y].map(|x| {
            let onto = b.zeros(DType::F32, &[5, 6]);
            let put = IndexPut { axes: Axes::from_slice(&[1]), accumulate: false };
            b.call(put, &[onto.into(), x.into(), columns.into()])
        });
        b.add(lanes[0], lanes[1])
    });
    assert_eq!(count(&rewritten(&overlapping, 1), "cat"), 0);
}

#[test]
fn inner_products_are_no_outer_ones() {
    let inner = graph("inner", |b| {
        let ids = b.ids(6, 4);
        let (x, y) = (b.input("x", DType::F32, &[6, 1, 3]), b.input("y", DType::F32, &[6, 3, 1]));
        let products = b.matmul(x, y);
        b.put(&[4, 1, 1], products, ids, true)
    });
    let (fused, report) = saturate(&inner, &H200).unwrap();
    assert_eq!(count(&fused, "expert_outer"), 0);
    assert!(report.refused.iter().any(|miss| miss.rule == "outer-by-id" && miss.condition == "outer-products"));
}

#[test]
fn outer_products_at_ids_that_may_be_negative() {
    let graph = graph("negative", |b| {
        let ids = b.ids(6, 4);
        let ids = b.call(Pointwise::Sub, &[ids.into(), int(1)]);
        let (x, y) = (b.input("x", DType::F32, &[6, 3, 1]), b.input("y", DType::F32, &[6, 1, 3]));
        let products = b.matmul(x, y);
        b.put(&[4, 3, 3], products, ids, true)
    });
    let (fused, report) = saturate(&graph, &H200).unwrap();
    assert_eq!(count(&fused, "expert_outer"), 0);
    let miss = report.refused.iter().find(|miss| miss.rule == "outer-by-id").unwrap();
    assert!(miss.condition == "ids-not-negative" && miss.why.contains("-1 to 2"), "{miss:?}");
}
