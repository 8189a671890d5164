//! A directed graph with weighted edges: its cycles, and the edges whose removal would end them.

use std::collections::{BTreeMap, VecDeque};

/// Nodes are numbers below `nodes`; an edge has the number of references that make it.
pub(crate) struct Graph {
    pub nodes: usize,
    pub edges: BTreeMap<(usize, usize), usize>,
}

impl Graph {
    fn next(&self, node: usize) -> impl Iterator<Item = usize> {
        self.edges.range((node, 0)..(node + 1, 0)).map(|((_, to), _)| *to)
    }

    /// The strongly connected components of more than one node, each in order.
    pub(crate) fn components(&self) -> Vec<Vec<usize>> {
        let mut search = Search {
            graph: self,
            low: vec![None; self.nodes],
            stack: Vec::new(),
            seen: 0,
            found: Vec::new(),
        };
        for node in 0..self.nodes {
            search.visit(node);
        }
        search.found.sort();
        search.found
    }

    /// A shortest cycle through nodes of a component, from its smallest node.
    pub(crate) fn shortest_cycle(&self, component: &[usize]) -> Vec<usize> {
        let cycles = component.iter().filter_map(|&start| self.shortest_cycle_from(start));
        cycles.min_by_key(Vec::len).unwrap_or_default()
    }

    fn shortest_cycle_from(&self, start: usize) -> Option<Vec<usize>> {
        let mut previous = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for next in self.next(node) {
                if next == start {
                    let mut cycle = vec![node];
                    while let Some(&before) =
                        previous.get(cycle.last()?).filter(|_| cycle.last() != Some(&start))
                    {
                        cycle.push(before);
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if next != start && !previous.contains_key(&next) {
                    previous.insert(next, node);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// Few edges, by their references, without which the component has no cycle.
    ///
    /// The least such set is hard to find. This one orders the nodes so that most references point backwards, moves
    /// single nodes while that helps, and takes the best of several starts.
    pub(crate) fn cuts(&self, component: &[usize]) -> Vec<(usize, usize)> {
        let forward = |order: &[usize]| -> Vec<(usize, usize)> {
            let at = |node| order.iter().position(|it| *it == node);
            let between = self.edges.keys().filter(|(from, to)| at(*from).is_some() && at(*from) < at(*to));
            between.copied().collect()
        };
        let cost = |cuts: &[(usize, usize)]| cuts.iter().map(|edge| self.edges[edge]).sum::<usize>();
        let uses = |node: usize| -> usize {
            self.edges.range((node, 0)..(node + 1, 0)).map(|(_, count)| count).sum()
        };
        let mut by_uses = component.to_vec();
        by_uses.sort_by_key(|node| uses(*node));
        let middle = component.len() / 2;
        let rotated = [&component[middle..], &component[..middle]].concat();
        let starts = [component.to_vec(), component.iter().rev().copied().collect(), by_uses, rotated];
        let cuts = starts.into_iter().map(|start| forward(&self.improved(start)));
        cuts.min_by_key(|cuts| cost(cuts)).unwrap_or_default()
    }

    /// Moves single nodes to where fewer references point forwards, until no move helps.
    fn improved(&self, mut order: Vec<usize>) -> Vec<usize> {
        let weight = |from: usize, to: usize| self.edges.get(&(from, to)).copied().unwrap_or(0);
        let mut moved = true;
        while moved {
            moved = false;
            for node in order.clone() {
                let Some(now) = order.iter().position(|it| *it == node) else { continue };
                order.remove(now);
                // References that point forwards if the node stands first; then as it passes one after another.
                let mut cost: usize = order.iter().map(|other| weight(node, *other)).sum();
                let mut costs = vec![cost];
                for other in &order {
                    cost = cost + weight(*other, node) - weight(node, *other);
                    costs.push(cost);
                }
                let least = costs.iter().min().copied().unwrap_or(0);
                let best = costs.iter().position(|it| *it == least && costs[now] > least).unwrap_or(now);
                moved |= best != now;
                order.insert(best, node);
            }
        }
        order
    }
}

/// Tarjan's search.
struct Search<'a> {
    graph: &'a Graph,
    /// The earliest node that each visited one reaches; `usize::MAX` once it is in a component.
    low: Vec<Option<usize>>,
    stack: Vec<usize>,
    seen: usize,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) -> usize {
        if let Some(low) = self.low[node] {
            return low;
        }
        let own = self.seen;
        self.seen += 1;
        self.low[node] = Some(own);
        self.stack.push(node);
        let mut low = own;
        for next in self.graph.next(node) {
            low = low.min(self.visit(next));
        }
        self.low[node] = Some(low);
        if low == own {
            let from = self.stack.iter().rposition(|it| *it == node).unwrap_or(0);
            let mut component = self.stack.split_off(from);
            for member in &component {
                self.low[*member] = Some(usize::MAX);
            }
            component.sort_unstable();
            if component.len() > 1 {
                self.found.push(component);
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(nodes: usize, edges: &[(usize, usize, usize)]) -> Graph {
        Graph { nodes, edges: edges.iter().map(|(from, to, count)| ((*from, *to), *count)).collect() }
    }

    #[test]
    fn components_are_the_cycles() {
        let graph = graph(7, &[(0, 1, 1), (1, 2, 1), (2, 0, 1), (2, 3, 1), (4, 5, 1), (5, 4, 1), (6, 0, 1)]);
        assert_eq!(graph.components(), [vec![0, 1, 2], vec![4, 5]]);
    }

    #[test]
    fn a_graph_without_cycles_has_no_component() {
        assert!(graph(4, &[(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)]).components().is_empty());
    }

    #[test]
    fn the_shortest_cycle_is_found() {
        let graph = graph(4, &[(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 0, 1), (2, 1, 1)]);
        assert_eq!(graph.shortest_cycle(&[0, 1, 2, 3]), [1, 2]);
    }

    /// The cut is where the fewest references are, and ends every cycle.
    #[test]
    fn the_lightest_edges_are_cut() {
        let mut graph = graph(4, &[(0, 1, 9), (1, 0, 2), (1, 2, 9), (2, 3, 9), (3, 0, 1)]);
        let cuts = graph.cuts(&[0, 1, 2, 3]);
        assert_eq!(cuts, [(1, 0), (3, 0)]);
        graph.edges.retain(|edge, _| !cuts.contains(edge));
        assert!(graph.components().is_empty());
    }
}
