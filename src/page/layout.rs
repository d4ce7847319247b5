//! Where the nodes of a graph stand in its picture: in ranks from top to bottom, edges down.
//!
//! Ranks and orders by the barycentre method of Sugiyama, Tagawa and Toda (*Methods for visual understanding of hierarchical system
//! structures*, 1981); places along a rank by least squares under the order (isotonic regression), swept up and down.

use std::collections::{BTreeMap, HashMap};

/// Horizontal room of a node, and of an edge that passes a rank, in pixels.
const NODE: f64 = 168.0;
const PASSING: f64 = 14.0;

/// Edges over more ranks than this are not drawn as lines: both ends name each other, as in circuit diagrams.
const LONG: usize = 9;

/// The readers of a node with more of them name it instead, for the same reason.
const FAN: usize = 16;

/// Parts stand side by side up to this width, in pixels.
const SHELF: f64 = 1200.0;

/// Ranks above and below over which drift is averaged.
const DRIFT: usize = 40;

/// Sweeps over all ranks for their order, and for their places.
const SWEEPS: usize = 6;

/// A drawn edge.
pub struct Edge {
    pub from: usize,
    pub to: usize,
    /// Where it crosses the ranks between its ends, from the top.
    pub via: Vec<f64>,
}

/// Places of nodes.
pub struct Layout {
    /// The rank of each node, from 0 at the top.
    pub rank: Vec<usize>,
    /// The middle of each node along its rank, in pixels.
    pub x: Vec<f64>,
    /// Edges short enough to draw.
    pub edges: Vec<Edge>,
    /// Ends of the others.
    pub long: Vec<(usize, usize)>,
    pub ranks: usize,
    /// In pixels.
    pub width: f64,
}

/// Something with a place in a rank: a node, or an edge that passes.
struct Item {
    up: Vec<usize>,
    down: Vec<usize>,
    room: f64,
    x: f64,
}

/// Lays out nodes in topological order; `reads` names those that each reads, all of them before it.
///
/// Parts that no drawn edge joins stand side by side and below each other.
pub fn lay_out(reads: &[Vec<usize>]) -> Layout {
    let mut readers = vec![0usize; reads.len()];
    reads.iter().flatten().for_each(|&source| readers[source] += 1);
    let (mut near, mut long) = (Vec::with_capacity(reads.len()), Vec::new());
    for (to, sources) in reads.iter().enumerate() {
        let (drawn, named): (Vec<usize>, Vec<usize>) = sources.iter().partition(|&&source| readers[source] <= FAN);
        long.extend(named.into_iter().map(|from| (from, to)));
        near.push(drawn);
    }
    let mut whole =
        Layout { rank: vec![0; reads.len()], x: vec![0.0; reads.len()], edges: Vec::new(), long, ranks: 0, width: 0.0 };
    let (mut left, mut top, mut deepest) = (0.0, 0, 0);
    for part in parts(&near) {
        let place: HashMap<usize, usize> = part.iter().enumerate().map(|(at, &node)| (node, at)).collect();
        let own: Vec<Vec<usize>> = part.iter().map(|&node| near[node].iter().map(|source| place[source]).collect()).collect();
        let piece = lay_out_part(&own);
        if left > 0.0 && left + piece.width > SHELF {
            (left, top) = (0.0, top + deepest);
            deepest = 0;
        }
        for (at, &node) in part.iter().enumerate() {
            whole.rank[node] = top + piece.rank[at];
            whole.x[node] = left + piece.x[at];
        }
        whole.edges.extend(piece.edges.into_iter().map(|edge| Edge {
            from: part[edge.from],
            to: part[edge.to],
            via: edge.via.into_iter().map(|x| left + x).collect(),
        }));
        whole.long.extend(piece.long.into_iter().map(|(from, to)| (part[from], part[to])));
        left += piece.width;
        deepest = deepest.max(piece.ranks);
        whole.ranks = whole.ranks.max(top + piece.ranks);
        whole.width = whole.width.max(left);
    }
    whole
}

