//! Measures each second what the console shows, from counters that exist anyway, and publishes one overview for all
//! viewers. Without a viewer it only measures.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tollgate::policy::{Change, Difference};
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Policy, Ticks, Timestamp};

use super::LatestEvent;
use super::events::event;
use super::near;
use super::near::NearKeys;
use super::others;
use super::others::OtherNodes;
use super::overview;
use super::panels;
use crate::control::ControlPlane;
use crate::fleet::Roster;
use crate::telemetry::StoreMetrics;
use crate::telemetry::history::History;
use crate::telemetry::names::SOURCES;

/// How long after a second began the other nodes are asked: all nodes measure when it begins.
const ASK_AFTER: Duration = Duration::from_millis(100);
/// How long the overview waits for the other nodes. Of one that does not answer by then the last numbers are shown.
const ASK_WAIT: Duration = Duration::from_millis(400);
/// A second that has only so much left is not measured, so that none is measured twice.
const SHORTEST: u64 = TICKS_PER_SECOND / 4;
/// How often keys near their limits, and the list of nodes, are looked at: on a shared store each look is a call.
const LOOK_EVERY: Ticks = Ticks::from_secs(5);
/// How many readings of counters are kept: those of the last minute.
const READINGS_MAX: usize = 61;
/// Maximum number of changes of the policy that are remembered, and of sentences of each.
const CHANGES_MAX: usize = 20;
const SENTENCES_MAX: usize = 12;

/// A change of the active policy.
#[derive(Clone, Debug)]
pub(super) struct PolicyChange {
    pub(super) at: Timestamp,
    pub(super) version: String,
    /// The operator or the event that caused it.
    pub(super) by: String,
    pub(super) sentences: Vec<String>,
}

/// A measurement.
pub(super) struct Recorder {
    pub(super) history: History,
    /// Answers by source at each of the last seconds, newest last.
    sources: VecDeque<[u64; SOURCES.len()]>,
    /// The numbers of a shared store at each of the last seconds, newest last.
    store: VecDeque<StoreMetrics>,
    policy: Arc<Policy>,
    /// How many reloads had activated a policy at the last change.
    reloads: u64,
    /// The policy before the last change.
    pub(super) previous: Option<Arc<Policy>>,
    /// Newest last.
    pub(super) changes: VecDeque<PolicyChange>,
    pub(super) near: NearKeys,
    /// The nodes of the fleet at the last look.
    pub(super) roster: Option<Roster>,
    pub(super) others: OtherNodes,
    /// When another node last asked for the numbers of this one.
    pub(super) asked_at: Timestamp,
}

impl Recorder {
    fn new(control: &ControlPlane) -> Self {
        let service = &control.service;
        Self {
            history: History::new(&service.meter, service.now()),
            sources: VecDeque::with_capacity(READINGS_MAX),
            store: VecDeque::new(),
            policy: service.engine.policy(),
            reloads: control.reloader.status().good,
            previous: None,
            changes: VecDeque::new(),
            near: NearKeys::default(),
            roster: None,
            others: OtherNodes::default(),
            asked_at: Timestamp::default(),
        }
    }

    /// How many answers came from each source in the last `seconds`, in the order of [`SOURCES`].
    pub(super) fn sources(&self, seconds: usize) -> [u64; SOURCES.len()] {
        let (first, last) = ends(&self.sources, seconds);
        let mut counts = [0; SOURCES.len()];
        for (index, count) in counts.iter_mut().enumerate() {
            *count = last.map_or(0, |last| last[index]).saturating_sub(first.map_or(0, |first| first[index]));
        }
        counts
    }

    /// The numbers of the shared store about `seconds` ago, and now.
    pub(super) fn store(&self, seconds: usize) -> Option<(&StoreMetrics, &StoreMetrics)> {
        let (first, last) = ends(&self.store, seconds);
        first.zip(last)
    }

    fn follow_policy(&mut self, control: &ControlPlane, now: Timestamp) {
        let policy = control.service.engine.policy();
        let status = control.reloader.status();
        // A policy decides a moment before the status says so: it is noted in the next second.
        if Arc::ptr_eq(&policy, &self.policy) || status.good == self.reloads {
            return;
        }
        self.reloads = status.good;
        let version = status.version.map(|version| version.short()).unwrap_or_default();
        let sentences = sentences(&self.policy.difference(&policy));
        let by = status.loaded_by.clone();
        kept(&mut self.changes, PolicyChange { at: now, version, by, sentences }, CHANGES_MAX);
        self.previous = Some(std::mem::replace(&mut self.policy, policy));
    }
}

fn ends<T>(readings: &VecDeque<T>, seconds: usize) -> (Option<&T>, Option<&T>) {
    let first = readings.len().saturating_sub(seconds + 1);
    (readings.get(first), readings.back())
}

fn kept<T>(list: &mut VecDeque<T>, latest: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(latest);
}

