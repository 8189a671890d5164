//! The recently most frequent keys. The text of a key is stored only here, in a sketch of a fixed size, for two
//! minutes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::policy::Limit;
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{CheckRequest, Decision, Enforcement, LimitStatus, Timestamp};

use super::TopKey;
use super::compat::{ATTRIBUTES_SHOWN, Key};
use super::names::SOURCES;
use super::sketch::{Denial, KeyOutcome, KeyVerdict, Sketch, SketchEntry};
use super::striped::{STRIPES, stripe};
use crate::random::scrambled;
use crate::text;

/// Up to this many decisions per second, by the threads of one stripe, are all counted. Of the rest, one in [`SAMPLE`]
/// is.
const QUIET: u64 = 1_000;
const SAMPLE: u64 = 16;
/// How long one sketch is filled before the next one replaces it.
const WINDOW_SECONDS: u64 = 60;
/// The counts are those of at most the last so many seconds.
pub(crate) const TOP_WINDOW_SECONDS: u64 = 2 * WINDOW_SECONDS;

/// Separate attributes, and a name from its value, in the sketch. Text from a request has no such character: control
/// characters are escaped.
const BETWEEN: char = '\u{1f}';
const EQUALS: char = '\u{1e}';

/// The load of the threads of one stripe.
#[repr(align(128))]
#[derive(Default)]
struct StripeLoad {
    second: AtomicU64,
    seen: AtomicU64,
}

/// The sketch that is being filled, and the previous one.
#[derive(Default)]
struct Windows {
    since: u64,
    /// When the previous sketch was begun.
    previous_since: u64,
    current: Sketch,
    previous: Sketch,
}

/// The most frequent keys of the last one to two minutes.
#[derive(Default)]
pub(super) struct Top {
    loads: [StripeLoad; STRIPES],
    windows: Mutex<Windows>,
    /// Hashes keys for which the engine has no hash.
    names: RandomState,
}

impl Top {
    /// Counts the keys of a decision. Under load, some decisions are skipped.
    #[inline]
    pub(super) fn record(&self, request: &CheckRequest<'_>, decision: &Decision, now: Timestamp) {
        let second = now.unix_micros() / TICKS_PER_SECOND;
        let weight = self.weight(second);
        if weight > 0 {
            self.add(request, decision, weight, now);
        }
    }

    /// How many decisions this one represents: itself, several, or none.
    #[inline]
    fn weight(&self, second: u64) -> u64 {
        let load = &self.loads[stripe()];
        // Relaxed: at the turn of a second two threads may count a few decisions for the wrong second, which only
        // changes an estimate.
        if load.second.load(Ordering::Relaxed) != second {
            load.second.store(second, Ordering::Relaxed);
            load.seen.store(0, Ordering::Relaxed);
        }
        // Not atomic as a whole: threads that share a stripe may count two decisions as one, and the cheaper
        // instruction is worth it.
        let seen = load.seen.load(Ordering::Relaxed);
        load.seen.store(seen.wrapping_add(1), Ordering::Relaxed);
        if seen < QUIET {
            return 1;
        }
        // Scrambled, so that keys that alternate are not missed regularly.
        if scrambled(seen ^ (second << 32)).is_multiple_of(SAMPLE) { SAMPLE } else { 0 }
    }

