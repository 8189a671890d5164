//! Two policies that decide about the same requests: which decisions differ, and whom that concerns.

use std::collections::{BTreeMap, HashMap};

use tollgate::Decision;

use super::report::{Changed, Comparison, TouchedKey, percent};
use super::run::Decided;
use super::touched::{Frequent, Touched, route};

/// Most routes that are counted apart.
const ROUTES_MAX: usize = 200;
/// Most routes, and most keys, of a report.
const SHOWN_MAX: usize = 20;
/// The cause of a denial that no limit caused.
const REQUEST: &str = "the request itself";

/// Requests whose decision differs.
#[derive(Debug, Default)]
struct ChangedSheet {
    requests: u64,
    /// By limit and key, how often each was denied.
    keys: HashMap<(usize, u64), (u64, Touched)>,
    limits: BTreeMap<String, u64>,
    routes: Frequent,
}

impl ChangedSheet {
    /// Counts a request that only `decision` denies.
    fn count(&mut self, decision: &Decision, decided: &Decided<'_, '_>) {
        self.requests += 1;
        *self.limits.entry(decision.cause_name().unwrap_or(REQUEST).to_owned()).or_default() += 1;
        if let Some(route) = route(decided.record) {
            self.routes.count(&route, ROUTES_MAX);
        }
        let Some(cause) = decision.cause() else { return };
        let (count, touched) = self
            .keys
            .entry((cause.index, cause.key_hash))
            .or_insert_with(|| (0, Touched::new(cause.limit, decided.request, cause.descriptor)));
        *count += 1;
        touched.count(decided.record);
    }

    fn report(self, all: u64, limit_name: impl Fn(usize) -> String) -> Changed {
        let clients = self.keys.len() as u64;
        let mut keys: Vec<((usize, u64), (u64, Touched))> = self.keys.into_iter().collect();
        keys.sort_by(|(one, (count, touched)), (other, (than, with))| {
            than.cmp(count).then_with(|| touched.text().cmp(with.text())).then_with(|| one.cmp(other))
        });
        let top = keys.into_iter().take(SHOWN_MAX).map(|((limit, _), (denied, touched))| TouchedKey {
            limit: limit_name(limit),
            key: touched.text().to_owned(),
            requests: denied,
            denied,
            share_percent: percent(denied, self.requests),
            denied_for_ms: 0,
            route: touched.route(),
            user_agent: touched.user_agent(),
        });
        let mut by_limit: Vec<(String, u64)> = self.limits.into_iter().collect();
        by_limit.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        Changed {
            requests: self.requests,
            percent: percent(self.requests, all),
            clients,
            by_limit,
            by_route: self.routes.sorted().into_iter().take(SHOWN_MAX).collect(),
            top: top.collect(),
        }
    }
}

/// How the decisions of two policies differ.
#[derive(Debug, Default)]
pub(super) struct ComparisonSheet {
    decisions: u64,
    denied: u64,
    newly_denied: ChangedSheet,
    freed: ChangedSheet,
}

impl ComparisonSheet {
    /// Counts the other policy's decision about a request.
    pub(super) fn count(&mut self, old: &Decision, decided: &Decided<'_, '_>) {
        self.decisions += 1;
        self.denied += u64::from(!decided.decision.is_allowed());
        match (old.is_allowed(), decided.decision.is_allowed()) {
            (true, false) => self.newly_denied.count(decided.decision, decided),
            (false, true) => self.freed.count(old, decided),
            _ => {}
        }
    }

    /// The result. The functions name the limits of the first policy, and of the other.
    pub(super) fn report(
        self,
        old_name: impl Fn(usize) -> String,
        new_name: impl Fn(usize) -> String,
    ) -> Comparison {
        let newly_denied = self.newly_denied.report(self.decisions, new_name);
        let freed = self.freed.report(self.decisions, old_name);
        let sentence = sentence(&newly_denied, &freed, self.decisions);
        Comparison {
            denied: self.denied,
            denied_percent: percent(self.denied, self.decisions),
            newly_denied,
            freed,
            sentence,
        }
    }
}

/// The result in a sentence, for a pull request.
fn sentence(newly_denied: &Changed, freed: &Changed, decisions: u64) -> String {
    if newly_denied.requests == 0 && freed.requests == 0 {
        return format!("This change would not have changed any of {decisions} decisions.");
    }
    let part = |changed: &Changed| {
        let route = changed.by_route.first().map(|(route, count)| {
            let word = if count * 2 > changed.requests { "mostly" } else { "most often" };
            format!(", {word} {route}")
        });
        let clients = if changed.clients == 1 { "client" } else { "clients" };
        format!(
            "{} % of {decisions} requests ({}; {} {clients}{})",
            shown_percent(changed.requests, decisions),
            changed.requests,
            changed.clients,
            route.unwrap_or_default()
        )
    };
    match (newly_denied.requests, freed.requests) {
        (0, _) => format!("This change would have denied nothing new, and freed {}.", part(freed)),
        (_, 0) => format!("This change would have denied {}, and freed nothing.", part(newly_denied)),
        _ => {
            format!("This change would have denied {}, and freed {}.", part(newly_denied), part(freed))
        }
    }
}

/// A share in per cent with as few digits as show it: `12`, `0.4`, `0.03`, `less than 0.01`.
fn shown_percent(part: u64, whole: u64) -> String {
    let hundredths = u128::from(part) * 10_000 / u128::from(whole.max(1));
    match hundredths {
        0 => "less than 0.01".to_owned(),
        1..10 => format!("0.0{hundredths}"),
        10..1_000 => format!("{}.{}", hundredths / 100, hundredths % 100 / 10),
        _ => format!("{}", hundredths / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares are short, and none that is not 0 is shown as 0.
    #[test]
    fn shares_are_short() {
        for (part, whole, shown) in [
            (4, 1_000, "0.4"),
            (1, 3_000, "0.03"),
            (1, 1_000_000, "less than 0.01"),
            (1, 2, "50"),
            (123, 10_000, "1.2"),
        ] {
            assert_eq!(shown_percent(part, whole), shown);
        }
    }
}
