//! The content of `/metrics`: every metric of [`names`], in order, with its numbers.

use tollgate::Timestamp;
use tollgate::time::WallOffset;

use super::exposition::Page;
use super::names::{self, OUTCOMES, SOURCES, VERDICTS, label};
use super::{Meter, Sample};
use super::{gateway, overload};
use crate::protocol::Protocol;

impl Meter {
    /// All numbers, as `/metrics` shows them. This may take some milliseconds, so a thread that answers requests must
    /// not call it.
    pub(crate) fn exposition(&self, now: Timestamp, wall: WallOffset) -> String {
        let mut page = Page::default();
        self.show(&mut page);
        if let Some(numbers) = self.shared.get() {
            numbers().show(&mut page);
        }
        if let Some(numbers) = self.gateway.get() {
            gateway::show(&gateway::folded(numbers()), &mut page);
        }
        if let Some(shedder) = self.overload.get() {
            overload::show(shedder, wall, &mut page);
        }
        for sample in self.samples(now) {
            let labels: Vec<(&str, &str)> = sample.label.into_iter().collect();
            page.number(sample.metric, &labels, sample.value);
        }
        page.into_text()
    }

    /// Writes the numbers that the meter itself counts.
    fn show(&self, page: &mut Page) {
        for (index, protocol, outcome) in verdict_cells() {
            let labels = [(label::OUTCOME, outcome), (label::WIRE, protocol.name())];
            page.number(&names::DECISIONS, &labels, self.verdicts.sum(index));
        }
        for shown in self.ledger.shown() {
            let labels = [
                (label::LIMIT, &*shown.limit.name),
                (label::OUTCOME, OUTCOMES[shown.cell.outcome]),
                (label::SOURCE, SOURCES[shown.cell.source].name()),
                (label::WIRE, shown.cell.protocol.name()),
            ];
            page.number(&names::LIMIT_DECISIONS, &labels, shown.count);
        }
        for limit in self.ledger.limits() {
            page.number(&names::NEAR_LIMIT, &[(label::LIMIT, &limit.name)], limit.near());
        }
        for protocol in Protocol::ALL {
            let reading = self.durations[protocol as usize].read();
            if reading.count > 0 {
                page.histogram(&names::DURATION, &[(label::WIRE, protocol.name())], &reading);
            }
        }
        page.histogram(&names::RETRY_AFTER, &[], &self.retries.read());
        self.unlimited.show(page);
        self.waiting.show(page);
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
