//! The operator state as items that a fleet shares: what this node knows of each, what the store does not have yet, and
//! which of two words about the same thing wins. Pure: it asks neither a store nor a clock. All times are microseconds
//! of the wall clock.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tollgate_redis::{FleetExchange, FleetNews, SharedItem, Written};

/// How long the removal of an item is remembered at most: a node that was away longer than that, and still has the item,
/// brings it back.
const REMOVAL_LIFETIME: u64 = 86_400_000_000;
/// When the items of a state that knows no instants count as written: before everything else.
const LONG_AGO: u64 = 1;

/// The overrides and blocks of an engine, by the ids of items.
pub(crate) type HeldItems = BTreeMap<String, HeldItem>;

/// An override or a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldItem {
    pub(crate) until: u64,
    pub(crate) text: String,
}

/// The state of an item on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FleetItem {
    /// When it was written.
    written: u64,
    /// When it ends.
    until: u64,
    /// Empty if it was removed.
    text: String,
    progress: ItemProgress,
}

impl FleetItem {
    /// Whether it ends later than an instant.
    pub(crate) const fn ends_after(&self, now: u64) -> bool {
        now < self.until
    }
}

/// Whether the store has an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ItemProgress {
    /// The store has it.
    Shared,
    /// It was written here and was not sent yet. The store is to say when it was written.
    New,
    /// It was sent without success. It was written when this node says.
    Pending,
}

/// All items that this node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FleetItems {
    items: BTreeMap<String, FleetItem>,
    /// The version of the store's items that were read last.
    version: String,
    /// The last reset that was heard of.
    mark: String,
}

impl FleetItems {
    /// The items of an earlier run, and what its engine held beside them.
    pub(crate) fn resumed(items: BTreeMap<String, FleetItem>, held: &HeldItems) -> Self {
        let mut known = Self { items, ..Self::default() };
        for item in known.items.values_mut().filter(|item| item.progress == ItemProgress::New) {
            item.progress = ItemProgress::Pending;
        }
        for (id, HeldItem { until, text }) in held {
            known.items.entry(id.clone()).or_insert_with(|| FleetItem {
                written: LONG_AGO,
                until: *until,
                text: text.clone(),
                progress: ItemProgress::Pending,
            });
        }
        known
    }

    /// All of them, to be resumed later.
    pub(crate) fn entries(&self) -> BTreeMap<String, FleetItem> {
        self.items.clone()
    }

    /// Notes what an operator changed on this node. Returns the ids of the changed items.
    pub(crate) fn note(&mut self, before: &HeldItems, after: &HeldItems, now: u64) -> Vec<String> {
        let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let changed: Vec<String> =
            all.into_iter().filter(|id| before.get(*id) != after.get(*id)).cloned().collect();
        for id in &changed {
            let (until, text) = match (after.get(id), before.get(id)) {
                (Some(held), _) => (held.until, held.text.clone()),
                (None, removed) => {
                    let until = removed.map_or(now, |removed| removed.until);
                    (until.min(now.saturating_add(REMOVAL_LIFETIME)), String::new())
                }
            };
            let item = FleetItem { written: now, until, text, progress: ItemProgress::New };
            self.items.insert(id.clone(), item);
        }
        changed
    }

    /// The next exchange with the store: the items that it lacks, and the known version.
    pub(crate) fn exchange(&mut self) -> FleetExchange {
        let mut items = Vec::new();
        for (id, item) in &mut self.items {
            let written = match item.progress {
                ItemProgress::Shared => continue,
                ItemProgress::New => 0,
                ItemProgress::Pending => item.written,
            };
            if items.len() >= FleetExchange::ITEMS_MAX {
                break;
            }
            item.progress = ItemProgress::Pending;
            items.push(SharedItem { id: id.clone(), written, until: item.until, text: item.text.clone() });
        }
        FleetExchange {
            version: self.version.clone(),
            mark: self.mark.clone(),
            items,
            ..FleetExchange::default()
        }
    }

