//! Every promise beside what was measured.

use std::fmt;
use std::time::Duration;

use super::judge::{Happened, Judged};
use crate::fleet::Terms;

/// A build for debugging, on a machine that does other things too, may take so many times as long. The promised times themselves are
/// judged in the release build, as `./test --long` makes it.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 3 } else { 1 };

/// What is promised under a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// Its number in the table of promises.
    pub(crate) number: &'static str,
    /// Whether every decision comes from the store all the time.
    pub(crate) stays_exact: bool,
    /// Milliseconds after health until the first, nearly all, and all decisions are the store's.
    pub(crate) back: Option<[u64; 3]>,
    /// Whether a clock steps, which may cost each key up to its burst.
    pub(crate) steps: bool,
    /// Whether the store forgets without a word, so that nothing is promised about what it admits.
    pub(crate) forgets: bool,
}

impl Promise {
    pub(crate) const fn numbered(self, number: &'static str) -> Self {
        Self { number, ..self }
    }
}

/// Store down, and whatever looks like it.
pub(crate) const AWAY: Promise = Promise {
    number: "F1",
    stays_exact: false,
    back: Some([2_000, 2_000, 5_000]),
    steps: false,
    forgets: false,
};
/// The same with the default deadline, which a busy machine makes pass without any fault: only when and what is decided is promised.
pub(crate) const HASTY: Promise = Promise { back: None, ..AWAY };
/// Nothing that a client could notice.
pub(crate) const UNNOTICED: Promise = Promise { stays_exact: true, back: None, ..AWAY };

/// A promise of its own kind: what was measured, and the most that it may be.
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

/// One fault, its promise and its measure.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) promise: Promise,
    pub(crate) happened: Happened,
    pub(crate) judged: Judged,
    pub(crate) immortal: Vec<String>,
    /// Twice the deadline.
    pub(crate) late: Duration,
    pub(crate) terms: Terms,
}

impl Row {
    /// The promises that were not kept.
    pub(crate) fn broken(&self) -> Vec<String> {
        let (judged, mut broken) = (&self.judged, Vec::new());
        let mut check = |kept: bool, what: String| {
            if !kept {
                broken.push(format!("{} {}: {what}", self.promise.number, self.name));
            }
        };
        for (what, count) in &self.happened.evidence {
            check(*count > 0, format!("it did not happen: {what} is 0"));
        }
        check(!self.happened.evidence.is_empty(), "nothing shows that it happened".to_owned());
        if !self.promise.forgets {
            check(judged.broken_exact <= 0, format!("the store admitted {} too many", judged.broken_exact));
            check(judged.broken_counted <= 0, format!("{} too many were admitted", judged.broken_counted));
        }
        check(judged.unexplained == 0, format!("{} denials that nothing explains", judged.unexplained));
        let quiet = judged.quiet_denied == 0 || self.promise.steps;
        check(quiet, format!("{} quiet requests denied", judged.quiet_denied));
        check(judged.late == 0, format!("{} decisions after {:?}", judged.late, self.late));
        check(self.immortal.is_empty(), format!("keys without an end: {:?}", self.immortal));
        for measure in &self.happened.measures {
            check(measure.is_kept(), measure.to_string());
        }
        if self.promise.stays_exact {
            check(judged.without == 0, format!("{} decisions did not come from the store", judged.without));
        }
        for (what, measured, most) in self.back() {
            let kept = measured.is_some_and(|after| after <= most * SLOWNESS);
            check(kept, format!("{what} from the store again after {measured:?} ms"));
        }
        broken
    }

    /// How soon the store answered again, and was to.
    fn back(&self) -> impl Iterator<Item = (&'static str, Option<u64>, u64)> {
        let measured = [self.judged.first, self.judged.nearly, self.judged.all];
        let promised = self.promise.back.into_iter().flatten();
        let each = ["first", "95 %", "all"].into_iter().zip(measured).zip(promised);
        each.map(|((what, measured), most)| (what, measured, most))
    }

    /// Its line of the table.
    fn line(&self) -> String {
        let (judged, happened, promise) = (&self.judged, &self.happened, &self.promise);
        let evidence: Vec<String> =
            happened.evidence.iter().map(|(what, count)| format!("{count} × {what}")).collect();
        let modes: Vec<String> =
            judged.modes.iter().map(|(mode, count)| format!("{count} {}", mode.name())).collect();
        let excused = match judged.excused {
            0 => String::new(),
            some => format!("; of them {some} while the machine stood still"),
        };
        let [hot, quiet] = judged.vanished;
        let [most_hot, most_quiet] = [self.terms.hot.burst, self.terms.quiet.burst];
        let wrong = match (promise.steps, self.terms.ahead) {
            (true, 0) => format!(
                "{hot} units vanished (≤ {most_hot}), {quiet} of a quiet key (≤ {most_quiet}), {} other (0)",
                judged.unexplained
            ),
            // Denials of keys that are leased are not judged.
            (true, _) => format!(
                "{quiet} units of a quiet key vanished (≤ {most_quiet}), {} other (0)",
                judged.unexplained
            ),
            (false, _) => format!("{} (0)", judged.unexplained + judged.quiet_denied),
        };
        let slow = format!(
            "{} after {} ms (0); slowest {:.1} ms, p99.99 {:.1} ms",
            judged.late,
            self.late.as_millis(),
            millis(judged.slowest),
            millis(judged.p9999)
        );
        let mut back: Vec<String> = self
            .back()
            .map(|(what, measured, most)| {
                let after = measured.map_or("never".to_owned(), |after| format!("after {after} ms"));
                format!("{what} {after} (≤ {most} ms)")
            })
            .collect();
        if promise.stays_exact {
            back.push(format!("{} missed it (0)", judged.without));
        }
        back.extend(happened.measures.iter().map(Measure::to_string));
        let cells = [
            promise.number.to_owned(),
            self.name.to_owned(),
            evidence.join(", "),
            format!("{}: {}{excused}", judged.decisions, modes.join(", ")),
            format!("{} ({})", judged.over.max(0), self.allowed()),
            wrong,
            slow,
            back.join("; "),
            format!("{} (0)", self.immortal.len()),
        ];
        format!("| {} |\n", cells.join(" | "))
    }

    fn allowed(&self) -> String {
        let (lost, away) = (self.happened.losses.len() as u64, self.happened.outages.len() as u64);
        let share = if self.happened.alone.is_some() { " and its share" } else { "" };
        let (burst, nodes) = (self.terms.hot.burst, self.judged.nodes);
        let units = lost * burst + away * burst.max(nodes) + self.terms.ahead * nodes;
        match (self.promise.forgets, units) {
            (true, _) => "no bound".to_owned(),
            (false, 0) => "0".to_owned(),
            (false, units) => format!("≤ {units}{share}"),
        }
    }
}

/// The table: a line for each fault, what was promised in brackets.
pub(crate) fn table(rows: &[Row]) -> String {
    let heads = [
        "#",
        "fault",
        "it happened",
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
