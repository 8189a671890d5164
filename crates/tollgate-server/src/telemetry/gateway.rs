//! Metrics of the gateway: the answers of its upstreams, and their failures. Names come from the config, and their
//! number is bounded.

use tollgate_gateway::{CLASSES, FAILURES, UpstreamSeries};

use super::exposition::Page;
use super::names::{self, OTHERS, label};

/// Maximum number of upstreams with their own series.
const UPSTREAMS_MAX: usize = 64;
/// The sum of both.
fn joined(mut one: UpstreamSeries, other: &UpstreamSeries) -> UpstreamSeries {
    let add = |mine: &mut [u64], theirs: &[u64]| {
        mine.iter_mut().zip(theirs).for_each(|(mine, their)| *mine += their)
    };
    add(&mut one.answers, &other.answers);
    add(&mut one.failures, &other.failures);
    one.retries += other.retries;
    one.tunnels += other.tunnels;
    one.up += other.up;
    one
}

/// The series to show. Those beyond the maximum are summed into one.
pub(super) fn folded(mut all: Vec<UpstreamSeries>) -> Vec<UpstreamSeries> {
    let others = all.split_off(all.len().min(UPSTREAMS_MAX));
    let start =
        UpstreamSeries { route: OTHERS.to_owned(), upstream: OTHERS.to_owned(), ..UpstreamSeries::default() };
    if !others.is_empty() {
        all.push(others.iter().fold(start, joined));
    }
    all
}

/// Writes the numbers of these series.
pub(super) fn show(all: &[UpstreamSeries], page: &mut Page) {
    for series in all {
        let place = [(label::ROUTE, series.route.as_str()), (label::UPSTREAM, series.upstream.as_str())];
        for (metric, classes, counts) in [
            (&names::GATEWAY_ANSWERS, &CLASSES[..], &series.answers[..]),
            (&names::GATEWAY_FAILURES, &FAILURES[..], &series.failures[..]),
        ] {
            for (class, count) in classes.iter().zip(counts) {
                page.number(metric, &[place[0], place[1], (label::CLASS, class)], *count);
            }
        }
        page.number(&names::GATEWAY_RETRIES, &place, series.retries);
        page.number(&names::GATEWAY_TUNNELS, &place, series.tunnels);
        page.number(&names::GATEWAY_UP, &place, series.up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With any number of upstreams the page has a bounded number of lines, and the sums are complete.
    #[test]
    fn many_upstreams_are_folded() {
        let one = |number| UpstreamSeries {
            route: "api".to_owned(),
            upstream: format!("http://h:{number}"),
            answers: [0, 2, 0, 0, 1],
            ..UpstreamSeries::default()
        };
        let all = folded((0..1_000).map(one).collect());
        let mut page = Page::default();
        show(&all, &mut page);
        let page = page.into_text();
        let numbers = page.lines().filter(|line| !line.starts_with('#')).count();
        assert!(numbers <= 65 * 14, "{numbers}");
        let others =
            "tollgate_gateway_answers_total{route=\"(others)\",upstream=\"(others)\",class=\"2xx\"} 1872\n";
        assert!(page.contains(others), "{page}");
    }
}