    /// Merges what the store says, in answer to these items.
    pub(crate) fn hear(&mut self, sent: &[SharedItem], news: &FleetNews, now: u64) {
        for (item, written) in sent.iter().zip(&news.written) {
            let known = self.items.get_mut(&item.id);
            // An operator may have changed it again in the meantime.
            let Some(known) = known.filter(|known| known.until == item.until && known.text == item.text)
            else {
                continue;
            };
            match *written {
                Written::At(written) => {
                    (known.written, known.progress) = (written, ItemProgress::Shared);
                }
                // The store's item is later, and replaces it below.
                Written::Older => known.written = 0,
                Written::Full => {}
            }
        }
        if let Some(items) = &news.items {
            self.merge(items, now);
        }
        self.version.clone_from(&news.version);
        self.mark.clone_from(&news.mark);
        self.items.retain(|_, item| now < item.until);
    }

    fn merge(&mut self, items: &[SharedItem], now: u64) {
        let there: BTreeSet<&str> = items.iter().map(|item| item.id.as_str()).collect();
        // Items that the store had and lost, in a failover or a flush, are written again.
        let lost = self.items.iter_mut().filter(|(id, _)| !there.contains(id.as_str()));
        for (_, item) in lost.filter(|(_, item)| item.progress == ItemProgress::Shared) {
            item.progress = ItemProgress::Pending;
        }
        for SharedItem { id, written, until, text } in items {
            match self.items.get_mut(id) {
                // It is written after all that the store has now.
                Some(known) if known.progress == ItemProgress::New => {}
                Some(known) if known.written > *written => known.progress = ItemProgress::Pending,
                None if *until <= now => {}
                _ => {
                    let (written, until, text) = (*written, *until, text.clone());
                    let item = FleetItem { written, until, text, progress: ItemProgress::Shared };
                    self.items.insert(id.clone(), item);
                }
            }
        }
    }

    /// The overrides and blocks that every node should hold now.
    pub(crate) fn holding(&self, now: u64) -> HeldItems {
        let holds = self.items.iter().filter(|(_, item)| now < item.until && !item.text.is_empty());
        holds
            .map(|(id, item)| (id.clone(), HeldItem { until: item.until, text: item.text.clone() }))
            .collect()
    }

    /// How many items the store does not have.
    pub(crate) fn unshared(&self) -> usize {
        self.items.values().filter(|item| item.progress != ItemProgress::Shared).count()
    }

