//! Metrics of the overload controllers. Their names, and the reasons of their changes, come from closed lists.

use tollgate::time::WallOffset;
use tollgate_overload::{ControllerReport, Priority};
use tollgate_tower::shed::Shedder;

use super::exposition::Page;
use super::names::{self, Metric, label};

/// The state to show.
pub(super) struct ShownController<'s> {
    shedder: &'s Shedder,
    reports: Vec<ControllerReport>,
    /// The offset of the wall clock from the clock of the reports.
    wall: WallOffset,
}

impl<'s> ShownController<'s> {
    pub(super) fn new(shedder: &'s Shedder, wall: WallOffset) -> Self {
        Self { shedder, reports: shedder.reports(), wall }
    }

    /// Writes the numbers of one metric, if it belongs here.
    pub(super) fn show(&self, metric: &Metric, page: &mut Page) {
        if self.shedder.controllers().queue.is_some() {
            for priority in Priority::ALL {
                let (count, time) = self.shedder.waited(priority);
                let labels = [(label::PRIORITY, priority.as_str())];
                if *metric == names::OVERLOAD_WAITED {
                    page.number(metric, &labels, count);
                } else if *metric == names::OVERLOAD_WAIT {
                    page.seconds(metric, &labels, time.as_micros().saturating_mul(1_000));
                }
            }
        }
        for report in &self.reports {
            if *metric == names::OVERLOAD_REFUSED {
                for priority in Priority::ALL {
                    let refused = self.shedder.refused(report.controller, priority);
                    let labels = [
                        (label::CONTROLLER, report.controller.as_str()),
                        (label::PRIORITY, priority.as_str()),
                    ];
                    page.number(metric, &labels, refused);
                }
            }
            show(report, self.wall, metric, page);
        }
    }
}

fn show(report: &ControllerReport, wall: WallOffset, metric: &Metric, page: &mut Page) {
    let controller = (label::CONTROLLER, report.controller.as_str());
    if *metric == names::OVERLOAD_REASON {
        page.number(metric, &[controller, (label::REASON, report.reason.as_str())], 1);
    } else if *metric == names::OVERLOAD_MODE {
        page.number(metric, &[controller, (label::MODE, report.mode.name())], 1);
    } else if let Some(number) = number(report, wall, metric) {
        page.number(metric, &[controller], number);
    }
}

fn number(report: &ControllerReport, wall: WallOffset, metric: &Metric) -> Option<u64> {
    let shown = [
        (&names::OVERLOAD_LIMIT, report.limit),
        (&names::OVERLOAD_IN_FLIGHT, report.in_flight.map(u64::from)),
        (&names::OVERLOAD_QUEUE, report.queue),
        (&names::OVERLOAD_UTILISATION, report.utilisation),
        (&names::OVERLOAD_LEVEL, report.level),
        (&names::OVERLOAD_WOULD_REFUSE, Some(report.would_refuse)),
        (&names::OVERLOAD_KILLED, Some(u64::from(report.killed_until.is_some()))),
        (&names::OVERLOAD_CHANGED, report.changed_at.map(|at| at.on_wall(wall).unix_micros() / 1_000_000)),
    ];
    shown.into_iter().find(|(shown, _)| *shown == metric).and_then(|(_, number)| number)
}
