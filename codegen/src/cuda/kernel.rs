//! One kernel: its parameters, collected while its text is written.

use super::{KernelArg, Memory, TensorMap, ctype, error::Emit};
use crate::TensorRef;
use eglu_ir::{Dim, Shape};
use indexmap::IndexMap;

/// Files of the device library; a kernel includes what it uses, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Header {
    /// Included by itself where a type is complex.
    Complex,
    ShortResults,
    Math,
    Warp,
    Reduce,
    Keys,
    Lines,
    Columns,
    Cluster,
    Scan,
    Sort,
    Rows,
    Dispatch,
    Mma,
    GemmMma,
    GemmTiled,
    Hopper,
    GemmWgmma,
    GemmSwapped,
    GemmCaptured,
    DispatchCluster,
    FewTokens,
    FewRows,
    GemmDense,
    GemmOuter,
    GemmStream,
    Router,
}

impl Header {
    fn text(self) -> &'static str {
        match self {
            Header::Complex => include_str!("device/complex.cuh"),
            Header::ShortResults => {
                "// Results have 16 bits: activations need no more than f32's fast instructions give.\n#define SHORT_RESULTS\n"
            }
            Header::Math => include_str!("device/math.cuh"),
            Header::Warp => include_str!("device/warp.cuh"),
            Header::Reduce => include_str!("device/reduce.cuh"),
            Header::Keys => include_str!("device/keys.cuh"),
            Header::Lines => include_str!("device/lines.cuh"),
            Header::Columns => include_str!("device/columns.cuh"),
            Header::Cluster => include_str!("device/cluster.cuh"),
            Header::Scan => include_str!("device/scan.cuh"),
            Header::Sort => include_str!("device/sort.cuh"),
            Header::Rows => include_str!("device/gemm_rows.cuh"),
            Header::Dispatch => include_str!("device/dispatch.cuh"),
            Header::Mma => include_str!("device/mma.cuh"),
            Header::GemmMma => include_str!("device/gemm_mma.cuh"),
            Header::GemmTiled => include_str!("device/gemm_tiled.cuh"),
            Header::Hopper => include_str!("device/hopper.cuh"),
            Header::GemmWgmma => include_str!("device/gemm_wgmma.cuh"),
            Header::FewTokens => include_str!("device/few_tokens.cuh"),
            Header::FewRows => include_str!("device/few_rows.cuh"),
            Header::DispatchCluster => include_str!("device/dispatch_cluster.cuh"),
            Header::GemmSwapped => include_str!("device/gemm_swapped.cuh"),
            Header::GemmCaptured => include_str!("device/gemm_captured.cuh"),
            Header::GemmDense => include_str!("device/gemm_dense.cuh"),
            Header::GemmOuter => include_str!("device/gemm_outer.cuh"),
            Header::GemmStream => include_str!("device/gemm_stream.cuh"),
            Header::Router => include_str!("device/router.cuh"),
        }
    }
}

/// The text of a kernel apart from its parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct Code {
    /// What it includes.
    pub headers: Vec<Header>,
    /// Functions and types before the kernel.
    pub items: String,
    /// Statements of the kernel.
    pub body: String,
    /// Threads of a block along x and y.
    pub threads: [u32; 2],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    /// Blocks that must fit on a multiprocessor together, which bounds registers; 0 leaves it to the compiler.
    pub residents: u32,
    /// Blocks of a cluster along x; 0 without clusters.
    pub cluster: u32,
    /// It may start before the launch before it ends: it calls `wait_for_kernel_before` before it touches what kernels write.
    pub overlaps: bool,
}

/// A kernel's name and parameters.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub entry: String,
    params: Vec<String>,
    args: Vec<KernelArg>,
    dims: IndexMap<Dim, String>,
}

impl Kernel {
    pub fn new(entry: impl Into<String>) -> Kernel {
        Kernel { entry: entry.into(), params: Vec::new(), args: Vec::new(), dims: IndexMap::new() }
    }

    /// A pointer to the first element of an input's view; returns its name.
    pub fn read(&mut self, tensor: &TensorRef) -> Emit<String> {
        let ty = ctype::storage(tensor.dtype)?;
        Ok(self.pointer(&format!("const {ty}"), "x", Memory::Buffer(tensor.buffer), byte_offset(tensor)))
    }

    /// A pointer to the first element of an output's view.
    pub fn write(&mut self, tensor: &TensorRef) -> Emit<String> {
        let ty = ctype::storage(tensor.dtype)?;
        Ok(self.pointer(ty, "y", Memory::Buffer(tensor.buffer), byte_offset(tensor)))
    }

    /// A pointer to scratch memory.
    pub fn scratch(&mut self, ty: &str, scratch: usize) -> String {
        self.pointer(ty, "s", Memory::Scratch(scratch), Dim::from(0))
    }

    /// A pointer to counters that are zero before and after every kernel: [`COUNTERS`](super::COUNTERS) of them, `u32`.
    pub fn counters(&mut self) -> String {
        self.pointer("u32", "n", Memory::Counters, Dim::from(0))
    }

    /// Statements before which nothing is read that these parameters point to, though the kernel never writes it.
    pub fn reads_from_here(&self) -> String {
        let names = self.params.iter().filter(|param| param.starts_with("const ") && param.contains('*'));
        names.filter_map(|param| param.rsplit(' ').next()).map(|name| format!("read_from_here({name});\n")).collect()
    }

