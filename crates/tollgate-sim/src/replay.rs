//! A log through a policy: what the limits would have done to these requests. The real engine decides, in virtual time,
//! and memory is bounded by the number of keys.
//!
//! The modules are in the order of a record's path: a `stored` record waits among the `arrivals` until it is its turn, a
//! `run` decides about what `describe` makes of it, and the `sheet` counts the decision, with the `keys` of each limit,
//! the limit at other sizes (`scaled`), and what another policy decides (`comparison`). The `summary` makes the
//! `report`.

mod report;
mod key_map;
mod distribution;
mod describe;
mod stored;
mod arrivals;
mod run;
mod touched;
mod bounds;
mod window_bounds;
mod scaled;
mod keys;
mod sheet;
mod comparison;
mod summary;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use tollgate::policy::Limit;
use tollgate::{CheckRequest, Decision, Policy, Timestamp};

pub use describe::{Describe, Given, Undecidable};
pub use report::{
    Bar, Changed, Comparison, Denied, DeniedFor, FirstDenied, InputFile, InputReport, LimitReport, MemoryUse,
    Minute, Overlap, Peaks, Range, Report, SizeReport, StoreCost, Totals, TouchedKey, Week, percent,
};
pub use run::Clients;

use crate::log::{Precision, Record};
use arrivals::{Arrival, Arrivals, client_of};
use comparison::ComparisonSheet;
use report::written;
use run::{Decided, PolicyRun};
use sheet::{Sheet, Stamps, Variant, is_on};

/// After how many requests an attribute must have been seen.
const SEEN_AFTER: u64 = 10_000;
/// Most examples of records that are no requests.
const EXAMPLES_MAX: usize = 5;

/// The assumptions of a replay.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The reaction of clients to a denial.
    pub clients: Clients,
    /// Limits that are left out.
    pub without: Vec<String>,
    /// The meaning of a limit whose attribute no request has.
    pub unseen: Unseen,
    /// The coarsest stamps that the log is known to have.
    pub precision: Precision,
}

/// The treatment of a limit that counts by an attribute that no request of the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unseen {
    /// Nothing is reported.
    #[default]
    Refuse,
    /// It matches no request, as with a server whose requests lack the attribute.
    Accept,
}

/// A limit counts by an attribute that no request of the log has, or computes the cost of all of them from one. Its counters
/// would be wrong, so nothing is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingAttribute {
    /// The limit.
    pub limit: String,
    /// The attribute.
    pub attribute: String,
    /// Whether the limit counts by it; otherwise the cost needs it.
    pub is_key: bool,
    /// How many requests were looked at.
    pub requests: u64,
}

/// An attribute that no request had so far.
#[derive(Debug)]
struct AbsentAttribute {
    limit: String,
    name: String,
    is_key: bool,
}

impl AbsentAttribute {
    /// The attributes that a limit depends on.
    fn all_of(limit: &Limit) -> impl Iterator<Item = Self> {
        let is_key = |name: &str| limit.by().iter().any(|by| by.name() == name);
        let names: BTreeSet<&str> = limit.attributes().collect();
        names.into_iter().map(move |name| Self {
            limit: limit.name().to_owned(),
            name: name.to_owned(),
            is_key: is_key(name),
        })
    }
}

/// The policies before the first request.
struct Waiting {
    policy: Policy,
    against: Option<Policy>,
}

/// The policies at work.
struct Working {
    main: PolicyRun,
    together: Option<PolicyRun>,
    unrefused: PolicyRun,
    against: Option<(PolicyRun, ComparisonSheet)>,
    sheet: Sheet,
}

/// A replay. Records go in, in the order of the log, and a report comes out.
pub struct Replay<D> {
    options: Options,
    describe: D,
    arrivals: Arrivals,
    waiting: Option<Waiting>,
    working: Option<Working>,
    /// Attributes that limits depend on and that no request had so far.
    absent: Vec<AbsentAttribute>,
    /// The attributes that name a client, where the log names them.
    client_names: Vec<String>,
    batch: Vec<Arrival>,
    records: u64,
    whole_seconds: u64,
    undecidable: u64,
    examples: Vec<String>,
    newest: Timestamp,
    without_duration: u64,
    without_status: u64,
}

