//! Every promise with its measurement.

use std::fmt;
use std::time::Duration;

use super::assessment::{Assessment, FaultSpans};
use crate::fleet::Terms;

/// A debug build on a busy machine may take this many times as long. The release build checks the promised times, as
/// `./test --long` runs it.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 3 } else { 1 };

/// The promises under a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// Its number in the table of promises.
    pub(crate) number: &'static str,
    /// Whether the store makes every decision all the time.
    pub(crate) stays_exact: bool,
    /// Milliseconds after recovery until the store makes the first, nearly all, and all decisions.
    pub(crate) back: Option<[u64; 3]>,
    /// Whether a clock steps, which may cost each key up to its burst.
    pub(crate) steps: bool,
    /// Whether the store drops keys silently, so that its admissions have no promise.
    pub(crate) forgets: bool,
}

impl Promise {
    pub(crate) const fn numbered(self, number: &'static str) -> Self {
        Self { number, ..self }
    }
}

/// The store is down, or seems to be.
pub(crate) const AWAY: Promise = Promise {
    number: "F1",
    stays_exact: false,
    back: Some([2_000, 2_000, 5_000]),
    steps: false,
    forgets: false,
};
/// The same with the default deadline, which a busy machine misses without any fault: only when and what is decided is
/// promised.
pub(crate) const DEFAULT_DEADLINE_AWAY: Promise = Promise { back: None, ..AWAY };
/// Nothing that a client could notice.
pub(crate) const UNNOTICED: Promise = Promise { stays_exact: true, back: None, ..AWAY };

/// A specific promise: what was measured, and its maximum.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) what: &'static str,
    pub(crate) unit: Unit,
    pub(crate) value: u64,
    pub(crate) most: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Millis,
    Micros,
    Times,
}

impl Measure {
    pub(crate) const fn millis(what: &'static str, value: u64, most: u64) -> Self {
        Self { what, unit: Unit::Millis, value, most }
    }

    fn is_kept(&self) -> bool {
        self.value <= if self.unit == Unit::Times { self.most } else { self.most * SLOWNESS }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Millis => " ms",
            Unit::Micros => " µs",
            Unit::Times => "",
        };
        write!(formatter, "{}: {}{unit} (≤ {}{unit})", self.what, self.value, self.most)
    }
}

/// One fault, its promise and its measurement.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) promise: Promise,
    pub(crate) spans: FaultSpans,
    pub(crate) assessment: Assessment,
    pub(crate) immortal: Vec<String>,
    /// Twice the deadline.
    pub(crate) late: Duration,
    pub(crate) terms: Terms,
}

impl Row {
    /// The broken promises.
    pub(crate) fn broken(&self) -> Vec<String> {
        let (assessment, mut broken) = (&self.assessment, Vec::new());
        let mut check = |kept: bool, what: String| {
            if !kept {
                broken.push(format!("{} {}: {what}", self.promise.number, self.name));
            }
        };
        for (what, count) in &self.spans.evidence {
            check(*count > 0, format!("it did not happen: {what} is 0"));
        }
        check(!self.spans.evidence.is_empty(), "nothing shows that it spans".to_owned());
        if !self.promise.forgets {
            check(
                assessment.broken_exact <= 0,
                format!("the store admitted {} too many", assessment.broken_exact),
            );
            check(
                assessment.broken_counted <= 0,
                format!("{} too many were admitted", assessment.broken_counted),
            );
        }
        check(
            assessment.unexplained == 0,
            format!("{} denials that nothing explains", assessment.unexplained),
        );
        let quiet = assessment.quiet_denied == 0 || self.promise.steps;
        check(quiet, format!("{} quiet requests denied", assessment.quiet_denied));
        check(assessment.late == 0, format!("{} decisions after {:?}", assessment.late, self.late));
        check(self.immortal.is_empty(), format!("keys without an end: {:?}", self.immortal));
        for measure in &self.spans.measures {
            check(measure.is_kept(), measure.to_string());
        }
        if self.promise.stays_exact {
            check(
                assessment.without == 0,
                format!("{} decisions did not come from the store", assessment.without),
            );
        }
        for (what, measured, most) in self.back() {
            let kept = measured.is_some_and(|after| after <= most * SLOWNESS);
            check(kept, format!("{what} from the store again after {measured:?} ms"));
        }
        broken
    }

