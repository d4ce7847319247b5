//! Functionalisation keeps values: random programs with writes in place, also through views of views, against a model that has real
//! storages, offsets and strides.

use super::*;
use crate::{DType, OutputKind, Tensor, eval::eval_graph};
use proptest::prelude::*;

/// Random numbers for one step.
type Draw = [u8; 6];

/// A name's window of a storage.
#[derive(Clone, Debug)]
struct Window {
    storage: usize,
    offset: usize,
    sizes: Vec<usize>,
    strides: Vec<usize>,
    /// True for views of broadcast ones. Elements of those share places; what writes there is refused, even where a later view has each
    /// place once.
    broadcast: bool,
}

impl Window {
    /// Places of the elements in their storage, in row-major order.
    fn places(&self) -> Vec<usize> {
        self.sizes.iter().zip(&self.strides).fold(vec![self.offset], |places, (&size, &stride)| {
            places.iter().flat_map(|&place| (0..size).map(move |i| place + i * stride)).collect()
        })
    }

    fn is_contiguous(&self) -> bool {
        let dense = (0..self.sizes.len()).map(|i| self.sizes[i + 1..].iter().product::<usize>());
        self.sizes.contains(&0)
            || self.sizes.iter().zip(&self.strides).zip(dense).all(|((&size, &stride), dense)| size == 1 || stride == dense)
    }

    /// Seen as one dim without a copy, if its elements are equally far from each other.
    fn flat(&self) -> Option<Window> {
        let places = self.places();
        let stride = places.windows(2).next().map_or(1, |pair| pair[1].wrapping_sub(pair[0]));
        let even = places.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == stride);
        even.then(|| Window { sizes: vec![places.len()], strides: vec![stride], ..self.clone() })
    }
}

/// A program in the making, and what its names show.
#[derive(Default)]
struct Model {
    storages: Vec<Vec<f32>>,
    windows: Vec<Window>,
    nodes: Vec<Json>,
    writes: usize,
}

fn named(at: usize) -> String {
    format!("t{at}")
}

fn int(value: usize) -> Json {
    json!({"as_int": value})
}

fn float(value: f32) -> Json {
    json!({"as_float": value})
}

impl Model {
    fn new() -> Model {
        let mut model = Model::default();
        for sizes in [vec![3, 4], vec![2, 3, 2]] {
            let values = (0..12u8).map(|i| f32::from(i) - 3.0).collect();
            model.fresh(sizes, values);
        }
        model
    }

    /// A name with a storage of its own.
    fn fresh(&mut self, sizes: Vec<usize>, values: Vec<f32>) {
        let strides = (0..sizes.len()).map(|i| sizes[i + 1..].iter().product()).collect();
        self.storages.push(values);
        self.windows.push(Window { storage: self.storages.len() - 1, offset: 0, sizes, strides, broadcast: false });
    }

    fn values(&self, window: &Window) -> Vec<f32> {
        window.places().into_iter().map(|place| self.storages[window.storage][place]).collect()
    }

    fn write(&mut self, window: &Window, values: &[f32]) {
        for (place, &value) in window.places().into_iter().zip(values) {
            self.storages[window.storage][place] = value;
        }
        self.writes += 1;
    }

    /// A node whose result is the name made last.
    fn node(&mut self, target: &str, x: usize, arguments: &[(&str, Json)]) {
        let inputs: Vec<(&str, Json)> = [("self", tensor(&named(x)))].into_iter().chain(arguments.iter().cloned()).collect();
        self.nodes.push(node(&format!("aten.{target}"), &inputs, &named(self.windows.len() - 1)));
    }

    fn view(&mut self, target: &str, x: usize, arguments: &[(&str, Json)], window: Window) {
        self.windows.push(window);
        self.node(target, x, arguments);
    }

    fn copy(&mut self, target: &str, x: usize, arguments: &[(&str, Json)], sizes: Vec<usize>) {
        let values = self.values(&self.windows[x]);
        self.fresh(sizes, values);
        self.node(target, x, arguments);
    }

    fn step(&mut self, draw: Draw) {
        let [kind, x, a, b, c, _] = draw.map(usize::from);
        let x = x % self.windows.len();
        match kind % 20 {
            0..=9 => self.look(kind % 10, x, [a, b, c]),
            10..=16 => self.change(kind % 20, x, draw),
            17 => {
                let sum = self.values(&self.windows[x]).into_iter().map(|value| value + 1.0).collect();
                self.fresh(self.windows[x].sizes.clone(), sum);
                self.node("add.Tensor", x, &[("other", float(1.0))]);
            }
            18 => self.copy("clone.default", x, &[], self.windows[x].sizes.clone()),
            _ if self.windows[x].is_contiguous() => self.view("contiguous.default", x, &[], self.windows[x].clone()),
            _ => self.copy("contiguous.default", x, &[], self.windows[x].sizes.clone()),
        }
    }

