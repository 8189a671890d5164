//! The active rules, one by one, so that a reload can compare the old rules with the new ones: the limits of a policy,
//! or the rules of another program's file. With such a file the engine holds a guard policy that no operator wrote, and
//! that is never shown.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::SwapReport;
use tollgate::policy::{Change, Policy};
use tollgate::store::Store;
use tollgate_compat::CompatConfig;

use super::Service;

/// The rules that decide at one instant.
pub(crate) enum Deciding {
    /// A Tollgate policy.
    Policy(Arc<Policy>),
    /// The rules of another program's file.
    Rules(Arc<CompatConfig>),
}

impl Deciding {
    /// The active rules of a service.
    pub(crate) fn of<S: Store>(service: &Service<S>) -> Self {
        match service.compat() {
            Some(compat) => Deciding::Rules(Arc::clone(&compat.rules)),
            None => Deciding::Policy(service.engine.policy()),
        }
    }

    const fn is_compat(&self) -> bool {
        matches!(self, Deciding::Rules(_))
    }

    /// Every limit or rule that changed.
    pub(crate) fn changes(&self, next: &Self) -> Vec<Change> {
        if let (Deciding::Policy(before), Deciding::Policy(after)) = (self, next) {
            return before.difference(after).changes;
        }
        let (before, after) = (self.meanings(), next.meanings());
        let known: HashMap<&str, &str> = pairs(&before).collect();
        let left: HashMap<&str, &str> = pairs(&after).collect();
        let (name, sentence) = (str::to_owned, str::to_owned);
        let news = pairs(&after).filter_map(|(now, means)| match known.get(now) {
            None => Some(Change::Added { name: name(now), sentence: sentence(means) }),
            Some(meant) if *meant == means => None,
            Some(meant) => Some(Change::Changed {
                name: name(now),
                fields: Vec::new(),
                before: sentence(meant),
                after: sentence(means),
            }),
        });
        let gone = pairs(&before).filter(|(was, _)| !left.contains_key(was));
        let gone = gone.map(|(was, meant)| Change::Removed { name: name(was), sentence: sentence(meant) });
        news.chain(gone).collect()
    }

    /// Reports the effect of a swap in terms of the active rules. If another program's rules are on either side, the
    /// engine's own report is about the guard policy.
    pub(crate) fn report(&self, next: &Self, swapped: SwapReport) -> SwapReport {
        if !self.is_compat() && !next.is_compat() {
            return swapped;
        }
        let mut report = SwapReport::default();
        for change in self.changes(next) {
            match change {
                Change::Added { name, .. } => report.added.push(name),
                Change::Removed { name, .. } => report.removed.push(name),
                Change::Changed { name, .. } => report.changed.push(name),
            }
        }
        report
    }

    /// Each name with its meaning, in the order of the file. Rules with the same name are merged.
    fn meanings(&self) -> Vec<(String, String)> {
        let each = match self {
            Deciding::Policy(policy) => {
                policy.limits().iter().map(|limit| (limit.name().to_owned(), limit.sentence())).collect()
            }
            Deciding::Rules(rules) => rules.meanings(),
        };
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, sentence) in each {
            match known.get(&name).and_then(|index| all.get_mut(*index)) {
                Some((_, sentences)) => {
                    sentences.push_str("; ");
                    sentences.push_str(&sentence);
                }
                None => {
                    known.insert(name.clone(), all.len());
                    all.push((name, sentence));
                }
            }
        }
        all
    }
}

fn pairs(meanings: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    meanings.iter().map(|(name, sentence)| (name.as_str(), sentence.as_str()))
}
