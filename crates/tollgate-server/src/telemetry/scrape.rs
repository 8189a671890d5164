//! The content of `/metrics`: every metric of [`names`], in order, with its numbers.

use tollgate::Timestamp;
use tollgate::time::WallOffset;

use super::exposition::Page;
use super::names::{self, Metric, OUTCOMES, SOURCES, VERDICTS, label};
use super::{Meter, Sample};
use super::{gateway, overload};
use crate::protocol::Protocol;

impl Meter {
    /// All numbers, as `/metrics` shows them. This may take some milliseconds, so a thread that answers requests must
    /// not call it.
    pub(crate) fn exposition(&self, now: Timestamp, wall: WallOffset) -> String {
        let samples = self.samples(now);
        let shared = self.shared.get().map(|numbers| numbers());
        let upstreams = self.gateway.get().map(|numbers| gateway::folded(numbers())).unwrap_or_default();
        let controllers = self.overload.get().map(|shedder| overload::ShownController::new(shedder, wall));
        let mut page = Page::default();
        for metric in names::ALL {
            page.metric(metric);
            self.counted(metric, &mut page);
            if let Some(numbers) = &shared {
                numbers.show(metric, &mut page);
            }
            gateway::show(&upstreams, metric, &mut page);
            if let Some(controllers) = &controllers {
                controllers.show(metric, &mut page);
            }
            for sample in samples.iter().filter(|sample| sample.metric == metric) {
                let labels: Vec<(&str, &str)> = sample.label.into_iter().collect();
                page.number(metric, &labels, sample.value);
            }
        }
        page.into_text()
    }

    /// Writes the numbers of a metric that the meter itself counts.
    fn counted(&self, metric: &Metric, page: &mut Page) {
        if *metric == names::DECISIONS {
            for (index, protocol, outcome) in verdict_cells() {
                let labels = [(label::OUTCOME, outcome), (label::WIRE, protocol.name())];
                page.number(metric, &labels, self.verdicts.sum(index));
            }
        } else if *metric == names::LIMIT_DECISIONS {
            for shown in self.ledger.shown() {
                let labels = [
                    (label::LIMIT, &*shown.limit.name),
                    (label::OUTCOME, OUTCOMES[shown.cell.outcome]),
                    (label::SOURCE, SOURCES[shown.cell.source].name()),
                    (label::WIRE, shown.cell.protocol.name()),
                ];
                page.number(metric, &labels, shown.count);
            }
        } else if *metric == names::NEAR_LIMIT {
            for limit in self.ledger.limits() {
                page.number(metric, &[(label::LIMIT, &limit.name)], limit.near());
            }
        } else if *metric == names::DURATION {
            for protocol in Protocol::ALL {
                let reading = self.durations[protocol as usize].read();
                if reading.count > 0 {
                    page.histogram(metric, &[(label::WIRE, protocol.name())], &reading);
                }
            }
        } else if *metric == names::WITHOUT_LIMIT || *metric == names::UNDECLARED {
            self.unlimited.show(metric, page);
        } else if *metric == names::RETRY_AFTER {
            page.histogram(metric, &[], &self.retries.read());
        } else {
            self.waiting.show(metric, page);
        }
    }

    /// Single numbers: those of the meter, and those of registered probes.
    fn samples(&self, now: Timestamp) -> Vec<Sample> {
        let version = Some((label::VERSION, env!("CARGO_PKG_VERSION")));
        let mut samples = vec![
            Sample { metric: &names::BUILD, label: version, value: 1 },
            Sample::new(&names::FOLDED, self.ledger.folded() as u64),
        ];
        samples.extend(Protocol::CONNECTED.map(|protocol| Sample {
            metric: &names::CONNECTIONS,
            label: Some((label::WIRE, protocol.name())),
            value: self.connections.open(protocol),
        }));
        for probe in self.probes().iter() {
            samples.extend(probe(now));
        }
        samples
    }
}

/// The indexes of the counters by verdict and protocol.
pub(super) fn verdict_cells() -> impl Iterator<Item = (usize, Protocol, &'static str)> {
    Protocol::ALL.into_iter().flat_map(|protocol| {
        VERDICTS
            .into_iter()
            .enumerate()
            .map(move |(index, verdict)| (super::verdict_cell(protocol, index), protocol, verdict))
    })
}
