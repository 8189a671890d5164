//! Two policies that decide about the same requests: which decisions differ, and whom that concerns.

use std::collections::{BTreeMap, HashMap, HashSet};

use tollgate::{Decision, Enforcement};

use super::report::{Changed, Comparison, FirstDenied, TouchedKey, percent};
use super::run::Decided;
use super::touched::{Frequent, Touched, route};

/// Most routes that are counted apart.
const ROUTES_MAX: usize = 200;
/// Most routes, and most keys, of a report.
const SHOWN_MAX: usize = 20;
/// Most routes that the sentence names.
const ROUTES_NAMED: usize = 3;
/// The cause of a denial that no limit caused.
const REQUEST: &str = "the request itself";

/// A key: the index of its limit, and its hash.
type LimitKey = (usize, u64);

/// Requests whose decision differs.
#[derive(Debug, Default)]
struct ChangedSheet {
    requests: u64,
    /// By limit and key, how often each was denied.
    keys: HashMap<LimitKey, (u64, Touched)>,
    limits: BTreeMap<String, u64>,
    routes: Frequent,
}

impl ChangedSheet {
    /// Counts a request that only `decision` denies.
    fn count(&mut self, decision: &Decision, decided: &Decided<'_, '_>) {
        self.requests += 1;
        *self.limits.entry(decision.cause_name().unwrap_or(REQUEST).to_owned()).or_default() += 1;
        let route = match decision.cause() {
            Some(cause) => {
                let (count, touched) = self
                    .keys
                    .entry((cause.index, cause.key_hash))
                    .or_insert_with(|| (0, Touched::new(cause.limit, decided.request, cause.descriptor)));
                *count += 1;
                touched.count(decided.record);
                touched.route_of(decided.record)
            }
            None => route(decided.record),
        };
        if let Some(route) = route {
            self.routes.count(&route, ROUTES_MAX);
        }
    }

    /// The keys that are not among those that were denied before.
    fn first_denied(&self, before: &HashSet<LimitKey>) -> FirstDenied {
        let mut routes = BTreeMap::<&str, u64>::new();
        let mut clients = 0;
        for (_, (_, touched)) in self.keys.iter().filter(|(place, _)| !before.contains(place)) {
            clients += 1;
            for (route, count) in touched.routes() {
                *routes.entry(route).or_default() += count;
            }
        }
        let mut by_route: Vec<(String, u64)> =
            routes.into_iter().map(|(route, count)| (route.to_owned(), count)).collect();
        by_route.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        by_route.truncate(SHOWN_MAX);
        FirstDenied { clients, by_route }
    }