    /// One of the views.
    fn look(&mut self, kind: usize, x: usize, [a, b, c]: [usize; 3]) {
        let mut to = self.windows[x].clone();
        let rank = to.sizes.len();
        if kind == 6 {
            to.sizes.insert(a % (rank + 1), 1);
            to.strides.insert(a % (rank + 1), 1);
            return self.view("unsqueeze.default", x, &[("dim", int(a % (rank + 1)))], to);
        }
        if kind == 7 {
            let size = json!({"as_ints": [-1]});
            return match to.flat() {
                Some(flat) if to.is_contiguous() && b % 2 == 0 => self.view("view.default", x, &[("size", size)], flat),
                Some(flat) => self.view("reshape.default", x, &[("shape", size)], flat),
                None => self.copy("reshape.default", x, &[("shape", size)], vec![to.sizes.iter().product()]),
            };
        }
        if rank == 0 {
            return;
        }
        let dim = a % rank;
        let (size, stride) = (to.sizes[dim], to.strides[dim]);
        match kind {
            0..=2 => {
                let (start, step) = (b % (size + 1), 1 + c % 2);
                let end = start + c % (size + 1 - start);
                to.offset += start * stride;
                (to.sizes[dim], to.strides[dim]) = ((end - start).div_ceil(step), stride * step);
                let bounds = [("dim", int(dim)), ("start", int(start)), ("end", int(end)), ("step", int(step))];
                self.view("slice.Tensor", x, &bounds, to);
            }
            3 if size > 0 => {
                to.offset += b % size * stride;
                to.sizes.remove(dim);
                to.strides.remove(dim);
                // Positions may be counted from the end.
                let index = if c % 2 == 0 { (b % size) as i64 } else { (b % size) as i64 - size as i64 };
                self.view("select.int", x, &[("dim", int(dim)), ("index", json!({"as_int": index}))], to);
            }
            4 => {
                to.sizes.swap(dim, b % rank);
                to.strides.swap(dim, b % rank);
                self.view("transpose.int", x, &[("dim0", int(dim)), ("dim1", int(b % rank))], to);
            }
            5 if rank > 1 => {
                let second = (dim + 1 + b % (rank - 1)) % rank;
                let (len, step) = (size.min(to.sizes[second]), stride + to.strides[second]);
                for at in [dim.max(second), dim.min(second)] {
                    to.sizes.remove(at);
                    to.strides.remove(at);
                }
                to.sizes.push(len);
                to.strides.push(step);
                self.view("diagonal.default", x, &[("offset", int(0)), ("dim1", int(dim)), ("dim2", int(second))], to);
            }
            8 if size > 0 => {
                let half = size.div_ceil(2);
                let first = self.windows.len();
                for (start, len) in [(0, half), (half, size - half)].into_iter().filter(|&(_, len)| len > 0) {
                    let (mut part, offset) = (to.clone(), to.offset + start * stride);
                    part.sizes[dim] = len;
                    self.windows.push(Window { offset, ..part });
                }
                let parts: Vec<Json> = (first..self.windows.len()).map(|at| json!({"name": named(at)})).collect();
                let inputs = [("self", tensor(&named(x))), ("split_size", int(half)), ("dim", int(dim))];
                let mut split = node("aten.split.Tensor", &inputs, &named(first));
                split["outputs"] = json!([{"as_tensors": parts}]);
                self.nodes.push(split);
            }
            9 => {
                to.sizes.insert(0, 2);
                to.strides.insert(0, 0);
                to.broadcast = true;
                let sizes: Vec<Json> = to.sizes.iter().map(|&size| json!({"as_int": size})).collect();
                self.view("expand.default", x, &[("size", json!({"as_sym_ints": sizes}))], to);
            }
            _ => {}
        }
    }

