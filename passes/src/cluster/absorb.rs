//! What can join a kernel behind its main value: pointwise nodes whose results leave by one exit.

use super::{inline::is_pointwise, partition::Partition};
use eglu_ir::NodeId;

/// More nodes than this between two exits are not searched.
const SEARCHED: usize = 16;

/// The smallest set of pointwise nodes of `exit`'s shape that takes in every reader of `exit` and leaves by one of its nodes, which comes last.
///
/// Nothing can leave such a set and come back, as all paths out of it start at its exit.
pub(crate) fn next_exit(partition: &Partition<'_>, exit: NodeId) -> Option<Vec<NodeId>> {
    let graph = partition.graph;
    let shape = &graph.node(exit).outputs[0].shape;
    let fits =
        |id: NodeId| partition.members(id).len() == 1 && is_pointwise(graph, id) && graph.node(id).outputs[0].shape == *shape;
    let mut taken: Vec<NodeId> = Vec::new();
    let mut at = exit;
    loop {
        if partition.is_output(at) || partition.users(at).is_empty() {
            return None;
        }
        for &user in partition.users(at) {
            if !taken.contains(&user) {
                if !fits(user) || taken.len() == SEARCHED {
                    return None;
                }
                taken.push(user);
            }
        }
        taken.sort_unstable_by_key(|&id| partition.rank(id));
        let leaves = |id: &NodeId| partition.is_output(*id) || partition.users(*id).iter().any(|user| !taken.contains(user));
        let open: Vec<NodeId> = taken.iter().copied().filter(leaves).collect();
        match open[..] {
            [last] if taken.last() == Some(&last) => return Some(taken),
            [] => return None,
            [first, ..] => at = first,
        }
    }
}