impl<D: Describe> Replay<D> {
    /// A replay of a log through a policy, and through another one beside it.
    pub fn new(policy: Policy, against: Option<Policy>, options: Options, describe: D) -> Self {
        let both = [Some(&policy), against.as_ref()].into_iter().flatten();
        let limits = both.flat_map(|policy| policy.limits()).filter(|limit| is_on(limit, &options.without));
        let absent = limits.flat_map(AbsentAttribute::all_of);
        let absent = absent.filter(|_| options.unseen == Unseen::Refuse).collect();
        let first = policy.limits().iter().find(|limit| !limit.by().is_empty());
        let client_names =
            first.into_iter().flat_map(|limit| limit.by().iter().map(|by| by.name().to_owned())).collect();
        Self {
            options,
            describe,
            arrivals: Arrivals::default(),
            waiting: Some(Waiting { policy, against }),
            working: None,
            absent,
            client_names,
            batch: Vec::new(),
            records: 0,
            whole_seconds: 0,
            undecidable: 0,
            examples: Vec::new(),
            newest: Timestamp::default(),
            without_duration: 0,
            without_status: 0,
        }
    }

    /// Adds the next record of the log.
    ///
    /// # Errors
    /// After many requests, an attribute that a limit counts by was in none of them.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), MissingAttribute> {
        let client = client_of(record, &self.client_names);
        self.records += 1;
        self.newest = self.newest.max(record.arrival);
        self.whole_seconds += u64::from(record.precision == Precision::Second);
        self.without_duration += u64::from(record.duration.is_none());
        self.without_status += u64::from(record.status.is_none());
        self.arrivals.push(record, client);
        let mut batch = std::mem::take(&mut self.batch);
        while self.arrivals.ready(&mut batch) {
            self.decide(&mut batch);
        }
        self.batch = batch;
        if self.records.is_multiple_of(SEEN_AFTER) { self.seen() } else { Ok(()) }
    }

    /// Records so far.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Ends the log. `input` is what the reader of the files knows.
    ///
    /// # Errors
    /// An attribute that a limit counts by was in no request.
    pub fn finish(mut self, input: InputReport) -> Result<Report, MissingAttribute> {
        let mut batch = std::mem::take(&mut self.batch);
        while self.arrivals.release(&mut batch) {
            self.decide(&mut batch);
        }
        if self.records > 0 {
            self.seen()?;
        }
        let end = self.newest;
        if let Some(working) = &mut self.working {
            working.finish(end, &self.describe);
            let is_unknown = working.sheet.stamps == Stamps::Exact && self.whole_seconds > 0;
            working.sheet.is_displaced = is_unknown || self.arrivals.late() > 0;
        }
        Ok(self.report(input))
    }

    fn seen(&self) -> Result<(), MissingAttribute> {
        // Records that wait for earlier ones were not described yet.
        let counts = self.working.as_ref().map(|working| (working.sheet.requests, working.sheet.faults));
        let (requests, faults) = counts.unwrap_or_default();
        // Where only some requests lack an attribute, a cost may do without it.
        let is_wrong = |absent: &&AbsentAttribute| requests > 0 && (absent.is_key || faults == requests);
        match self.absent.iter().find(is_wrong) {
            Some(AbsentAttribute { limit, name, is_key }) => Err(MissingAttribute {
                limit: limit.clone(),
                attribute: name.clone(),
                is_key: *is_key,
                requests,
            }),
            None => Ok(()),
        }
    }

    /// Starts the engines with the first requests: their stamps show what can be known.
    fn start(&mut self, start: Timestamp, batch: &[Arrival]) {
        let Some(Waiting { policy, against }) = self.waiting.take() else { return };
        let main = PolicyRun::new(policy, &self.options.without, self.options.clients, start);
        let policy = main.policy();
        let mut precisions = batch.iter().map(|arrival| arrival.record.precision());
        let is_whole =
            precisions.any(|one| one == Precision::Second) || self.options.precision == Precision::Second;
        let stamps = if is_whole { Stamps::WholeSeconds } else { Stamps::Exact };
        let against =
            against.map(|policy| (main.beside(Arc::new(policy), start), ComparisonSheet::default()));
        self.working = Some(Working {
            together: is_whole.then(|| main.beside(Arc::clone(&policy), start)),
            unrefused: main.beside(Arc::clone(&policy), start),
            against,
            sheet: Sheet::new(policy, stamps),
            main,
        });
    }

    /// Decides about the requests of one second.
    fn decide(&mut self, batch: &mut Vec<Arrival>) {
        if let Some(first) = batch.first() {
            self.start(first.together.min(first.evenly), batch);
        }
        let Some(working) = &mut self.working else { return };
        for arrival in batch.drain(..) {
            let record = arrival.record.record();
            let (absent, describe) = (&mut self.absent, &self.describe);
            let decided = describe.describe(&record, |request| {
                absent.retain(|one| !request.attributes().iter().any(|given| given.name == one.name));
                working.decide((&arrival, &record), request, describe);
            });
            if let Err(Undecidable(reason)) = decided {
                self.undecidable += 1;
                if self.examples.len() < EXAMPLES_MAX {
                    self.examples.push(format!("{}: {reason}", written(record.arrival)));
                }
            }
            drop(record);
            self.arrivals.recycle(arrival.record);
        }
    }

    fn report(self, input: InputReport) -> Report {
        let notes = self.notes();
        let input = InputReport {
            undecidable: self.undecidable,
            undecidable_examples: self.examples,
            reorder_window_ms: self.arrivals.window().ceil_millis(),
            late: self.arrivals.late(),
            whole_seconds: self.whole_seconds,
            ..input
        };
        let (clients, clients_meaning) = (self.options.clients.name(), self.options.clients.meaning());
        let Some(working) = self.working else {
            return Report { input, clients, clients_meaning, notes, ..Report::default() };
        };
        let memory = working.memory();
        let Working { main, against, sheet, .. } = working;
        let name_in = |policy: Arc<Policy>| {
            move |index: usize| {
                policy.limits().get(index).map(|limit| limit.name().to_owned()).unwrap_or_default()
            }
        };
        let is_estimated = sheet.stamps == Stamps::WholeSeconds || sheet.is_displaced;
        let against = against.map(|(run, comparison)| {
            let found = comparison.report(name_in(main.policy()), name_in(run.policy()));
            if is_estimated { found.into_estimate() } else { found }
        });
        Report {
            input,
            clients,
            clients_meaning,
            totals: sheet.totals(main.waiting() as u64),
            limits: sheet.limit_reports(),
            top: sheet.top(),
            overlaps: sheet.overlap_reports(),
            week: sheet.week(),
            store: sheet.store_cost(),
            against,
            memory,
            notes,
        }
    }

    /// Facts that the log lacks, with the assumptions made instead.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let Some(Working { main, sheet, against, .. }) = &self.working else { return notes };
        let policy = main.policy();
        let quotas = || policy.limits().iter().flat_map(|limit| limit.quotas());
        let has_permits = quotas().any(|quota| quota.rate().is_none());
        if has_permits && self.without_duration > 0 {
            notes.push(format!(
                "{} records have no duration, so their requests end at once, and limits of requests in flight seem \
                 larger than they are; log the duration",
                self.without_duration
            ));
        }
        let counts_failures = policy.limits().iter().any(|limit| limit.failures().is_some());
        if counts_failures && self.without_status > 0 {
            notes.push(format!(
                "{} records have no status, so limits that count failures count them as failures; log the status",
                self.without_status
            ));
        }
        for AbsentAttribute { limit, name, .. } in &self.absent {
            notes.push(format!(
                "no request has {name}, which limit {limit} depends on; log it, or map it in --config"
            ));
        }
        match sheet.stamps {
            Stamps::WholeSeconds => {
                notes.push(stamps_note(sheet));
                let parts = [
                    against.as_ref().map(|_| "the comparison of the policies"),
                    (sheet.refused > 0).then_some("the replay without refused requests"),
                ];
                let parts: Vec<&str> = parts.into_iter().flatten().collect();
                if !parts.is_empty() {
                    let parts = parts.join(" and ");
                    notes.push(format!("an estimate: {parts}, with requests spread evenly over each second"));
                }
            }
            Stamps::Exact if self.whole_seconds > 0 => notes.push(format!(
                "{} records have stamps of whole seconds and were spread evenly over them; the log begins with finer ones, so \
                 there is no range, and the denials are an estimate",
                self.whole_seconds
            )),
            Stamps::Exact => {}
        }
        if self.arrivals.late() > 0 {
            notes.push(format!(
                "{} records were more than {} s out of order, and were decided when they came, so the denials are an estimate; \
                 sort the log by time",
                self.arrivals.late(),
                self.arrivals.window().ceil_seconds()
            ));
        }
        if sheet.overflowed > 0 {
            notes.push(format!(
                "{} charges shared a counter with other keys: memory was full",
                sheet.overflowed
            ));
        }
        if main.lost() > 0 {
            notes.push(format!("{} denied requests did not come back, because too many waited", main.lost()));
        }
        notes
    }
}