    /// The result. `before` are the keys that were denied before, if that is of interest: the others come first.
    fn report(
        self,
        all: u64,
        before: Option<&HashSet<LimitKey>>,
        limit_name: impl Fn(usize) -> String,
    ) -> Changed {
        let clients = self.keys.len() as u64;
        let is_first = |place: &LimitKey| before.map(|before| !before.contains(place));
        let mut keys: Vec<(LimitKey, (u64, Touched))> = self.keys.into_iter().collect();
        keys.sort_by(|(one, (count, touched)), (other, (than, with))| {
            let by_first = is_first(other).cmp(&is_first(one));
            by_first
                .then_with(|| than.cmp(count))
                .then_with(|| touched.text().cmp(with.text()))
                .then_with(|| one.cmp(other))
        });
        let top = keys.into_iter().take(SHOWN_MAX).map(|(place, (denied, touched))| TouchedKey {
            limit: limit_name(place.0),
            key: touched.text().to_owned(),
            requests: denied,
            denied,
            share_percent: percent(denied, self.requests),
            denied_for_ms: 0,
            route: touched.route(),
            user_agent: touched.user_agent(),
            is_first_denial: is_first(&place),
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
    /// Denials of each limit of the other policy.
    limits: BTreeMap<usize, u64>,
    /// The keys of the other policy of which the first one denied a request.
    denied_before: HashSet<LimitKey>,
}

impl ComparisonSheet {
    /// Counts the other policy's decision about a request.
    pub(super) fn count(&mut self, old: &Decision, decided: &Decided<'_, '_>) {
        self.decisions += 1;
        self.denied += u64::from(!decided.decision.is_allowed());
        for status in decided.decision.limits() {
            if !old.is_allowed() {
                self.denied_before.insert((status.index, status.key_hash));
            }
            if status.enforcement == Enforcement::Enforced && !status.outcome.is_allowed() {
                *self.limits.entry(status.index).or_default() += 1;
            }
        }
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
        let first_denied = self.newly_denied.first_denied(&self.denied_before);
        let by_limit = self.limits.iter().map(|(limit, denied)| (new_name(*limit), *denied)).collect();
        let newly_denied = self.newly_denied.report(self.decisions, Some(&self.denied_before), new_name);
        let freed = self.freed.report(self.decisions, None, old_name);
        let sentence = sentence((&newly_denied, &first_denied), &freed, self.decisions);
        Comparison {
            denied: self.denied,
            denied_percent: percent(self.denied, self.decisions),
            by_limit,
            newly_denied,
            first_denied,
            freed,
            sentence,
            is_estimated: false,
        }
    }
}

impl Comparison {
    /// The same of a log that allows only an estimate. The sentence says so itself, since it is often all that is read.
    pub(super) fn into_estimate(self) -> Self {
        let sentence = self.sentence.replacen("This change", "An estimate: this change", 1);
        Self { is_estimated: true, sentence, ..self }
    }
}

/// The result in a sentence, for a pull request.
fn sentence((newly_denied, first): (&Changed, &FirstDenied), freed: &Changed, decisions: u64) -> String {
    if newly_denied.requests == 0 && freed.requests == 0 {
        return format!("This change would not have changed any of {decisions} decisions.");
    }
    let part = |changed: &Changed, first: &str| {
        let route = changed.by_route.first().map(|(route, count)| {
            let word = if count * 2 > changed.requests { "mostly" } else { "most often" };
            format!(", {word} {route}")
        });
        let clients = if changed.clients == 1 { "client" } else { "clients" };
        format!(
            "{} % of {decisions} requests ({}; {} {clients}{}{first})",
            shown_percent(changed.requests, decisions),
            changed.requests,
            changed.clients,
            route.unwrap_or_default()
        )
    };
    let denied = match newly_denied.requests {
        0 => "denied nothing new".to_owned(),
        _ => format!("newly denied {}", part(newly_denied, &first_part(newly_denied, first))),
    };
    let freed = if freed.requests == 0 { "nothing".to_owned() } else { part(freed, "") };
    format!("This change would have {denied}, and freed {freed}.")
}

/// How many of the clients are denied for the first time, and where.
fn first_part(changed: &Changed, first: &FirstDenied) -> String {
    let routes: Vec<&str> =
        first.by_route.iter().take(ROUTES_NAMED).map(|(route, _)| route.as_str()).collect();
    let more = if first.by_route.len() > ROUTES_NAMED { ", ..." } else { "" };
    match first.clients {
        0 => "; none for the first time".to_owned(),
        clients if clients == changed.clients && routes.len() < 2 => "; for the first time".to_owned(),
        clients if routes.is_empty() => format!("; {clients} for the first time"),
        clients => format!("; {clients} for the first time: {}{more}", routes.join(", ")),
    }
}

/// A share in per cent, rounded, with as few digits as show it: `12`, `0.4`, `0.03`, `less than 0.01`. Only all is 100.
fn shown_percent(part: u64, whole: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    let in_parts = |parts: u128| (part * parts + whole / 2) / whole;
    match (in_parts(10_000), in_parts(1_000)) {
        _ if part * 10_000 < whole => "less than 0.01".to_owned(),
        (hundredths @ ..10, _) => format!("0.0{hundredths}"),
        (_, tenths @ ..100) => format!("{}.{}", tenths / 10, tenths % 10),
        _ if part < whole => in_parts(100).min(99).to_string(),
        _ => "100".to_owned(),
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
            (827, 6_000, "14"),
            (203, 6_000, "3.4"),
            (996, 1_000, "99"),
            (999, 10_000, "10"),
            (9_999, 10_000, "99"),
        ] {
            assert_eq!(shown_percent(part, whole), shown);
        }
    }
}
