//! Metrics of the overload controllers. Their names, and the reasons of their changes, come from closed lists.

use tollgate::time::WallOffset;
use tollgate_overload::{ControllerReport, Priority};
use tollgate_tower::shed::Shedder;

use super::exposition::Page;
use super::names::{self, label};

/// Writes the numbers of the controllers. `wall` is the offset of the wall clock from the clock of their reports.
pub(super) fn show(shedder: &Shedder, wall: WallOffset, page: &mut Page) {
    for priority in Priority::ALL.into_iter().filter(|_| shedder.controllers().queue.is_some()) {
        let (count, time) = shedder.waited(priority);
        let labels = [(label::PRIORITY, priority.as_str())];
        page.number(&names::OVERLOAD_WAITED, &labels, count);
        page.seconds(&names::OVERLOAD_WAIT, &labels, time.as_micros().saturating_mul(1_000));
    }
    for report in shedder.reports() {
        let controller = (label::CONTROLLER, report.controller.as_str());
        for priority in Priority::ALL {
            let refused = shedder.refused(report.controller, priority);
            let labels = [controller, (label::PRIORITY, priority.as_str())];
            page.number(&names::OVERLOAD_REFUSED, &labels, refused);
        }
        show_state(&report, wall, page);
    }
}

fn show_state(report: &ControllerReport, wall: WallOffset, page: &mut Page) {
    let controller = (label::CONTROLLER, report.controller.as_str());
    page.number(&names::OVERLOAD_REASON, &[controller, (label::REASON, report.reason.as_str())], 1);
    page.number(&names::OVERLOAD_MODE, &[controller, (label::MODE, report.mode.name())], 1);
    for (metric, number) in [
        (&names::OVERLOAD_LIMIT, report.limit),
        (&names::OVERLOAD_IN_FLIGHT, report.in_flight.map(u64::from)),
        (&names::OVERLOAD_QUEUE, report.queue),
        (&names::OVERLOAD_UTILISATION, report.utilisation),
        (&names::OVERLOAD_LEVEL, report.level),
        (&names::OVERLOAD_WOULD_REFUSE, Some(report.would_refuse)),
        (&names::OVERLOAD_KILLED, Some(u64::from(report.killed_until.is_some()))),
        (&names::OVERLOAD_CHANGED, report.changed_at.map(|at| at.on_wall(wall).unix_micros() / 1_000_000)),
    ] {
        if let Some(number) = number {
            page.number(metric, &[controller], number);
        }
    }
}