/// The uncertainty of stamps in whole seconds.
fn stamps_note(sheet: &Sheet) -> String {
    let (range, estimates) = (sheet.denied_range(), sheet.estimates());
    let mut note = match (range.low == range.high, estimates.estimated.contains(&true)) {
        (true, true) => "stamps are whole seconds, and wherever in its second each request came the denials may differ"
            .to_owned(),
        (true, false) => "stamps are whole seconds, and the denials are the same wherever in its second each request came"
            .to_owned(),
        (false, _) => "stamps are whole seconds: ranges are from the fewest denials to the most, wherever in its second each \
                       request came; log milliseconds ($msec in nginx) for one number"
            .to_owned(),
    };
    let limits = sheet.policy.limits();
    let named = |is_named: &dyn Fn(usize) -> bool| {
        let names = limits.iter().enumerate().filter(|(index, _)| is_named(*index));
        names.map(|(_, limit)| limit.name()).collect::<Vec<&str>>().join(", ")
    };
    let unproven = named(&|index| estimates.unproven[index]);
    if !unproven.is_empty() {
        note.push_str(&format!(
            "; an estimate for {unproven}: only two readings, requests spread evenly over each second and all at its start"
        ));
    }
    let entangled = named(&|index| estimates.entangled[index]);
    if !entangled.is_empty() {
        note.push_str(&format!(
            "; an estimate for {entangled}: a request meets several limits, and the range of each takes the denials of the \
             others as they were"
        ));
    }
    if sheet.is_touched_estimated() {
        note.push_str("; an estimate for touched clients: some keys have several");
    }
    note
}