    /// How soon the store recovered, and the promise.
    fn back(&self) -> impl Iterator<Item = (&'static str, Option<u64>, u64)> {
        let measured = [self.assessment.first, self.assessment.nearly, self.assessment.all];
        let promised = self.promise.back.into_iter().flatten();
        let each = ["first", "95 %", "all"].into_iter().zip(measured).zip(promised);
        each.map(|((what, measured), most)| (what, measured, most))
    }

    /// Its line of the table.
    fn line(&self) -> String {
        let (assessment, spans, promise) = (&self.assessment, &self.spans, &self.promise);
        let evidence: Vec<String> =
            spans.evidence.iter().map(|(what, count)| format!("{count} × {what}")).collect();
        let modes: Vec<String> =
            assessment.modes.iter().map(|(mode, count)| format!("{count} {}", mode.name())).collect();
        let excused = match assessment.excused {
            0 => String::new(),
            some => format!("; of them {some} while the machine stood still"),
        };
        let [hot, quiet] = assessment.vanished;
        let [most_hot, most_quiet] = [self.terms.hot.burst, self.terms.quiet.burst];
        let wrong = match (promise.steps, self.terms.ahead) {
            (true, 0) => format!(
                "{hot} units vanished (≤ {most_hot}), {quiet} of a quiet key (≤ {most_quiet}), {} other (0)",
                assessment.unexplained
            ),
            // Denials of leased keys are not checked.
            (true, _) => format!(
                "{quiet} units of a quiet key vanished (≤ {most_quiet}), {} other (0)",
                assessment.unexplained
            ),
            (false, _) => format!("{} (0)", assessment.unexplained + assessment.quiet_denied),
        };
        let slow = format!(
            "{} after {} ms (0); slowest {:.1} ms, p99.99 {:.1} ms",
            assessment.late,
            self.late.as_millis(),
            millis(assessment.slowest),
            millis(assessment.p9999)
        );
        let mut back: Vec<String> = self
            .back()
            .map(|(what, measured, most)| {
                let after = measured.map_or("never".to_owned(), |after| format!("after {after} ms"));
                format!("{what} {after} (≤ {most} ms)")
            })
            .collect();
        if promise.stays_exact {
            back.push(format!("{} missed it (0)", assessment.without));
        }
        back.extend(spans.measures.iter().map(Measure::to_string));
        let cells = [
            promise.number.to_owned(),
            self.name.to_owned(),
            evidence.join(", "),
            format!("{}: {}{excused}", assessment.decisions, modes.join(", ")),
            format!("{} ({})", assessment.over.max(0), self.allowed()),
            wrong,
            slow,
            back.join("; "),
            format!("{} (0)", self.immortal.len()),
        ];
        format!("| {} |\n", cells.join(" | "))
    }

    fn allowed(&self) -> String {
        let (lost, away) = (self.spans.losses.len() as u64, self.spans.outages.len() as u64);
        let share = if self.spans.alone.is_some() { " and its share" } else { "" };
        let (burst, nodes) = (self.terms.hot.burst, self.assessment.nodes);
        let units = lost * burst + away * burst.max(nodes) + self.terms.ahead * nodes;
        match (self.promise.forgets, units) {
            (true, _) => "no bound".to_owned(),
            (false, 0) => "0".to_owned(),
            (false, units) => format!("≤ {units}{share}"),
        }
    }
}

/// The table: a line for each fault, with the promise in brackets.
pub(crate) fn table(rows: &[Row]) -> String {
    let heads = [
        "#",
        "fault",
        "it spans",
        "decisions",
        "units above the quota, worst key",
        "wrong denials",
        "late decisions",
        "from the store again",
        "keys without a TTL",
    ];
    let rule = vec!["---"; heads.len()].join(" | ");
    let lines: String = rows.iter().map(Row::line).collect();
    format!("| {} |\n| {rule} |\n{lines}", heads.join(" | "))
}

#[allow(clippy::float_arithmetic, clippy::cast_precision_loss, reason = "to be read by people")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}
