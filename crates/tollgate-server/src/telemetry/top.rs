//! Which keys are asked about most, lately. The text of a key is kept nowhere but here, in a sketch of a fixed size, for two minutes.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::policy::Limit;
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{CheckRequest, Decision, LimitStatus, Stance, Timestamp};

use super::TopKey;
use super::cells::{STRIPES, stripe};
use super::foreign::{ATTRIBUTES_SHOWN, Key};
use super::names::SOURCES;
use super::sketch::{Answered, Sketch, SketchEntry};
use crate::random::scrambled;
use crate::text;

/// Decisions in a second, of the threads of one stripe, that are all looked at; of further ones, one in [`SAMPLE`].
const QUIET: u64 = 1_000;
const SAMPLE: u64 = 16;
/// How long one sketch is filled before it gives way to the next.
const WINDOW_SECONDS: u64 = 60;

/// How busy the threads of one stripe are.
#[repr(align(128))]
#[derive(Default)]
struct Pace {
    second: AtomicU64,
    seen: AtomicU64,
}

/// The sketch that is being filled, and the one before it.
#[derive(Default)]
struct Windows {
    since: u64,
    current: Sketch,
    previous: Sketch,
}

/// The keys asked about most in the last one to two minutes.
#[derive(Default)]
pub(super) struct Top {
    paces: [Pace; STRIPES],
    windows: Mutex<Windows>,
    /// Tells keys apart that the engine has no hash of.
    names: RandomState,
}

impl Top {
    /// Counts the keys of a decision, or leaves it out when there are many.
    #[inline]
    pub(super) fn record(&self, request: &CheckRequest<'_>, decision: &Decision, now: Timestamp) {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        let weight = self.weight(second);
        if weight > 0 {
            self.add(request, decision, weight, second);
        }
    }

    /// What this decision stands for: itself, several like it, or nothing.
    #[inline]
    fn weight(&self, second: u64) -> u64 {
        let pace = &self.paces[stripe()];
        // Relaxed: two threads at the turn of a second may count a few decisions for the wrong one, which changes an estimate.
        if pace.second.load(Ordering::Relaxed) != second {
            pace.second.store(second, Ordering::Relaxed);
            pace.seen.store(0, Ordering::Relaxed);
        }
        // Not one step: threads that share a stripe may count one decision for two, and the cheaper instruction is worth it.
        let seen = pace.seen.load(Ordering::Relaxed);
        pace.seen.store(seen.wrapping_add(1), Ordering::Relaxed);
        if seen < QUIET {
            return 1;
        }
        // Scrambled, so that keys which take turns are not missed in step.
        if scrambled(seen ^ (second << 32)).is_multiple_of(SAMPLE) { SAMPLE } else { 0 }
    }

    /// The same for a decision by somebody else's rules.
    pub(super) fn record_keys(&self, keys: &[Key<'_>], now: Timestamp) {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        let weight = self.weight(second);
        if weight == 0 {
            return;
        }
        let Some(mut windows) = self.windows_for(weight) else { return };
        windows.turn(second);
        for key in keys.iter().filter(|key| key.is_counted && !key.attributes.is_empty()) {
            let id = self.names.hash_one((key.limit, key.attributes));
            let answered = Answered { denied: key.is_denied, source: None };
            windows.current.add(id, weight, answered, |entry: &mut SketchEntry| describe_key(entry, key));
        }
    }

    #[cold]
    fn add(&self, request: &CheckRequest<'_>, decision: &Decision, weight: u64, second: u64) {
        let Some(mut windows) = self.windows_for(weight) else { return };
        windows.turn(second);
        for status in decision.limits().filter(|status| !status.limit.by().is_empty()) {
            // A limit in shadow has nobody denied, whatever it says.
            let denied = status.stance == Stance::Enforced && !status.outcome.is_allowed();
            let describe = |entry: &mut SketchEntry| describe(entry, &status, request);
            let answered = Answered { denied, source: Some(status.source) };
            windows.current.add(status.key_hash, weight, answered, describe);
        }
    }

    fn windows_for(&self, weight: u64) -> Option<MutexGuard<'_, Windows>> {
        match self.windows.try_lock() {
            Ok(windows) => Some(windows),
            // A sample that would have to wait is left out: others like it follow.
            Err(_) if weight > 1 => None,
            // Held for a few instructions, in which nothing panics.
            Err(_) => Some(self.windows.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The keys counted most, most first.
    pub(super) fn list(&self, most: usize) -> Vec<TopKey> {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: std::collections::HashMap<u64, TopKey> = std::collections::HashMap::new();
        for entry in windows.previous.entries().chain(windows.current.entries()) {
            let key = found.entry(entry.id()).or_insert_with(|| TopKey {
                limit: entry.limit.clone(),
                key: entry.key.clone(),
                decisions: 0,
                denied: 0,
                sources: [0; SOURCES.len()],
                is_estimated: false,
            });
            key.decisions += entry.certain();
            key.denied += entry.denied;
            key.is_estimated |= entry.is_estimated;
            key.sources.iter_mut().zip(entry.sources).for_each(|(sum, count)| *sum += count);
        }
        drop(windows);
        let mut found: Vec<TopKey> = found.into_values().collect();
        found.sort_by(|a, b| (b.decisions, &a.limit, &a.key).cmp(&(a.decisions, &b.limit, &b.key)));
        found.truncate(most);
        found
    }
}

impl Windows {
    /// Begins a new sketch when the current one is old, and forgets the one before.
    fn turn(&mut self, second: u64) {
        let age = second.saturating_sub(self.since);
        if age < WINDOW_SECONDS {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if age >= 2 * WINDOW_SECONDS {
            self.previous.clear();
        }
        self.since = second;
    }
}

/// Writes down which key it is, in the form in which the program takes attributes: name=value, with a space between.
fn describe(entry: &mut SketchEntry, status: &LimitStatus<'_>, request: &CheckRequest<'_>) {
    entry.limit.push_str(status.limit.name());
    push_key(&mut entry.key, status.limit, request);
}

fn describe_key(entry: &mut SketchEntry, key: &Key<'_>) {
    text::push(&mut entry.limit, key.limit);
    for (name, value) in key.attributes.iter().take(ATTRIBUTES_SHOWN) {
        if !entry.key.is_empty() {
            entry.key.push(' ');
        }
        text::push(&mut entry.key, name);
        entry.key.push('=');
        text::push(&mut entry.key, &text::unsecret(name, value));
    }
}

fn push_key(into: &mut String, limit: &Limit, request: &CheckRequest<'_>) {
    for by in limit.by() {
        if !into.is_empty() {
            into.push(' ');
        }
        text::push(into, by.name());
        into.push('=');
        if let Some(attribute) = request.attributes().iter().find(|attribute| attribute.name == by.name()) {
            text::push(into, &by.key_text(attribute.value));
        }
    }
}
