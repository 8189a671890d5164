//! Prometheus's text format, version 0.0.4: how names, labels and numbers are written. [`super::scrape`] chooses what
//! is written.

use std::collections::HashMap;
use std::fmt::Write;

use super::histogram::HistogramReading;
use super::names::{self, Metric, MetricKind, label};

/// The content type of the format.
pub(crate) const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels of one number: names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page under construction: the lines of each metric, by its name.
#[derive(Default)]
pub(super) struct Page {
    lines: HashMap<&'static str, String>,
}

// Writing to a string cannot fail, so the results of `write!` are ignored.
impl Page {
    /// Writes one number.
    pub(super) fn number(&mut self, metric: &Metric, labels: Labels<'_>, number: u64) {
        self.line(metric, "", labels, None, number);
    }

    /// Writes one duration, given in nanoseconds, as seconds.
    pub(super) fn seconds(&mut self, metric: &Metric, labels: Labels<'_>, nanos: u64) {
        self.line(metric, "", labels, None, seconds(nanos));
    }

    /// Writes the numbers of a histogram of durations.
    pub(super) fn histogram(&mut self, metric: &Metric, labels: Labels<'_>, reading: &HistogramReading) {
        for (bound, count) in &reading.buckets {
            self.line(metric, "_bucket", labels, Some(&seconds(*bound)), count);
        }
        self.line(metric, "_bucket", labels, Some("+Inf"), reading.count);
        self.line(metric, "_sum", labels, None, seconds(reading.sum_nanos));
        self.line(metric, "_count", labels, None, reading.count);
    }

    fn line(
        &mut self,
        metric: &Metric,
        suffix: &str,
        labels: Labels<'_>,
        bound: Option<&str>,
        number: impl std::fmt::Display,
    ) {
        let text = self.lines.entry(metric.name).or_default();
        text.push_str(metric.name);
        text.push_str(suffix);
        let bound = bound.map(|bound| (label::BOUND, bound));
        for (index, (name, value)) in labels.iter().copied().chain(bound).enumerate() {
            text.push(if index == 0 { '{' } else { ',' });
            let _ = write!(text, "{name}=\"{}\"", escaped(value));
        }
        if !labels.is_empty() || bound.is_some() {
            text.push('}');
        }
        let _ = writeln!(text, " {number}");
    }

    /// The page: every metric, in the order in which they are declared.
    pub(super) fn into_text(self) -> String {
        let mut page = String::new();
        for metric in names::ALL {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let help = metric.help.replace('\\', r"\\").replace('\n', r"\n");
            let _ = writeln!(page, "# HELP {} {help}", metric.name);
            let _ = writeln!(page, "# TYPE {} {kind}", metric.name);
            page.push_str(self.lines.get(metric.name).map_or("", String::as_str));
        }
        page
    }
}

/// The value of a label, escaped for quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// Nanoseconds as an exact decimal number of seconds.
fn seconds(nanos: u64) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:09}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Histogram;
    use super::super::names::{CONNECTIONS, RETRY_AFTER};
    use super::*;

    /// The page matches the format exactly.
    #[test]
    fn the_page_is_as_the_format_says() {
        let histogram = Histogram::new(&[1_000, 2_500_000_000]);
        for nanos in [1, 2_000, 9_000_000_000] {
            histogram.observe(nanos);
        }
        let mut page = Page::default();
        page.number(&CONNECTIONS, &[("wire", "http")], 3);
        page.number(&CONNECTIONS, &[], 0);
        page.histogram(&RETRY_AFTER, &[("a", "b")], &histogram.read());
        let page = page.into_text();
        let of_both =
            |line: &&str| [CONNECTIONS.name, RETRY_AFTER.name].iter().any(|name| line.contains(name));
        let lines: Vec<&str> = page.lines().filter(of_both).collect();
        let expected = [
            "# HELP tollgate_retry_after_seconds The retry delay sent to denied callers.",
            "# TYPE tollgate_retry_after_seconds histogram",
            "tollgate_retry_after_seconds_bucket{a=\"b\",le=\"0.000001\"} 1",
            "tollgate_retry_after_seconds_bucket{a=\"b\",le=\"2.5\"} 2",
            "tollgate_retry_after_seconds_bucket{a=\"b\",le=\"+Inf\"} 3",
            "tollgate_retry_after_seconds_sum{a=\"b\"} 9.000002001",
            "tollgate_retry_after_seconds_count{a=\"b\"} 3",
            "# HELP tollgate_connections_open Connections that are open now, by protocol.",
            "# TYPE tollgate_connections_open gauge",
            "tollgate_connections_open{wire=\"http\"} 3",
            "tollgate_connections_open 0",
        ];
        assert_eq!(lines, expected);
    }

    /// No label value can end its quotes or its line.
    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}
