//! Reads an exported PyTorch model and says what is in it.
//!
//!     cargo run --example import -- fixtures/mixtral-grouped_mm.block.pt2

use eglu::Graph;
use std::{collections::BTreeMap, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give a .pt2 archive or a .json graph")?;
    let model = Graph::import(&path)?;
    let graph = &model.graph;
    println!("{} from PyTorch {}: {} bytes of weights", graph.name, model.metadata.torch_version, model.weights.bytes());
    for &input in graph.inputs() {
        println!("  {}: {}", graph.node(input).name, graph.ty(input.into()));
    }
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    for id in graph.topological()? {
        if let Some(op) = graph.node(id).op() {
            *ops.entry(op.name()).or_default() += 1;
        }
    }
    println!("{ops:#?}");
    Ok(())
}