    /// One of the writes; the node's result is another name of what was written.
    fn change(&mut self, kind: usize, x: usize, draw: Draw) {
        let to = self.windows[x].clone();
        if to.broadcast {
            return;
        }
        let old = self.values(&to);
        let number = f32::from(draw[2] % 5) - 2.0;
        // What lies in the same storage may overlap with what is written, which PyTorch refuses.
        let other = usize::from(draw[3]) % self.windows.len();
        let apart = self.windows[other].storage != to.storage && self.windows[other].sizes == to.sizes;
        let (target, new, arguments): (&str, Vec<f32>, Vec<(&str, Json)>) = match kind {
            10 => ("mul_.Tensor", old.iter().map(|x| x * number).collect(), vec![("other", float(number))]),
            11 => ("fill_.Scalar", vec![number; old.len()], vec![("value", float(number))]),
            12 => ("zero_.default", vec![0.0; old.len()], vec![]),
            13 => ("relu_.default", old.iter().map(|x| x.max(0.0)).collect(), vec![]),
            14 if apart => {
                let added = self.values(&self.windows[other]);
                let sum = old.iter().zip(&added).map(|(x, y)| x + y).collect();
                ("add_.Tensor", sum, vec![("other", tensor(&named(other)))])
            }
            15 if apart => ("copy_.default", self.values(&self.windows[other]), vec![("src", tensor(&named(other)))]),
            _ => ("add_.Tensor", old.iter().map(|x| x + 1.0).collect(), vec![("other", float(1.0))]),
        };
        self.write(&to, &new);
        self.view(target, x, &arguments, to);
    }

    fn meta(&self, at: usize) -> Json {
        let Window { sizes, strides, offset, .. } = &self.windows[at];
        let list = |values: &[usize]| values.iter().map(|&value| int(value)).collect::<Vec<_>>();
        json!({"dtype": 7, "sizes": list(sizes), "strides": list(strides), "storage_offset": int(*offset), "layout": 7,
               "requires_grad": false, "device": {"type": "cpu", "index": null}})
    }

    /// The program, with all names as outputs.
    fn program(&self) -> Json {
        let names: Vec<String> = (0..self.windows.len()).map(named).collect();
        let tensors: Vec<Json> = names.iter().map(|name| tensor(name)).collect();
        let values: serde_json::Map<String, Json> = (0..names.len()).map(|at| (names[at].clone(), self.meta(at))).collect();
        let inputs: Vec<Json> = tensors[..2].iter().map(|arg| json!({"user_input": {"arg": arg}})).collect();
        let outputs: Vec<Json> = tensors.iter().map(|arg| json!({"user_output": {"arg": arg}})).collect();
        let mut program = super::program();
        program["graph_module"] = json!({
            "graph": {"inputs": tensors[..2], "outputs": tensors, "nodes": self.nodes, "tensor_values": values},
            "signature": {"input_specs": inputs, "output_specs": outputs},
        });
        program
    }
}

/// Checks a program of these steps; how often it writes.
fn check(steps: &[Draw]) -> Result<usize, TestCaseError> {
    let mut model = Model::new();
    let inputs: Vec<Tensor> =
        model.windows.iter().map(|w| Tensor::from_slice(DType::F32, &w.sizes, &model.values(w)).unwrap()).collect();
    for &draw in steps {
        model.step(draw);
    }
    let program = model.program();
    let imported = load_entries(&[(MODEL, program.to_string().into())]);
    let Imported { graph, .. } = imported.map_err(|e| TestCaseError::fail(format!("{e}\n{:#?}", model.nodes)))?;
    let results = eval_graph(&graph, &|_| None, &inputs).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let mut names = 0..model.windows.len();
    for (output, result) in graph.outputs().iter().zip(&results) {
        let name = match &output.kind {
            OutputKind::Mutation(input) => input[1..].parse().unwrap(),
            _ => names.next().unwrap(),
        };
        let window = &model.windows[name];
        prop_assert_eq!(result.shape(), &window.sizes[..]);
        prop_assert_eq!(result.as_slice::<f32>(), model.values(window), "t{} of {:#?}", name, model.nodes);
    }
    prop_assert_eq!(names.next(), None);
    Ok(model.writes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn writes_show_where_storages_are_shared(steps in prop::collection::vec(any::<Draw>(), 1..24)) {
        check(&steps)?;
    }
}

#[test]
fn random_programs_write_through_views() {
    let mut writes = 0;
    for seed in 0..50u8 {
        let draw = |i: u8| {
            std::array::from_fn(|j| {
                (usize::from(seed) * 37 + usize::from(i) * 101 + j * 53).wrapping_mul(40_503).to_le_bytes()[1]
            })
        };
        writes += check(&(0..20).map(draw).collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
    }
    assert!(writes > 150, "only {writes}");
}
