//! Latency against load as text: one row for each load, on a scale that doubles from mark to mark.

/// Latencies at one load, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Requests a second.
    pub load: u64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
}

/// Columns for each doubling of the latency.
const COLUMNS_PER_DOUBLING: u64 = 4;
/// The latency at the left edge, in microseconds.
const LEFT_EDGE: u64 = 8;

/// The rows of the plot; empty without points.
#[must_use]
pub fn rows(points: &[Point]) -> Vec<String> {
    if points.is_empty() {
        return Vec::new();
    }
    let width = points.iter().map(|point| column(point.p99)).max().unwrap_or(0) + 1;
    let mut rows = vec![String::new(), "latency against load (o median, x 99th percentile)".to_owned()];
    for point in points {
        let mut marks: Vec<char> = vec![' '; width];
        for mark in marks.iter_mut().take(column(point.p99)).skip(column(point.p50)) {
            *mark = '-';
        }
        marks[column(point.p99)] = 'x';
        marks[column(point.p50)] = 'o';
        rows.push(format!("{:>12}/s |{}", point.load, marks.iter().collect::<String>()));
    }
    let mut scale = String::new();
    let mut latency = LEFT_EDGE;
    while column(latency) < width + 4 {
        while scale.chars().count() < column(latency) {
            scale.push(' ');
        }
        scale.push_str(&named(latency));
        latency *= 4;
    }
    rows.push(format!("{:>14} +{scale}", ""));
    rows
}

/// The column of a latency: steps of a quarter of a doubling, in integer arithmetic.
fn column(micros: u64) -> usize {
    let micros = micros.max(LEFT_EDGE);
    let doublings = u64::from((micros / LEFT_EDGE).ilog2());
    let base = LEFT_EDGE << doublings;
    let part = (micros - base) * COLUMNS_PER_DOUBLING / base;
    usize::try_from(doublings * COLUMNS_PER_DOUBLING + part).unwrap_or(usize::MAX)
}

fn named(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{}ms", micros / 1_000),
        _ => format!("{}s", micros / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A longer latency is never further left, and the plot shows both marks of every load.
    #[test]
    fn columns_grow_with_latency() {
        assert!((0..100_000u64).is_sorted_by_key(column));
        let points = [Point { load: 10, p50: 20, p99: 90 }, Point { load: 20, p50: 30, p99: 4_000 }];
        let rows = rows(&points);
        assert!(rows[2].contains('o') && rows[2].contains('x') && rows[3].contains('x'), "{rows:?}");
    }
}
