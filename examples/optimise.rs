//! Optimises a model for a device, which need not be there, and says what was fused, what was not, and why.
//!
//!     cargo run --example optimise -- fixtures/mixtral-grouped_mm.block.pt2 h200

use eglu::{DeviceProfile, Graph, Options, Pipeline, lower};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give a .pt2 archive or a .json graph")?;
    let device = arguments.next().unwrap_or_else(|| "h200".into());
    let profile = DeviceProfile::named(&device).ok_or("the devices are cpu, h200 and a100")?;
    let graph = Graph::import(&path)?.graph;
    let optimized = Pipeline::parse(Pipeline::STANDARD)?.run_with(graph, &Options::new(profile.clone()))?;
    let report = &optimized.report;
    println!(
        "{} ops became {} for {device}, in a plan of {} steps",
        report.nodes_before,
        report.nodes_after,
        lower(&optimized.graph)?.steps.len()
    );
    for site in &report.sites {
        println!("  fused by `{}`: {}", site.rule, site.nodes.join(", "));
    }
    for refused in &report.refused {
        println!("  `{}` was refused at `{}`: {}", refused.rule, refused.node, refused.why);
    }
    Ok(())
}