/// The nodes of each part that edges join, in order; parts by their first node.
fn parts(reads: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut parent: Vec<usize> = (0..reads.len()).collect();
    fn root(parent: &mut [usize], mut node: usize) -> usize {
        while parent[node] != node {
            parent[node] = parent[parent[node]];
            node = parent[node];
        }
        node
    }
    for (to, sources) in reads.iter().enumerate() {
        for &from in sources {
            let (a, b) = (root(&mut parent, from), root(&mut parent, to));
            // The lower one is the root, so that parts come in the order of their first nodes.
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for node in 0..reads.len() {
        members.entry(root(&mut parent, node)).or_default().push(node);
    }
    members.into_values().collect()
}

fn lay_out_part(reads: &[Vec<usize>]) -> Layout {
    let rank = ranks(reads);
    let ranks = rank.iter().max().map_or(0, |last| last + 1);
    let mut items: Vec<Item> = reads.iter().map(|_| Item { up: Vec::new(), down: Vec::new(), room: NODE, x: 0.0 }).collect();
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for (node, &rank) in rank.iter().enumerate() {
        rows[rank].push(node);
    }
    let (mut passing, mut long) = (Vec::new(), Vec::new());
    for (to, sources) in reads.iter().enumerate() {
        for &from in sources {
            if rank[to] - rank[from] > LONG {
                long.push((from, to));
                continue;
            }
            let (mut last, mut via) = (from, Vec::new());
            for row in &mut rows[rank[from] + 1..rank[to]] {
                let item = items.len();
                items.push(Item { up: vec![last], down: Vec::new(), room: PASSING, x: 0.0 });
                items[last].down.push(item);
                row.push(item);
                via.push(item);
                last = item;
            }
            items[last].down.push(to);
            items[to].up.push(last);
            passing.push((from, to, via));
        }
    }
    order(&mut rows, &items);
    place(&rows, &mut items);
    upright(&rows, &mut items);
    let least = items.iter().map(|item| item.x - item.room / 2.0).fold(f64::INFINITY, f64::min);
    let most = items.iter().map(|item| item.x + item.room / 2.0).fold(f64::NEG_INFINITY, f64::max);
    let x = |item: usize| items[item].x - least;
    let edges = passing.into_iter().map(|(from, to, via)| Edge { from, to, via: via.into_iter().map(x).collect() }).collect();
    Layout { x: (0..reads.len()).map(x).collect(), edges, long, ranks, width: most - least, rank }
}

/// As early as what a node reads allows; what reads nothing, as late as its readers allow.
fn ranks(reads: &[Vec<usize>]) -> Vec<usize> {
    let mut rank: Vec<usize> = Vec::with_capacity(reads.len());
    for sources in reads {
        rank.push(sources.iter().map(|&source| rank[source] + 1).max().unwrap_or(0));
    }
    // A chain from nothing, such as a mask, moves down as a whole: its own readers have moved before it.
    let mut free: Vec<bool> = Vec::with_capacity(reads.len());
    for sources in reads {
        free.push(sources.iter().all(|&source| free[source]) && sources.len() <= 1);
    }
    let mut latest: Vec<Option<usize>> = vec![None; reads.len()];
    for node in (0..reads.len()).rev() {
        if free[node]
            && let Some(reader) = latest[node]
        {
            rank[node] = reader - 1;
        }
        for &source in &reads[node] {
            latest[source] = Some(latest[source].map_or(rank[node], |reader| reader.min(rank[node])));
        }
    }
    rank
}

/// Orders each rank by the middle of the neighbours above, then below, and again.
fn order(rows: &mut [Vec<usize>], items: &[Item]) {
    let mut position = vec![0.0; items.len()];
    let number = |row: &[usize], position: &mut [f64]| {
        for (at, &item) in row.iter().enumerate() {
            position[item] = at as f64 - row.len() as f64 / 2.0;
        }
    };
    rows.iter().for_each(|row| number(row, &mut position));
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        for i in 0..rows.len() {
            let row = if down { i } else { rows.len() - 1 - i };
            let middle = |&item: &usize| {
                let near = if down { &items[item].up } else { &items[item].down };
                let sum: f64 = near.iter().map(|&other| position[other]).sum();
                if near.is_empty() { position[item] } else { sum / near.len() as f64 }
            };
            let mut keyed: Vec<(f64, usize)> = rows[row].iter().map(|item| (middle(item), *item)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            rows[row] = keyed.into_iter().map(|(_, item)| item).collect();
            number(&rows[row], &mut position);
        }
    }
}

/// Places each rank under its neighbours as far as the order and everyone's room allow.
fn place(rows: &[Vec<usize>], items: &mut [Item]) {
    for row in rows {
        let mut x = 0.0;
        for &item in row {
            x += items[item].room;
            items[item].x = x - items[item].room / 2.0;
        }
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        for i in 0..rows.len() {
            let row = &rows[if down { i } else { rows.len() - 1 - i }];
            let wish = |&item: &usize| {
                let Item { up, down: below, x, .. } = &items[item];
                let near = match (down, up.is_empty(), below.is_empty()) {
                    (_, true, true) => return *x,
                    (true, false, _) | (false, _, true) => up,
                    _ => below,
                };
                near.iter().map(|&other| items[other].x).sum::<f64>() / near.len() as f64
            };
            let wishes: Vec<f64> = row.iter().map(wish).collect();
            let rooms: Vec<f64> = row.iter().map(|&item| items[item].room).collect();
            for (&item, x) in row.iter().zip(apart(&wishes, &rooms)) {
                items[item].x = x;
            }
        }
    }
}

/// Takes out the slow drift to one side that a deep graph's trunk has, as each rank only knows its neighbours.
fn upright(rows: &[Vec<usize>], items: &mut [Item]) {
    let middle = |row: &Vec<usize>| row.iter().map(|&item| items[item].x).sum::<f64>() / row.len().max(1) as f64;
    let middles: Vec<f64> = rows.iter().map(middle).collect();
    let mut sums = vec![0.0];
    for middle in &middles {
        sums.push(sums[sums.len() - 1] + middle);
    }
    for (i, row) in rows.iter().enumerate() {
        let (from, to) = (i.saturating_sub(DRIFT), (i + DRIFT + 1).min(rows.len()));
        let drift = (sums[to] - sums[from]) / (to - from) as f64;
        row.iter().for_each(|&item| items[item].x -= drift);
    }
}

/// Places nearest to the wishes, by squares, in the given order and with everyone's room: pools of neighbours that push each other.
fn apart(wishes: &[f64], rooms: &[f64]) -> Vec<f64> {
    let mut offsets = Vec::with_capacity(wishes.len());
    let mut offset = 0.0;
    for (i, room) in rooms.iter().enumerate() {
        if i > 0 {
            offset += (rooms[i - 1] + room) / 2.0;
        }
        offsets.push(offset);
    }
    // Pools as (sum of wishes less offsets, members).
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (wish, offset) in wishes.iter().zip(&offsets) {
        let mut pool = (wish - offset, 1);
        while let Some(&(sum, count)) = pools.last()
            && sum / count as f64 >= pool.0 / pool.1 as f64
        {
            pool = (pool.0 + sum, pool.1 + count);
            pools.pop();
        }
        pools.push(pool);
    }
    let means = pools.iter().flat_map(|&(sum, count)| std::iter::repeat_n(sum / count as f64, count));
    means.zip(&offsets).map(|(mean, offset)| mean + offset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_go_down_and_nodes_do_not_overlap() {
        // Two diamonds, a source that is read late, and an edge over the whole height.
        let mut reads: Vec<Vec<usize>> = vec![vec![], vec![0], vec![0], vec![1, 2], vec![3], vec![3], vec![4, 5], vec![]];
        for i in 8..24 {
            reads.push(vec![if i == 8 { 6 } else { i - 1 }]);
        }
        reads.push(vec![23, 7, 0]);
        let layout = lay_out(&reads);
        for (node, sources) in reads.iter().enumerate() {
            assert!(sources.iter().all(|&source| layout.rank[source] < layout.rank[node]), "{node}");
        }
        assert_eq!(layout.rank[7], layout.rank[24] - 1, "what reads nothing stands by its reader");
        assert_eq!(layout.long, [(0, 24)]);
        assert_eq!(layout.ranks, 22);
        for a in 0..reads.len() {
            for b in 0..a {
                let apart = (layout.x[a] - layout.x[b]).abs();
                assert!(layout.rank[a] != layout.rank[b] || apart >= NODE - 1e-6, "{a} and {b} overlap");
            }
        }
        assert!((layout.x[1] + layout.x[2] - 2.0 * layout.x[0]).abs() < 1.0, "a diamond is even: {:?}", layout.x);
    }

    #[test]
    fn what_everybody_reads_is_named_and_parts_fill_the_page() {
        let reads: Vec<Vec<usize>> = (0..101).map(|i| if i == 0 { vec![] } else { vec![0] }).collect();
        let layout = lay_out(&reads);
        assert_eq!((layout.edges.len(), layout.long.len()), (0, 100));
        assert!(layout.width <= SHELF && layout.ranks > 10 && layout.ranks < 20, "{} by {}", layout.width, layout.ranks);
    }

    #[test]
    fn a_deep_trunk_is_upright() {
        // Each layer leans to one side: a node, and a branch of two beside it.
        let mut reads: Vec<Vec<usize>> = vec![vec![]];
        for layer in 0..300 {
            let top = 4 * layer;
            reads.extend([vec![top], vec![top], vec![top + 2], vec![top + 1, top + 3]]);
        }
        let layout = lay_out(&reads);
        assert!(layout.width < 4.0 * NODE, "{}", layout.width);
    }

    #[test]
    fn an_empty_graph_has_no_extent() {
        let layout = lay_out(&[]);
        assert_eq!((layout.ranks, layout.width), (0, 0.0));
    }

    #[test]
    fn pools_keep_order_and_room() {
        assert_eq!(apart(&[0.0, 0.0, 100.0], &[10.0, 10.0, 10.0]), [-5.0, 5.0, 100.0]);
    }
}
