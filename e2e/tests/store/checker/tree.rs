//! An array with prefix addition and prefix maximum, each in logarithmic time.

/// A segment tree. A node holds the maximum of its part without what its ancestors add.
#[derive(Debug)]
pub(super) struct Tree {
    length: usize,
    greatest: Vec<i128>,
    added: Vec<i128>,
}

/// Below any sum of a record.
const NOTHING: i128 = i128::MIN / 4;

impl Tree {
    pub(super) fn new(numbers: Vec<i128>) -> Self {
        let width = numbers.len().next_power_of_two();
        let mut greatest = vec![NOTHING; 2 * width];
        greatest[width..width + numbers.len()].copy_from_slice(&numbers);
        for node in (1..width).rev() {
            greatest[node] = greatest[2 * node].max(greatest[2 * node + 1]);
        }
        Self { length: numbers.len(), greatest, added: vec![0; 2 * width] }
    }

    fn width(&self) -> usize {
        self.added.len() / 2
    }

    /// Adds to the first `count` numbers.
    pub(super) fn add(&mut self, count: usize, number: i128) {
        let (mut node, mut first, mut span) = (1, 0, self.width());
        let mut path = Vec::new();
        while first + span > count && span > 1 {
            path.push(node);
            span /= 2;
            if first + span <= count {
                self.raise(2 * node, number);
                node = 2 * node + 1;
                first += span;
            } else {
                node *= 2;
            }
        }
        if first + span <= count {
            self.raise(node, number);
        }
        for node in path.into_iter().rev() {
            self.greatest[node] = self.greatest[2 * node].max(self.greatest[2 * node + 1]) + self.added[node];
        }
    }

    fn raise(&mut self, node: usize, number: i128) {
        self.greatest[node] += number;
        self.added[node] += number;
    }

    /// The maximum of the first `count` numbers, and its index.
    pub(super) fn max_of(&self, count: usize) -> Option<(i128, usize)> {
        if count == 0 {
            return None;
        }
        let (mut node, mut first, mut span, mut above) = (1, 0, self.width(), 0);
        let mut most = (NOTHING, node);
        while first + span > count {
            above += self.added[node];
            span /= 2;
            node *= 2;
            if first + span <= count {
                most = most.max((self.greatest[node] + above, node));
                if first + span == count {
                    return Some(self.found(most));
                }
                node += 1;
                first += span;
            }
        }
        Some(self.found(most.max((self.greatest[node] + above, node))))
    }

    /// The index of the maximum below a node.
    fn found(&self, (most, mut node): (i128, usize)) -> (i128, usize) {
        while node < self.width() {
            let (left, right) = (2 * node, 2 * node + 1);
            node = if self.greatest[left] >= self.greatest[right] { left } else { right };
        }
        (most, node - self.width())
    }

    /// A single number.
    pub(super) fn at(&self, place: usize) -> Option<i128> {
        if place >= self.length {
            return None;
        }
        let leaf = place + self.width();
        let ancestors = std::iter::successors(Some(leaf / 2), |node| Some(node / 2));
        let above: i128 = ancestors.take_while(|&node| node > 0).map(|node| self.added[node]).sum();
        Some(self.greatest[leaf] + above)
    }
}