impl Working {
    /// Lets every policy decide about a request.
    fn decide<D: Describe>(
        &mut self,
        (arrival, record): (&Arrival, &Record<'_>),
        request: &CheckRequest<'_>,
        describe: &D,
    ) {
        let Self { main, together, unrefused, against, sheet } = self;
        let of = (&arrival.record, record, arrival.client);
        let mut old: Option<Decision> = None;
        let is_compared = against.is_some();
        let mut observe = |decided: &Decided<'_, '_>| {
            sheet.count(decided);
            if is_compared {
                old = Some(decided.decision.clone());
            }
        };
        main.arrive(of, request, arrival.evenly, (describe, &mut observe));
        if let Some(run) = together {
            let mut observe = |decided: &Decided<'_, '_>| sheet.count_beside(Variant::Together, decided);
            run.arrive(of, request, arrival.together, (describe, &mut observe));
        }
        if !record.refused {
            let mut observe = |decided: &Decided<'_, '_>| sheet.count_beside(Variant::Unrefused, decided);
            unrefused.arrive(of, request, arrival.evenly, (describe, &mut observe));
        }
        if let (Some((run, comparison)), Some(old)) = (against, old) {
            let mut observe = |decided: &Decided<'_, '_>| comparison.count(&old, decided);
            run.arrive(of, request, arrival.evenly, (describe, &mut observe));
        }
    }

    /// The memory of the statistics, and of the counters of every run.
    fn memory(&self) -> MemoryUse {
        let Self { main, together, unrefused, against, sheet } = self;
        let runs = [Some(main), together.as_ref(), Some(unrefused), against.as_ref().map(|(run, _)| run)];
        sheet.memory(runs.into_iter().flatten().map(|run| run.counter_bytes(sheet.last)).sum())
    }

    /// Decides about requests that came back after the end of the log.
    fn finish<D: Describe>(&mut self, end: Timestamp, describe: &D) {
        let Self { main, together, unrefused, sheet, .. } = self;
        main.finish(end, describe, &mut |decided: &Decided<'_, '_>| sheet.count(decided));
        if let Some(run) = together {
            run.finish(end, describe, &mut |decided: &Decided<'_, '_>| {
                sheet.count_beside(Variant::Together, decided);
            });
        }
        unrefused.finish(end, describe, &mut |decided: &Decided<'_, '_>| {
            sheet.count_beside(Variant::Unrefused, decided);
        });
    }
}