    /// A tensor map, passed by value; returns its name.
    pub fn tensor_map(&mut self, map: TensorMap) -> String {
        let name = format!("t{}", self.params.len());
        self.params.push(format!("const __grid_constant__ TensorMap {name}"));
        self.args.push(KernelArg::TensorMap(map));
        name
    }

    fn pointer(&mut self, ty: &str, prefix: &str, memory: Memory, offset: Dim) -> String {
        let name = format!("{prefix}{}", self.params.len());
        self.params.push(format!("{ty}* __restrict__ {name}"));
        self.args.push(KernelArg::Pointer { memory, offset });
        name
    }

    /// An extent or stride: a literal where it is known, else a parameter (one for each distinct expression).
    pub fn dim(&mut self, dim: &Dim) -> String {
        if let Some(value) = dim.as_const() {
            return format!("{value}LL");
        }
        let next = format!("d{}", self.dims.len());
        self.dims.entry(dim.clone()).or_insert(next).clone()
    }

    /// The offset of an element from these indices, in elements.
    pub fn offset(&mut self, indices: &[String], strides: &[Dim]) -> String {
        let terms: Vec<String> = indices
            .iter()
            .zip(strides)
            .filter(|(_, stride)| !stride.is(0))
            .map(|(index, stride)| match stride.as_const() {
                Some(1) => format!("(i64){index}"),
                _ => format!("(i64){index} * {}", self.dim(stride)),
            })
            .collect();
        if terms.is_empty() { "0".into() } else { terms.join(" + ") }
    }

    /// Statements that split the linear index `from` into one index for each extent, and their names.
    pub fn split(&mut self, from: &str, prefix: &str, shape: &[Dim]) -> (String, Vec<String>) {
        let names: Vec<String> = (0..shape.len()).map(|i| format!("{prefix}{i}")).collect();
        let small = eglu_ir::types::numel(shape).as_const().is_some_and(|n| n < 1 << 31);
        let ty = if small { "u32" } else { "i64" };
        let mut text = format!("{ty} {prefix}_rest = ({ty}){from};\n");
        for i in (1..shape.len()).rev() {
            let extent = if small { format!("{}u", shape[i]) } else { self.dim(&shape[i]) };
            text += &format!("const {ty} {} = {prefix}_rest % {extent};\n{prefix}_rest /= {extent};\n", names[i]);
        }
        if !shape.is_empty() {
            text += &format!("const {ty} {} = {prefix}_rest;\n", names[0]);
        }
        (text, names)
    }

    /// The translation unit and the arguments.
    pub fn finish(mut self, mut code: Code) -> (String, String, Vec<KernelArg>) {
        for (dim, name) in std::mem::take(&mut self.dims) {
            self.params.push(format!("i64 {name}"));
            self.args.push(KernelArg::Int(dim));
        }
        let complex = |text: &str| ["c64", "c128"].iter().any(|ty| text.contains(ty));
        if complex(&code.items) || complex(&code.body) || self.params.iter().any(|param| complex(param)) {
            code.headers.push(Header::Complex);
        }
        code.headers.sort_unstable();
        code.headers.dedup();
        let mut source = String::from(include_str!("device/types.cuh"));
        for header in &code.headers {
            source += "\n";
            source += header.text();
        }
        let threads = code.threads[0] * code.threads[1];
        let bounds = if code.residents == 0 { format!("{threads}") } else { format!("{threads}, {}", code.residents) };
        let cluster = if code.cluster == 0 { String::new() } else { format!("__cluster_dims__({}, 1, 1) ", code.cluster) };
        source += &indented(&format!(
            "\n{}\nextern \"C\" __global__ void {cluster}__launch_bounds__({bounds}) {}({}) {{\n{}}}\n",
            code.items,
            self.entry,
            self.params.join(", "),
            code.body
        ));
        (self.entry, source, self.args)
    }
}

/// The text with each line indented by the braces open before it: emitted sources are meant to be read.
fn indented(text: &str) -> String {
    let mut depth = 0i32;
    let mut out = String::with_capacity(text.len() * 2);
    for line in text.lines().map(str::trim_start) {
        let closing = line.chars().take_while(|&c| c == '}').count() as i32;
        if !line.is_empty() && !line.starts_with('#') {
            out.extend(std::iter::repeat_n("    ", (depth - closing).max(0) as usize));
        }
        out += line;
        out.push('\n');
        depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
    }
    out
}

pub(super) fn byte_offset(tensor: &TensorRef) -> Dim {
    tensor.layout.offset.clone() * Dim::from(tensor.dtype.size() as i64)
}

/// The shape without the dims in `without`.
pub(super) fn without<T: Clone>(items: &[T], without: &[usize]) -> Vec<T> {
    items.iter().enumerate().filter(|(i, _)| !without.contains(i)).map(|(_, item)| item.clone()).collect()
}

/// Strides of a view broadcast to `shape`.
pub(super) fn broadcast_strides(tensor: &TensorRef, shape: &[Dim]) -> Vec<Dim> {
    tensor.layout.expand(&Shape::from_iter(shape.iter().cloned())).strides.into_iter().collect()
}

/// True if every value of the expression is a multiple of `by`.
pub(super) fn divisible(dim: &Dim, by: i64) -> bool {
    dim.terms().iter().all(|(coefficient, _)| coefficient % by == 0)
}
