//! Every promise beside what was measured.

use std::fmt::Write;
use std::time::Duration;

use super::judge::{Happened, Judged};
use crate::fleet::HOT;

/// What is promised under a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// Whether every decision comes from the store all the time.
    pub(crate) stays_exact: bool,
    /// Milliseconds after health until nearly all, and all, decisions are the store's.
    pub(crate) nearly: u64,
    pub(crate) all: u64,
    /// Whether a clock steps, which may cost each key up to its burst.
    pub(crate) steps: bool,
}

/// Store down, and whatever looks like it.
pub(crate) const AWAY: Promise = Promise { stays_exact: false, nearly: 2_000, all: 5_000, steps: false };
/// The same with the default deadline, which a busy machine makes pass without any fault: only when and what is decided is promised.
pub(crate) const HASTY: Promise =
    Promise { stays_exact: false, nearly: u64::MAX, all: u64::MAX, steps: false };
/// Nothing that a client could notice.
pub(crate) const UNNOTICED: Promise = Promise { stays_exact: true, nearly: 0, all: 0, steps: false };

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
}

impl Row {
    /// The promises that were not kept.
    pub(crate) fn broken(&self) -> Vec<String> {
        let (judged, mut broken) = (&self.judged, Vec::new());
        let mut check = |kept: bool, what: String| {
            if !kept {
                broken.push(format!("{}: {what}", self.name));
            }
        };
        for (what, count) in &self.happened.evidence {
            check(*count > 0, format!("it did not happen: {what} is 0"));
        }
        check(!self.happened.evidence.is_empty(), "nothing shows that it happened".to_owned());
        check(judged.broken_exact <= 0, format!("the store admitted {} too many", judged.broken_exact));
        check(judged.broken_counted <= 0, format!("{} too many were admitted", judged.broken_counted));
        check(judged.unexplained == 0, format!("{} denials that nothing explains", judged.unexplained));
        check(
            judged.quiet_denied == 0 || self.promise.steps,
            format!("{} quiet requests denied", judged.quiet_denied),
        );
        // Nodes that wait as long as it takes have no deadline to miss.
        let in_time = judged.late == 0 || self.promise.stays_exact;
        check(in_time, format!("{} decisions after {:?}", judged.late, self.late));
        check(self.immortal.is_empty(), format!("keys without an end: {:?}", self.immortal));
        if self.promise.stays_exact {
            check(judged.without == 0, format!("{} decisions did not come from the store", judged.without));
        } else if self.promise.all < u64::MAX {
            let nearly = judged.recovered_nearly.is_some_and(|after| after <= self.promise.nearly);
            check(nearly, format!("nearly recovered after {:?} ms", judged.recovered_nearly));
            let all = judged.recovered.is_some_and(|after| after <= self.promise.all);
            check(all, format!("recovered after {:?} ms", judged.recovered));
        }
        broken
    }

    fn allowed(&self) -> u64 {
        (self.happened.losses.len() + self.happened.outages.len()) as u64 * HOT.burst
    }
}

/// The table: a line for each fault and each of its promises.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from("| fault | what | promised | measured |\n| --- | --- | --- | --- |\n");
    for row in rows {
        let judged = &row.judged;
        let mut line = |what: &str, promised: String, measured: String| {
            let _ = writeln!(text, "| {} | {what} | {promised} | {measured} |", row.name);
        };
        let evidence: Vec<String> =
            row.happened.evidence.iter().map(|(what, count)| format!("{count} × {what}")).collect();
        line("it happened", "yes".to_owned(), evidence.join(", "));
        let modes: Vec<String> =
            judged.modes.iter().map(|(mode, count)| format!("{count} {mode:?}")).collect();
        let promised = if row.promise.stays_exact { "all Exact" } else { "Exact, Local while away" };
        let excused = match judged.excused {
            0 => String::new(),
            some => format!("; {some} while the machine stood still"),
        };
        let counts = format!("{}: {}{excused}", judged.decisions, modes.join(", "));
        line("decisions", promised.to_owned(), counts);
        line(
            "units above the quota, worst key",
            format!("≤ {}{}", row.allowed(), if row.happened.alone.is_some() { " + its share" } else { "" }),
            judged.over.max(0).to_string(),
        );
        if row.promise.steps {
            line("units that vanished, worst key", "≤ the burst".to_owned(), judged.vanished.to_string());
        }
        line("other wrong denials", "0".to_owned(), judged.unexplained.to_string());
        let quiet = if row.promise.steps { "≤ the burst" } else { "0" };
        line("denials of quiet keys", quiet.to_owned(), judged.quiet_denied.to_string());
        let slow = format!(
            "{}; slowest {:.1} ms, p99.99 {:.1} ms",
            judged.late,
            millis(judged.slowest),
            millis(judged.p9999)
        );
        let promised = if row.promise.stays_exact { "their way takes longer" } else { "0" };
        line(&format!("decisions after {} ms", row.late.as_millis()), promised.to_owned(), slow);
        if !row.promise.stays_exact && row.promise.all < u64::MAX {
            let of = |time: Option<u64>| time.map_or("never".to_owned(), |time| format!("{time} ms"));
            let measured = format!("{} / {}", of(judged.recovered_nearly), of(judged.recovered));
            let promised = format!("≤ {} / {} ms", row.promise.nearly, row.promise.all);
            line("95 % / all from the store again", promised, measured);
        }
        line("keys without a TTL", "0".to_owned(), row.immortal.len().to_string());
    }
    text
}

#[allow(clippy::float_arithmetic, clippy::cast_precision_loss, reason = "to be read by people")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}