    /// Counts the keys of a decision by another program's rules. Those that were denied have this denial.
    pub(super) fn record_keys(&self, keys: &[Key<'_>], denial: Denial) {
        let second = denial.at.unix_micros() / TICKS_PER_SECOND;
        let weight = self.weight(second);
        if weight == 0 {
            return;
        }
        let Some(mut windows) = self.windows_for(weight) else { return };
        windows.turn(second);
        for key in keys.iter().filter(|key| key.is_counted && !key.attributes.is_empty()) {
            let id = self.names.hash_one((key.limit, key.attributes));
            let verdict = if key.is_denied { KeyVerdict::Denied(denial) } else { KeyVerdict::Passed };
            let outcome = KeyOutcome { verdict, source: None };
            windows.current.add(id, weight, outcome, |entry: &mut SketchEntry| {
                entry.since = denial.at;
                describe_key(entry, key);
            });
        }
    }

    #[cold]
    fn add(&self, request: &CheckRequest<'_>, decision: &Decision, weight: u64, now: Timestamp) {
        let Some(mut windows) = self.windows_for(weight) else { return };
        windows.turn(now.unix_micros() / TICKS_PER_SECOND);
        for status in decision.limits().filter(|status| !status.limit.by().is_empty()) {
            let verdict = match status.enforcement {
                _ if status.outcome.is_allowed() => KeyVerdict::Passed,
                // It denies no request, whatever its outcome.
                Enforcement::Shadow => KeyVerdict::WouldDeny,
                Enforcement::Enforced => {
                    KeyVerdict::Denied(Denial { at: now, retry_after: status.outcome.verdict.retry_after() })
                }
            };
            let describe = |entry: &mut SketchEntry| {
                entry.since = now;
                describe(entry, &status, request);
            };
            let outcome = KeyOutcome { verdict, source: Some(status.source) };
            windows.current.add(status.key_hash, weight, outcome, describe);
        }
    }

    fn windows_for(&self, weight: u64) -> Option<MutexGuard<'_, Windows>> {
        match self.windows.try_lock() {
            Ok(windows) => Some(windows),
            // A sample that would have to wait is dropped: others like it follow.
            Err(_) if weight > 1 => None,
            // The lock is held for a few instructions, none of which panics.
            Err(_) => Some(self.windows.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The windows as they are now: counts become old without traffic, too.
    fn windows_at(&self, now: Timestamp) -> MutexGuard<'_, Windows> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.turn(now.unix_micros() / TICKS_PER_SECOND);
        windows
    }

    /// The start of the counts.
    pub(super) fn since(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_unix_seconds(self.windows_at(now).begin())
    }

    /// The latest denial of a request by a limit, and the number of denials of its key since [`Self::since`].
    pub(super) fn last_denial(
        &self,
        limit: &Limit,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Option<(Denial, u64)> {
        let key = key_of(limit, request);
        let windows = self.windows_at(now);
        let entries = windows.previous.entries().chain(windows.current.entries());
        let of_key = entries.filter(|entry| entry.limit == limit.name() && entry.key == key);
        let (mut last, mut denied) = (None, 0);
        for entry in of_key {
            denied += entry.denied;
            last = entry.last_denial.or(last);
        }
        last.map(|last| (last, denied))
    }

    /// The most frequent keys, in descending order.
    pub(super) fn list(&self, most: usize, now: Timestamp) -> Vec<TopKey> {
        let windows = self.windows_at(now);
        let mut found: HashMap<ListedKey<'_>, TopKey> = HashMap::new();
        for entry in windows.previous.entries().chain(windows.current.entries()) {
            let key = found.entry(ListedKey::of(entry)).or_insert_with(|| TopKey {
                limit: entry.limit.clone(),
                key: entry.key.clone(),
                attributes: Vec::new(),
                decisions: 0,
                denied: 0,
                would_deny: 0,
                last_denial: None,
                sources: [0; SOURCES.len()],
                is_estimated: false,
                // The previous window comes first.
                since: entry.since,
            });
            key.decisions += entry.certain();
            key.denied += entry.denied;
            key.would_deny += entry.would_deny;
            key.last_denial = entry.last_denial.or(key.last_denial);
            key.is_estimated |= entry.is_estimated;
            key.sources.iter_mut().zip(entry.sources).for_each(|(sum, count)| *sum += count);
        }
        let mut found: Vec<TopKey> = found.into_values().collect();
        drop(windows);
        found.sort_by(|a, b| (b.decisions, &a.limit, &a.key).cmp(&(a.decisions, &b.limit, &b.key)));
        found.truncate(most);
        for key in &mut found {
            key.attributes = attributes_of(&key.key).unwrap_or_default();
            key.key = shown_key(&key.key);
        }
        found
    }
}

/// A row of the list. A limit counts its keys elsewhere while it is in shadow, but they stay the same keys. Keys whose
/// text was shortened may be several.
#[derive(PartialEq, Eq, Hash)]
enum ListedKey<'e> {
    Named { limit: &'e str, key: &'e str },
    Shortened(u64),
}

impl<'e> ListedKey<'e> {
    fn of(entry: &'e SketchEntry) -> Self {
        match attributes_of(&entry.key) {
            Some(_) => Self::Named { limit: &entry.limit, key: &entry.key },
            None => Self::Shortened(entry.id()),
        }
    }
}

/// A key in the syntax in which the program accepts attributes: `name=value`, separated by spaces.
pub(super) fn shown_key(key: &str) -> String {
    key.replace(BETWEEN, " ").replace(EQUALS, "=")
}

impl Windows {
    /// The second in which the oldest counts were made.
    fn begin(&self) -> u64 {
        if self.previous.entries().next().is_some() { self.previous_since } else { self.since }
    }

    /// Starts a new sketch when a new window has begun, and drops the previous one. Windows begin at whole multiples of
    /// their length, so that no count is older than two of them.
    fn turn(&mut self, second: u64) {
        let passed = (second / WINDOW_SECONDS).saturating_sub(self.since / WINDOW_SECONDS);
        if passed == 0 {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if passed > 1 {
            self.previous.clear();
        }
        (self.previous_since, self.since) = (self.since, second);
    }
}

/// Decodes the attributes of a key. `None` if one of them was shortened.
fn attributes_of(key: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once(EQUALS)?;
        Some((unescaped(name)?, unescaped(value)?))
    };
    key.split(BETWEEN).map(pair).collect()
}

/// Reverses [`text::push`]. `None` if it shortened the text.
fn unescaped(shown: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = shown.chars();
    while let Some(character) = rest.next() {
        text.push(match character {
            '\\' => match rest.next()? {
                '\\' => '\\',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                _ => {
                    let code: String =
                        rest.by_ref().skip_while(|c| *c == '{').take_while(|c| *c != '}').collect();
                    char::from_u32(u32::from_str_radix(&code, 16).ok()?)?
                }
            },
            plain => plain,
        });
    }
    (text.chars().count() <= text::VALUE_CHARS_MAX).then_some(text)
}

/// Writes the names and values of the key, with separators that no value contains.
fn describe(entry: &mut SketchEntry, status: &LimitStatus<'_>, request: &CheckRequest<'_>) {
    entry.limit.push_str(status.limit.name());
    push_key(&mut entry.key, status.limit, request);
}

fn describe_key(entry: &mut SketchEntry, key: &Key<'_>) {
    text::push(&mut entry.limit, key.limit);
    for (name, value) in key.attributes.iter().take(ATTRIBUTES_SHOWN) {
        if !entry.key.is_empty() {
            entry.key.push(BETWEEN);
        }
        text::push(&mut entry.key, name);
        entry.key.push(EQUALS);
        text::push(&mut entry.key, &text::unsecret(name, value));
    }
}

/// The key of a request for a limit, as the sketch has it.
pub(super) fn key_of(limit: &Limit, request: &CheckRequest<'_>) -> String {
    let mut key = String::new();
    push_key(&mut key, limit, request);
    key
}

fn push_key(into: &mut String, limit: &Limit, request: &CheckRequest<'_>) {
    for by in limit.by() {
        if !into.is_empty() {
            into.push(BETWEEN);
        }
        text::push(into, by.name());
        into.push(EQUALS);
        if let Some(attribute) = request.attributes().iter().find(|attribute| attribute.name == by.name()) {
            text::push(into, &by.key_text(attribute.value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that looks like other attributes stays one value, and an escaped value is decoded to what was sent.
    #[test]
    fn attributes_are_decoded_as_they_were_sent() {
        for value in ["k1", "a tenant=b", r"a\n\u{1f}b", "line\nfeed\u{1b}[2J\u{1f}\u{1e}", ""] {
            let mut key = format!("api_key{EQUALS}");
            text::push(&mut key, value);
            assert_eq!(
                attributes_of(&key),
                Some(vec![("api_key".to_owned(), value.to_owned())]),
                "{value:?}"
            );
        }
        let mut long = format!("api_key{EQUALS}");
        text::push(&mut long, &"x".repeat(65));
        assert_eq!(attributes_of(&long), None);
    }
}