/// A difference of two policies in words.
fn sentences(difference: &Difference) -> Vec<String> {
    let fields = difference.fields.iter().map(|change| format!("{}: {}", change.field, change.after));
    let limits = difference.changes.iter().map(|change| match change {
        Change::Added { sentence, .. } => format!("added {sentence}"),
        Change::Removed { name, .. } => format!("removed {name}"),
        Change::Changed { before, after, .. } => format!("changed {after} (before: {before})"),
    });
    let mut all: Vec<String> = fields.chain(limits).collect();
    let more = all.len().saturating_sub(SENTENCES_MAX);
    all.truncate(SENTENCES_MAX);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    if all.is_empty() {
        all.push("loaded again, with the same limits".to_owned());
    }
    all
}

/// Measures when each second begins, while it is polled.
pub(crate) async fn record(control: Arc<ControlPlane>) {
    loop {
        let measuring = Arc::clone(&control);
        // On a thread of its own, because a policy with hundreds of limits has many counters; and so that a panic does
        // not end the loop.
        let measured = tokio::task::spawn_blocking(move || measure(&measuring)).await;
        if is_watched(&control) {
            let looking = Arc::clone(&control);
            tokio::spawn(async move { look_around(&looking).await });
        }
        if control.web_console.latest.receiver_count() > 0 {
            let asking = Arc::clone(&control);
            let mut asked = tokio::spawn(async move {
                tokio::time::sleep(ASK_AFTER).await;
                others::ask_others(&asking).await;
            });
            // The overview has the answers of the same second. Those that come later are in the next one.
            let _ = tokio::time::timeout(ASK_WAIT, &mut asked).await;
        }
        let publishing = Arc::clone(&control);
        let published = tokio::spawn(async move { publish(&publishing) }).await;
        if measured.is_err() || published.is_err() {
            tracing::error!(
                "the console was not updated because of a fault in Tollgate; the next attempt follows"
            );
        }
        let wall = control.service.on_wall(control.service.now());
        tokio::time::sleep(until_next_second(wall)).await;
    }
}

/// How long it takes until a second begins that is worth a measurement.
fn until_next_second(now: Timestamp) -> Duration {
    let left = TICKS_PER_SECOND - now.unix_micros() % TICKS_PER_SECOND;
    Duration::from_micros(if left < SHORTEST { left + TICKS_PER_SECOND } else { left })
}

/// Adds a measurement.
fn measure(control: &ControlPlane) {
    let meter = &control.service.meter;
    let (verdicts, limits, now) = (meter.verdict_counts(), meter.limit_counts(), control.service.now());
    let mut sources = [0; SOURCES.len()];
    for counts in &limits {
        sources.iter_mut().zip(counts.sources).for_each(|(sum, count)| *sum += count);
    }
    let store = meter.store_metrics();
    let mut recorder = control.web_console.recorder();
    let recorder = recorder.get_or_insert_with(|| Recorder::new(control));
    recorder.history.measure(verdicts, &limits, now);
    recorder.follow_policy(control, now);
    kept(&mut recorder.sources, sources, READINGS_MAX);
    if let Some(store) = store {
        kept(&mut recorder.store, store, READINGS_MAX);
    }
}

/// Whether a viewer is here, or another node asks for the numbers.
fn is_watched(control: &ControlPlane) -> bool {
    let now = control.service.now();
    let is_asked = |recorder: &Recorder| now.since(recorder.asked_at) < LOOK_EVERY;
    control.web_console.latest.receiver_count() > 0
        || control.web_console.recorder().as_ref().is_some_and(is_asked)
}

/// Serialises the overview once, if there are viewers.
fn publish(control: &ControlPlane) {
    if control.web_console.latest.receiver_count() == 0 {
        return;
    }
    let Some(overview) = overview::overview(control) else { return };
    let audit = panels::audit_panel(control);
    control
        .web_console
        .latest
        .send_replace(LatestEvent { overview: event("overview", &overview), audit: event("audit", &audit) });
}

/// Looks at keys near their limits and at the nodes of the fleet, if the last look is some time ago.
pub(super) async fn look_around(control: &ControlPlane) {
    let before = {
        let mut recorder = control.web_console.recorder();
        let Some(recorder) = recorder.as_mut() else { return };
        let now = control.service.now();
        if now.since(recorder.near.at) < LOOK_EVERY {
            return;
        }
        // One look at a time: another viewer is shown the last one meanwhile.
        let before = recorder.near.clone();
        recorder.near.at = now;
        before
    };
    let (near, roster) = tokio::join!(near::near_keys(&control.service, &before), control.fleet.roster());
    if let Some(recorder) = control.web_console.recorder().as_mut() {
        recorder.near = near;
        recorder.roster = Some(roster);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes whose clocks are in step measure at the same instants, and none measures one second twice.
    #[test]
    fn measurements_begin_with_the_second() {
        for (micros, wait) in [(0, 1_000_000), (1, 999_999), (750_000, 250_000), (750_001, 1_249_999)] {
            let now = Timestamp::from_unix_micros(1_700_000_000_000_000 + micros);
            assert_eq!(until_next_second(now), Duration::from_micros(wait));
        }
    }
}
