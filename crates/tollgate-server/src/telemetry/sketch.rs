//! Space-Saving: the most frequent keys in memory of a fixed size. A new key replaces the key with the lowest count,
//! and inherits that count as its possible error. A key with more than one in [`PLACES`] of all events is therefore
//! always present.

use std::collections::HashMap;

use tollgate::{Source, Ticks, Timestamp};

use super::names::{SOURCES, source_index};

/// Maximum number of remembered keys.
pub(super) const PLACES: usize = 1_024;

/// One remembered key.
#[derive(Clone, Debug, Default)]
pub(super) struct SketchEntry {
    id: u64,
    /// An upper bound of how often the key came.
    count: u64,
    /// How much of the count may belong to other keys.
    error: u64,
    pub(super) denied: u64,
    /// How often a limit in shadow would have denied it.
    pub(super) would_deny: u64,
    /// The latest denial.
    pub(super) last_denial: Option<Denial>,
    /// Its answers by source, in the order of [`SOURCES`].
    pub(super) sources: [u64; SOURCES.len()],
    /// Whether one decision was counted as several.
    pub(super) is_estimated: bool,
    /// The first of the counted decisions.
    pub(super) since: Timestamp,
    pub(super) limit: String,
    pub(super) key: String,
}

impl SketchEntry {
    /// A lower bound of how often the key came.
    pub(super) const fn certain(&self) -> u64 {
        self.count.saturating_sub(self.error)
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }
}

/// One denial of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) at: Timestamp,
    /// How long the caller had to wait. `None` if no wait would have helped.
    pub(crate) retry_after: Option<Ticks>,
}

/// The outcome of a limit for a request of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyVerdict {
    Passed,
    /// The limit is in shadow.
    WouldDeny,
    Denied(Denial),
}

/// The answer to a request for a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyOutcome {
    pub(super) verdict: KeyVerdict,
    /// The source of the answer, if it is known.
    pub(super) source: Option<Source>,
}

/// The keys, as a heap whose first entry has the lowest count.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    heap: Vec<SketchEntry>,
    places: HashMap<u64, usize>,
}

impl Sketch {
    /// Counts a key `weight` times with its answer. `describe` writes the name of a key that is new here.
    pub(super) fn add(
        &mut self,
        id: u64,
        weight: u64,
        outcome: KeyOutcome,
        describe: impl FnOnce(&mut SketchEntry),
    ) {
        let place = match self.places.get(&id) {
            Some(&place) => place,
            None => self.admit(id, describe),
        };
        let entry = &mut self.heap[place];
        entry.count += weight;
        entry.is_estimated |= weight > 1;
        match outcome.verdict {
            KeyVerdict::Passed => {}
            KeyVerdict::WouldDeny => entry.would_deny += weight,
            KeyVerdict::Denied(denial) => {
                entry.denied += weight;
                entry.last_denial = Some(denial);
            }
        }
        if let Some(source) = outcome.source {
            entry.sources[source_index(source)] += weight;
        }
        self.sink(place);
    }

    /// An index for a new key: a free one, or that of the key with the lowest count.
    fn admit(&mut self, id: u64, describe: impl FnOnce(&mut SketchEntry)) -> usize {
        let place = if self.heap.len() < PLACES {
            let last = self.heap.len();
            self.heap.push(SketchEntry { id, ..SketchEntry::default() });
            self.places.insert(id, last);
            self.rise(last)
        } else {
            self.places.remove(&self.heap[0].id);
            self.places.insert(id, 0);
            0
        };
        let entry = &mut self.heap[place];
        (entry.id, entry.error, entry.denied, entry.would_deny) = (id, entry.count, 0, 0);
        entry.last_denial = None;
        entry.sources = [0; SOURCES.len()];
        entry.is_estimated = false;
        entry.limit.clear();
        entry.key.clear();
        describe(entry);
        place
    }

    /// Moves an entry of count zero to the top.
    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
            self.swap(place, parent);
            place = parent;
        }
        place
    }

    /// Moves an entry down until no entry below it has a lower count.
    fn sink(&mut self, mut place: usize) {
        loop {
            let children =
                [2 * place + 1, 2 * place + 2].into_iter().filter(|&child| child < self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].count) else {
                return;
            };
            if self.heap[least].count >= self.heap[place].count {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for place in [one, other] {
            self.places.insert(self.heap[place].id, place);
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &SketchEntry> {
        self.heap.iter()
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.places.clear();
    }
}

#[cfg(test)]
mod tests;
