//! Convolutions and their gradients: one thread for each element of the result, which adds up all its products.

use super::{
    ctype,
    emitter::{Emitter, elements, flat, tensor},
    error::Emit,
    kernel::{Code, Header, Kernel},
};
use crate::{Step, TensorRef};
use eglu_ir::{Dim, ops::convolution::Window};

const THREADS: i64 = 256;

/// Which of the three tensors of a convolution the step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Output,
    Input,
    Weight,
}

/// The three tensors: x [N, C, …], w [O, C / groups, …], y [N, O, …].
struct Tensors<'a> {
    x: &'a TensorRef,
    w: &'a TensorRef,
    y: &'a TensorRef,
}

pub(super) fn convolution(emitter: &mut Emitter, step: &Step, of: Of, groups: usize, window: Window<'_>) -> Emit<()> {
    let (a, b, result) = (tensor(step, 0)?, tensor(step, 1)?, &step.outputs[0]);
    let all = match of {
        Of::Output => Tensors { x: a, w: b, y: result },
        Of::Input => Tensors { x: result, w: b, y: a },
        Of::Weight => Tensors { x: a, w: result, y: b },
    };
    let name = match of {
        Of::Output => "convolution",
        Of::Input => "convolution_input",
        Of::Weight => "convolution_weight",
    };
    let mut kernel = Kernel::new(format!("{name}_{}", result.dtype));
    let (from_a, from_b, to) = (kernel.read(a)?, kernel.read(b)?, kernel.write(result)?);
    let total = kernel.dim(&elements(result));
    let (split, names) = kernel.split("at", "i", &result.layout.shape);
    let target = kernel.offset(&names, &result.layout.strides);
    let mut nest = Nest { kernel: &mut kernel, all: &all, of, names, groups, text: String::new(), loops: 0 };
    nest.write(window, [&from_a, &from_b]);
    let Nest { text: sums, loops, .. } = nest;
    let close = "}\n".repeat(loops);
    let (ty, stored) = (ctype::opmath(result.dtype)?, ctype::storage(result.dtype)?);
    let body = format!(
        "const i64 at = (i64)blockIdx.x * {THREADS} + threadIdx.x;\nif (at >= {total}) return;\n{split}{ty} sum = 0;\n{sums}{close}\
         {to}[{target}] = cast<{stored}>(sum);\n"
    );
    let blocks = elements(result).ceil_div(THREADS);
    let code = Code {
        headers: vec![Header::Math],
        items: String::new(),
        body,
        threads: [THREADS as u32, 1],
        shared_bytes: 0,
        residents: 0,
        ..Code::default()
    };
    emitter.launch(kernel, code, flat(blocks));
    Ok(())
}

/// The loops over what is summed.
struct Nest<'a> {
    kernel: &'a mut Kernel,
    all: &'a Tensors<'a>,
    of: Of,
    /// Indices of the result's element.
    names: Vec<String>,
    groups: usize,
    text: String,
    loops: usize,
}

impl Nest<'_> {
    fn open(&mut self, name: &str, extent: &Dim) {
        let extent = self.kernel.dim(extent);
        self.text += &format!("for (i64 {name} = 0; {name} < {extent}; {name}++) {{\n");
        self.loops += 1;
    }

    fn set(&mut self, name: &str, value: &str) {
        self.text += &format!("const i64 {name} = {value};\n");
    }

    fn write(&mut self, window: Window<'_>, [a, b]: [&str; 2]) {
        let Tensors { x, w, y } = *self.all;
        let (x_shape, w_shape, y_shape) = (&x.layout.shape, &w.layout.shape, &y.layout.shape);
        let channels = self.kernel.dim(&w_shape[1]);
        let filters = w_shape[0].exact_div(&Dim::from(self.groups as i64)).unwrap_or_else(|| w_shape[0].clone());
        let filters_text = self.kernel.dim(&filters);
        let (first, second) = (format!("(i64){}", self.names[0]), format!("(i64){}", self.names[1]));
        // n sample, f filter, c channel within the group, g its group.
        match self.of {
            Of::Output => {
                self.set("n", &first);
                self.set("f", &second);
                self.set("g", &format!("f / {filters_text}"));
                self.open("c", &w_shape[1]);
            }
            Of::Input => {
                self.set("n", &first);
                self.set("g", &format!("{second} / {channels}"));
                self.set("c", &format!("{second} % {channels}"));
                self.open("o", &filters);
                self.set("f", &format!("g * {filters_text} + o"));
            }
            Of::Weight => {
                self.set("f", &first);
                self.set("c", &second);
                self.set("g", &format!("f / {filters_text}"));
                self.open("n", &x_shape[0]);
            }
        }
        for i in 0..x_shape.len() - 2 {
            let own = format!("(i64){}", self.names[2 + i]);
            let (stride, padding, dilation) = (window.stride[i], window.padding[i], window.dilation[i]);
            let (input, output) = (self.kernel.dim(&x_shape[2 + i]), self.kernel.dim(&y_shape[2 + i]));
            let (d, k, p) = (format!("d{i}_"), format!("k{i}_"), format!("p{i}_"));
            match self.of {
                Of::Output => {
                    self.set(&p, &own);
                    self.open(&k, &w_shape[2 + i]);
                }
                Of::Input => {
                    self.set(&d, &own);
                    self.open(&k, &w_shape[2 + i]);
                    self.set(&format!("t{i}_"), &format!("{d} + {padding}LL - {k} * {dilation}LL"));
                    self.text += &format!("if (t{i}_ < 0 || t{i}_ % {stride}LL != 0) continue;\n");
                    self.set(&p, &format!("t{i}_ / {stride}LL"));
                    self.text += &format!("if ({p} >= {output}) continue;\n");
                    continue;
                }
                Of::Weight => {
                    self.set(&k, &own);
                    self.open(&p, &y_shape[2 + i]);
                }
            }
            self.set(&d, &format!("{p} * {stride}LL + {k} * {dilation}LL - {padding}LL"));
            self.text += &format!("if ({d} < 0 || {d} >= {input}) continue;\n");
        }
        let spatial = |letter: char| (0..x_shape.len() - 2).map(move |i| format!("{letter}{i}_"));
        let index = |head: [&str; 2], letter: char| -> Vec<String> {
            head.into_iter().map(String::from).chain(spatial(letter)).collect()
        };
        let x_at = self.kernel.offset(&index(["n", &format!("(g * {channels} + c)")], 'd'), &x.layout.strides);
        let w_at = self.kernel.offset(&index(["f", "c"], 'k'), &w.layout.strides);
        let y_at = self.kernel.offset(&index(["n", "f"], 'p'), &y.layout.strides);
        let (first, second) = match self.of {
            Of::Output => (x_at, w_at),
            Of::Input => (y_at, w_at),
            Of::Weight => (x_at, y_at),
        };
        self.text += &format!("sum += up({a}[{first}]) * up({b}[{second}]);\n");
    }
}
