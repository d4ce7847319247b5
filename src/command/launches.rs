//! What `eglu emit` says of its kernels: which run in which order, on which grids and with which arguments.

use eglu_codegen::{
    Source,
    cuda::{CudaPlan, KernelArg, Memory},
};
use eglu_ir::{Dim, graph::OutputKind};
use serde_json::{Value, json};

/// For people: one line for each piece of scratch memory, then one for each launch with its arguments in order.
pub(super) fn text(plan: &CudaPlan) -> String {
    let mut text = String::new();
    for (i, scratch) in plan.scratch.iter().enumerate() {
        text += &format!("scratch#{i}  {}  {} B\n", scratch.name, scratch.bytes);
    }
    for launch in &plan.launches {
        let [x, y, z] = &launch.grid;
        let args: Vec<String> = launch.args.iter().map(|arg| argument(plan, arg)).collect();
        text += &format!(
            "{}  {}.cu:{}  grid {x} × {y} × {z}  block {}  shared {} B  args {}\n",
            plan.plan.steps[launch.step].name,
            plan.modules[launch.module].name,
            launch.entry,
            launch.block.map(|n| n.to_string()).join(" × "),
            launch.shared_bytes,
            args.join("; ")
        );
    }
    text
}

/// `memory + bytes`, a tensor map's memory, or the expression of a number.
fn argument(plan: &CudaPlan, arg: &KernelArg) -> String {
    let named = |memory: Memory| match memory {
        Memory::Buffer(id) => format!("{}#{id}", plan.plan.buffers[id].name),
        Memory::Scratch(i) => format!("scratch#{i}"),
        Memory::Counters => "counters#".into(),
    };
    match arg {
        KernelArg::Pointer { memory, offset } => format!("{} + {offset}", named(*memory)),
        KernelArg::TensorMap(map) => format!("map of {} + {}", named(map.memory), map.offset),
        KernelArg::Int(dim) => dim.to_string(),
    }
}

/// For programs that launch the cubins: everything that a driver's calls need. Sizes, offsets and grids are expressions over the symbols,
/// as text.
pub(super) fn document(plan: &CudaPlan) -> Value {
    let buffers = plan.plan.buffers.iter().map(|buffer| {
        let source = match &buffer.source {
            Source::Input(i) => json!({ "input": i }),
            Source::Weight(name) => json!({ "weight": name }),
            Source::Constant(tensor) => json!({ "constant": tensor.bytes() }),
            Source::Step => json!("step"),
        };
        json!({ "name": buffer.name, "dtype": buffer.dtype.to_string(), "numel": buffer.numel.to_string(), "source": source })
    });
    let outputs = plan.plan.outputs.iter().map(|output| {
        let layout = &output.tensor.layout;
        let of = match &output.kind {
            OutputKind::User => json!("user"),
            OutputKind::Gradient(name) => json!({ "gradient": name }),
            OutputKind::Mutation(name) => json!({ "mutation": name }),
        };
        json!({
            "buffer": output.tensor.buffer, "shape": texts(&layout.shape), "strides": texts(&layout.strides),
            "offset": layout.offset.to_string(), "kind": of,
        })
    });
    let scratch = plan.scratch.iter().map(|scratch| json!({ "name": scratch.name, "bytes": scratch.bytes.to_string() }));
    let launches = plan.launches.iter().map(|launch| {
        json!({
            "step": plan.plan.steps[launch.step].name, "module": plan.modules[launch.module].name, "entry": launch.entry,
            "grid": texts(&launch.grid), "block": launch.block, "shared": launch.shared_bytes, "overlaps": launch.overlaps,
            "args": launch.args.iter().map(kernel_argument).collect::<Vec<_>>(),
        })
    });
    json!({
        "version": 1, "buffers": buffers.collect::<Vec<_>>(), "outputs": outputs.collect::<Vec<_>>(),
        "scratch": scratch.collect::<Vec<_>>(), "launches": launches.collect::<Vec<_>>(),
    })
}

fn texts(dims: &[Dim]) -> Vec<String> {
    dims.iter().map(Dim::to_string).collect()
}

fn kernel_argument(arg: &KernelArg) -> Value {
    let place = |memory: Memory| match memory {
        Memory::Buffer(id) => json!({ "buffer": id }),
        Memory::Scratch(i) => json!({ "scratch": i }),
        Memory::Counters => json!("counters"),
    };
    match arg {
        KernelArg::Pointer { memory, offset } => json!({ "pointer": place(*memory), "offset": offset.to_string() }),
        KernelArg::Int(dim) => json!({ "int": dim.to_string() }),
        KernelArg::TensorMap(map) => json!({
            "map": place(map.memory), "offset": map.offset.to_string(), "dtype": map.dtype.to_string(), "dims": texts(&map.dims),
            "strides": texts(&map.strides), "tile": map.tile, "follows": map.follows,
        }),
    }
}
