//! Dead code: calls, weights and constants that no output needs.

use crate::pipeline::{Context, Failure, Pass};
use eglu_ir::Graph;

/// Removes what no output needs; user inputs stay.
pub struct RemoveDead;

impl Pass for RemoveDead {
    fn name(&self) -> &'static str {
        "dce"
    }

    fn doc(&self) -> &'static str {
        "removes nodes that no output needs"
    }

    fn run(&self, graph: &mut Graph, _: &mut Context<'_>) -> Result<bool, Failure> {
        Ok(graph.remove_dead() > 0)
    }
}
