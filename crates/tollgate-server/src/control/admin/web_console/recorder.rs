//! Measures each second what the console shows, from counters that exist anyway, and publishes one overview for all
//! viewers. Without a viewer it only measures.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tollgate::policy::{Change, Difference};
use tollgate::{Policy, Ticks, Timestamp};

use super::LatestEvent;
use super::events::event;
use super::near::NearKeys;
use super::others::OtherNodes;
use crate::control::ControlPlane;
use crate::fleet::Roster;
use crate::telemetry::StoreMetrics;
use crate::telemetry::history::History;
use crate::telemetry::names::SOURCES;

/// How often it measures.
const EVERY: Duration = Duration::from_secs(1);
/// How often keys near their limits, and other nodes, are looked at: on a shared store each look is a call.
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

/// Measures each second, while it is polled.
pub(crate) async fn record(control: Arc<ControlPlane>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let measuring = Arc::clone(&control);
        // On a thread of its own, because a policy with hundreds of limits has many counters; and so that a panic does
        // not end the loop.
        let measured = tokio::task::spawn_blocking(move || measuring.measure()).await;
        if control.web_console.latest.receiver_count() > 0 {
            // A node that does not answer delays no second: its last numbers, or the problem, are shown meanwhile.
            let asking = Arc::clone(&control);
            tokio::spawn(async move { asking.ask_others().await });
        }
        let publishing = Arc::clone(&control);
        let published = tokio::spawn(async move { publishing.publish().await }).await;
        if measured.is_err() || published.is_err() {
            tracing::error!(
                "the console was not updated because of a fault in Tollgate; the next attempt follows"
            );
        }
    }
}

impl ControlPlane {
    /// Adds a measurement.
    fn measure(&self) {
        let meter = &self.service.meter;
        let (verdicts, limits, now) = (meter.verdict_counts(), meter.limit_counts(), self.service.now());
        let mut sources = [0; SOURCES.len()];
        for counts in &limits {
            sources.iter_mut().zip(counts.sources).for_each(|(sum, count)| *sum += count);
        }
        let store = meter.store_metrics();
        let mut recorder = self.web_console.recorder();
        let recorder = recorder.get_or_insert_with(|| Recorder::new(self));
        recorder.history.measure(verdicts, &limits, now);
        recorder.follow_policy(self, now);
        kept(&mut recorder.sources, sources, READINGS_MAX);
        if let Some(store) = store {
            kept(&mut recorder.store, store, READINGS_MAX);
        }
    }

    /// Serialises the overview once, if there are viewers.
    async fn publish(&self) {
        if self.web_console.latest.receiver_count() == 0 {
            return;
        }
        let Some(overview) = self.overview().await else { return };
        let audit = self.audit_panel();
        self.web_console.latest.send_replace(LatestEvent {
            overview: event("overview", &overview),
            audit: event("audit", &audit),
        });
    }

    /// Looks at keys near their limits and at the nodes of the fleet, if the last look is some time ago.
    pub(super) async fn look_around(&self) {
        let before = {
            let mut recorder = self.web_console.recorder();
            let Some(recorder) = recorder.as_mut() else { return };
            let now = self.service.now();
            if now.since(recorder.near.at) < LOOK_EVERY {
                return;
            }
            // One look at a time: another viewer is shown the last one meanwhile.
            let before = recorder.near.clone();
            recorder.near.at = now;
            before
        };
        let (near, roster) = tokio::join!(self.near_keys(&before), self.fleet.roster());
        if let Some(recorder) = self.web_console.recorder().as_mut() {
            recorder.near = near;
            recorder.roster = Some(roster);
        }
    }
}