    /// Whether the store has all of these items, or later words about them.
    pub(crate) fn has_shared(&self, ids: &[String]) -> bool {
        let is_shared =
            |id: &String| self.items.get(id).is_none_or(|item| item.progress == ItemProgress::Shared);
        ids.iter().all(is_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000_000_000;
    const SECOND: u64 = 1_000_000;

    /// A store as the script keeps it.
    #[derive(Default)]
    struct FakeStore {
        items: BTreeMap<String, SharedItem>,
        version: u64,
    }

    impl FakeStore {
        fn exchange(&mut self, node: &mut FleetItems, now: u64) {
            let asked = node.exchange();
            let mut written = Vec::new();
            for item in &asked.items {
                let last = self.items.get(&item.id).map_or(0, |item| item.written);
                let at = if item.written == 0 { now.max(last + 1) } else { item.written.min(now) };
                written.push(if at > last { Written::At(at) } else { Written::Older });
                if at > last {
                    self.items.insert(item.id.clone(), SharedItem { written: at, ..item.clone() });
                    self.version += 1;
                }
            }
            let version = if self.version == 0 { String::new() } else { self.version.to_string() };
            let items = (version != asked.version).then(|| self.items.values().cloned().collect());
            let news = FleetNews { version, written, items, ..FleetNews::default() };
            node.hear(&asked.items, &news, now);
        }
    }

    fn held(items: &[(&str, &str)]) -> HeldItems {
        let item = |text: &str| HeldItem { until: NOW + 100 * SECOND, text: text.to_owned() };
        items.iter().map(|(id, text)| ((*id).to_owned(), item(text))).collect()
    }

    /// Two nodes that write at once keep each other's items, and a removal reaches the other node.
    #[test]
    fn no_item_is_lost() {
        let (mut store, mut one, mut two) =
            (FakeStore::default(), FleetItems::default(), FleetItems::default());
        one.note(&held(&[]), &held(&[("a", "1")]), NOW);
        let ids = two.note(&held(&[]), &held(&[("b", "2")]), NOW);
        assert!(!two.has_shared(&ids));
        store.exchange(&mut one, NOW);
        store.exchange(&mut two, NOW);
        store.exchange(&mut one, NOW);
        assert!(two.has_shared(&ids) && one.unshared() + two.unshared() == 0);
        assert_eq!(one.holding(NOW), held(&[("a", "1"), ("b", "2")]));
        assert_eq!(two.holding(NOW), one.holding(NOW));
        two.note(&two.holding(NOW), &held(&[("b", "2")]), NOW + SECOND);
        store.exchange(&mut two, NOW + SECOND);
        store.exchange(&mut one, NOW + SECOND);
        assert_eq!(one.holding(NOW + SECOND), held(&[("b", "2")]));
        assert_eq!(one.holding(NOW + 100 * SECOND), HeldItems::new(), "items end by themselves");
    }

    /// A change made while the store was away is shared later. It wins against an earlier change of another
    /// node, and loses against a later one.
    #[test]
    fn the_later_word_wins() {
        for (there_at, winner) in [(NOW + 3 * SECOND, "here"), (NOW + 10 * SECOND, "there")] {
            let (mut store, mut one, mut two) =
                (FakeStore::default(), FleetItems::default(), FleetItems::default());
            one.note(&held(&[]), &held(&[("a", "here")]), NOW + 5 * SECOND);
            drop(one.exchange()); // It was not answered.
            two.note(&held(&[]), &held(&[("a", "there")]), there_at);
            store.exchange(&mut two, there_at);
            let later = NOW + 12 * SECOND;
            store.exchange(&mut one, later);
            store.exchange(&mut two, later);
            assert_eq!(one.holding(later), held(&[("a", winner)]));
            assert_eq!(two.holding(later), one.holding(later));
            assert_eq!((one.unshared(), two.unshared()), (0, 0));
        }
    }

    /// A change that was never sent keeps its instant over a restart.
    #[test]
    fn unsent_changes_survive_a_restart() {
        let (mut store, mut one, mut two) =
            (FakeStore::default(), FleetItems::default(), FleetItems::default());
        one.note(&held(&[]), &held(&[("a", "here")]), NOW);
        let mut again = FleetItems::resumed(one.entries(), &held(&[("a", "here")]));
        two.note(&held(&[]), &held(&[("a", "there")]), NOW + SECOND);
        store.exchange(&mut two, NOW + SECOND);
        store.exchange(&mut again, NOW + 2 * SECOND);
        assert_eq!(again.holding(NOW + 2 * SECOND), held(&[("a", "there")]));
    }

    /// A store that lost everything gets it back from any node, a removal included.
    #[test]
    fn a_lost_store_is_filled_again() {
        let (mut store, mut one) = (FakeStore::default(), FleetItems::default());
        one.note(&held(&[]), &held(&[("a", "1"), ("b", "2")]), NOW);
        store.exchange(&mut one, NOW);
        one.note(&held(&[("a", "1"), ("b", "2")]), &held(&[("a", "1")]), NOW);
        store.exchange(&mut one, NOW);
        store = FakeStore::default();
        for _ in 0..3 {
            store.exchange(&mut one, NOW + SECOND);
        }
        let mut two = FleetItems::resumed(BTreeMap::new(), &held(&[("b", "2")]));
        store.exchange(&mut two, NOW + SECOND);
        assert_eq!(
            two.holding(NOW),
            held(&[("a", "1")]),
            "what it brings from its disk is older than the removal"
        );
        assert_eq!((one.unshared(), two.unshared()), (0, 0));
    }
}
