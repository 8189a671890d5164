//! The tables of the overview, one function each.

use serde_json::Value;
use tollgate::ExpiringOverride;
use tollgate::policy::{Mode, Policy};

use super::super::overload;
use super::counts::{
    ControllerCounts, HoldCounts, KEYS_COUNTED, KEYS_SHOWN, KeyCounts, NearCounts, StoreCounts,
};
use super::intent::Subject;
use super::near::Exhaustion;
use super::others::AUDIT_SHOWN;
use super::overview;
use super::overview::OverviewSource;
use super::panel::{Panel, PanelEntry, PanelField, Tone};
use super::sentence::{instant, override_text};
use crate::control::ControlPlane;
use crate::telemetry::TOP_WINDOW_SECONDS;
use crate::telemetry::history::LIMITS_MAX;
use crate::telemetry::names::VERDICTS;
use crate::text::{counted, grouped};
use crate::time_text::{clock_text, people};

/// Maximum number of limits and of blocks that are shown.
const LIMITS_SHOWN: usize = 50;
const BLOCKS_SHOWN: usize = 50;
impl OverviewSource<'_> {
    pub(super) fn panels(&self) -> Vec<Panel> {
        let mut panels = vec![self.verdicts(), self.limits(), self.keys(), self.near(), self.overrides()];
        panels.push(self.store_panel());
        panels.extend((!self.numbers.controllers.is_empty()).then(|| self.overload()));
        panels.extend([self.holds(), self.nodes(), self.changes()]);
        panels
    }

    /// Decisions by verdict.
    fn verdicts(&self) -> Panel {
        let entry = |verdict: &str| {
            let counts = self.numbers.verdicts.get(verdict).copied().unwrap_or_default();
            let is_shown = counts.quarter > 0 || ["allow", "deny"].contains(&verdict);
            is_shown.then(|| {
                let counts = [counts.second, counts.a_second, counts.quarter].map(PanelField::count);
                PanelEntry::new([verdict.into()].into_iter().chain(counts))
            })
        };
        Panel {
            id: "verdicts",
            title: "Decisions by verdict",
            note: String::new(),
            columns: &["verdict", "last second", "a second, last minute", "in 15 min"],
            entries: VERDICTS.into_iter().filter_map(entry).collect(),
            empty: "",
        }
    }

    /// The denials of each limit, and those in shadow.
    fn limits(&self) -> Panel {
        let policy = self.control.service.engine.policy();
        let mut names = overview::limit_names(&self.control.service);
        let is_other = |name: &&String| !names.contains(name);
        let others: Vec<String> = self.numbers.limits.keys().filter(is_other).cloned().collect();
        names.extend(others);
        let count = names.len();
        let mut entries: Vec<(u64, PanelEntry)> =
            names.iter().map(|name| self.limit(name, &policy)).collect();
        entries.sort_by_key(|(denied, _)| u64::MAX - denied);
        let mut note = String::from("Denied counts what was refused; would deny counts limits in shadow.");
        if count > LIMITS_SHOWN {
            note.push_str(&format!(
                " {LIMITS_SHOWN} of {count} limits are shown, those with the most denials."
            ));
        }
        if count > LIMITS_MAX {
            note.push_str(&format!(" The first {LIMITS_MAX} limits that had decisions have a history."));
        }
        Panel {
            id: "limits",
            title: "Denials by limit",
            note,
            columns: &[
                "limit",
                "mode",
                "allowed/s",
                "denied/s",
                "would deny/s",
                "denied in 15 min",
                "would deny",
                "denials",
            ],
            entries: entries.into_iter().take(LIMITS_SHOWN).map(|(_, entry)| entry).collect(),
            empty: "The policy has no limits: every request passes.",
        }
    }

    /// One limit, with the number by which limits are sorted.
    fn limit(&self, name: &str, policy: &Policy) -> (u64, PanelEntry) {
        let limit = policy.limits().iter().find(|limit| limit.name() == name);
        let overrides = self.control.service.engine.operator().overrides(self.now);
        let without_limit = || match self.numbers.limits.get(name) {
            Some(numbers) if numbers.is_removed => PanelField::toned("removed", Tone::Warn),
            _ if self.control.service.compat().is_none() => {
                PanelField::toned("on other nodes only", Tone::Warn)
            }
            _ => "as configured".into(),
        };
        let mode = limit.map_or_else(without_limit, |limit| {
            let (mode, percent) = overrides.mode_of(limit);
            let is_share = mode == Mode::Enforce && percent < 100;
            let share = if is_share { format!(" for {percent} % of keys") } else { String::new() };
            let ends =
                overrides.of(limit).map_or_else(String::new, |ruled| format!(", {}", self.ends(ruled)));
            let tone = if mode == Mode::Enforce && percent == 100 { Tone::Plain } else { Tone::Warn };
            PanelField::toned(format!("{}{share}{ends}", mode.name()), tone)
        });
        let mut fields = vec![name.into(), mode];
        let mut denied = 0;
        match self.numbers.limits.get(name) {
            None => fields.extend((0..6).map(|_| PanelField::count("–"))),
            Some(numbers) => {
                denied = numbers.denied_quarter + numbers.would_deny_quarter;
                let rates = [numbers.allowed, numbers.denied, numbers.would_deny];
                fields.extend(rates.map(|tenths| PanelField::count(rate_text(tenths))));
                fields.push(PanelField::count(numbers.denied_quarter));
                fields.push(PanelField::count(numbers.would_deny_quarter));
                fields.push(PanelField { trend: numbers.trend.clone(), ..PanelField::default() });
            }
        }
        let about = limit.map(|_| Subject::Limit(name.to_owned()).query());
        (denied, PanelEntry::new(fields).about(about))
    }

    fn ends(&self, ruled: ExpiringOverride) -> String {
        format!("ends in {}", people(ruled.until.since(self.now).ceil_millis()))
    }

    /// The busiest keys.
    fn keys(&self) -> Panel {
        let entry = |key: &KeyCounts| {
            let mark = "~".repeat(usize::from(key.is_estimated));
            let denied_tone = if key.denied > 0 { Tone::Bad } else { Tone::Plain };
            let mut fields: Vec<PanelField> = vec![key.limit.clone().into(), key.key.clone().into()];
            fields.push(PanelField::count(format!("{mark}{}", key.decisions)));
            fields.push(PanelField::count(format!("{mark}{}", key.denied)));
            fields.push(PanelField::toned(share(key.denied, key.decisions), denied_tone));
            fields.push(PanelField::count(format!("{mark}{}", key.would_deny)));
            fields.push(key.decided_by().into());
            fields.push(key.since.clone().unwrap_or_default().into());
            PanelEntry::new(fields).about(self.about_key(&key.limit, &key.attributes))
        };
        let of_nodes = match self.recorder.others.nodes.len() {
            0 => String::new(),
            _ => format!(", and of the {KEYS_COUNTED} busiest keys of each node"),
        };
        Panel {
            id: "keys",
            title: "Top keys",
            note: format!(
                "Of at most the last {TOP_WINDOW_SECONDS} s{of_nodes}; ~ marks an estimate from sampled decisions. Open a key \
                 to explain, block or reset it, or to override its limit."
            ),
            columns: &[
                "limit",
                "key",
                "asked",
                "denied",
                "denied share",
                "would deny",
                "decided by",
                "since",
            ],
            entries: self.numbers.keys.iter().take(KEYS_SHOWN).map(entry).collect(),
            empty: "No decision about a key was made in the last two minutes.",
        }
    }

    /// The query about a key. `None` if its values are too long to be known whole.
    fn about_key(&self, limit: &str, attributes: &[(String, String)]) -> Option<String> {
        let limit = Some(limit).filter(|_| self.control.service.compat().is_none());
        (!attributes.is_empty()).then(|| Subject::key(attributes, limit).query())
    }

    /// Keys that have used most of their limit.
    fn near(&self) -> Panel {
        let entry = |near: &NearCounts| {
            let used = near.of.saturating_sub(near.remaining);
            let exhausted = match (near.remaining, near.exhausted) {
                (0, _) => PanelField::toned("now", Tone::Bad),
                (_, Exhaustion::After(millis)) => PanelField::toned(people(millis), Tone::Warn),
                (_, Exhaustion::Never) => "not at this pace".into(),
                (_, Exhaustion::Unknown) => "the next look says".into(),
            };
            let fields = [
                near.limit.clone().into(),
                near.key.clone().into(),
                PanelField::count(share(used, near.of)),
                PanelField::count(format!("{} of {}", near.remaining, near.of)),
                exhausted,
            ];
            PanelEntry::new(fields).about(self.about_key(&near.limit, &near.attributes))
        };
        Panel {
            id: "near",
            title: "Near their limit",
            note:
                "Of the 20 busiest keys of each node, those that have used 80 % or more; looked at every 5 s."
                    .to_owned(),
            columns: &["limit", "key", "used", "left", "exhausted in"],
            entries: self.numbers.near.iter().map(entry).collect(),
            empty: "None of the busiest keys has used 80 % of its limit.",
        }
    }

    /// Overrides and blocks, with the time until they end.
    fn overrides(&self) -> Panel {
        let operator = self.control.service.engine.operator();
        let (all, single) = operator.overrides(self.now).list();
        let mut entries = Vec::new();
        let overridden = |subject: Subject, ruled: ExpiringOverride| {
            let fields = [
                subject.title().into(),
                PanelField::toned(override_text(ruled.kind), Tone::Warn),
                self.ends(ruled).into(),
            ];
            PanelEntry::new(fields).about(Some(subject.query()))
        };
        entries.extend(all.iter().map(|ruled| overridden(Subject::AllLimits, *ruled)));
        entries.extend(single.into_iter().map(|(name, ruled)| overridden(Subject::Limit(name), ruled)));
        for block in operator.blocks(self.now).iter().take(BLOCKS_SHOWN) {
            let subject = Subject::key(block.attributes(), None);
            let ends = format!("ends in {}", people(block.until().since(self.now).ceil_millis()));
            let fields = [subject.title().into(), PanelField::toned("blocked", Tone::Bad), ends.into()];
            entries.push(PanelEntry::new(fields).about(Some(subject.query())));
        }
        for (controller, ruled) in overload::overridden(self.control.service.shedder(), self.now) {
            entries.push(overridden(Subject::Controller(controller.as_str().to_owned()), ruled));
        }
        if all.is_none() {
            entries.push(
                PanelEntry::new(["all limits".into(), "as the policy says".into(), PanelField::default()])
                    .about(Some(Subject::AllLimits.query())),
            );
        }
        Panel {
            id: "overrides",
            title: "Kill switch, shadow, blocks",
            note: "Every override ends by itself. Open a limit above to turn it off or put it in shadow."
                .to_owned(),
            columns: &["what", "how", "ends"],
            entries,
            empty: "",
        }
    }

    /// The store: latency, failures, breakers, and calls that were not needed.
    fn store_panel(&self) -> Panel {
        let mut entries = Vec::new();
        let mut fact = |name: &str, text: String, tone: Tone| {
            entries.push(PanelEntry::new([name.into(), PanelField::toned(text, tone)]));
        };
        match &self.numbers.store {
            None => {
                for (name, value) in self.control.service.meter.probed(self.now) {
                    if let Some(what) = memory_fact(name) {
                        fact(what, grouped(value), Tone::Plain);
                    }
                }
            }
            Some(store) => {
                store_facts(store, &mut fact);
                let without_call =
                    ["lease", "deny-cache"].map(|source| self.numbers.sources_minute.get(source));
                let saved: u64 = without_call.into_iter().flatten().sum();
                fact("answers without a call, last minute", grouped(saved), Tone::Plain);
            }
        }
        Panel {
            id: "store",
            title: "Store",
            note: String::new(),
            columns: &["what", "now"],
            entries,
            empty: "Counters are in the memory of this server.",
        }
    }

    /// The overload controllers.
    fn overload(&self) -> Panel {
        let entry = |controller: &ControllerCounts| {
            let number = |number: Option<u64>| PanelField::count(number.map_or("–".to_owned(), grouped));
            let shed =
                controller.shed.iter().map(|(priority, count)| format!("{priority} {}", grouped(*count)));
            let shed: Vec<String> = shed.collect();
            let changed = controller.changed.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
            let tone = if controller.mode == Mode::Enforce.name() { Tone::Plain } else { Tone::Warn };
            let fields = [
                controller.name.clone().into(),
                PanelField::toned(controller.mode.clone(), tone),
                number(controller.in_flight),
                number(controller.limit),
                if shed.is_empty() {
                    "nothing".into()
                } else {
                    PanelField::toned(shed.join(", "), Tone::Warn)
                },
                PanelField::count(grouped(controller.would_shed)),
                format!("{}{changed}", controller.reason).into(),
            ];
            PanelEntry::new(fields).about(Some(Subject::Controller(controller.name.clone()).query()))
        };
        Panel {
            id: "overload",
            title: "Overload",
            note: "Shed requests by priority, since the start.".to_owned(),
            columns: &["controller", "mode", "in flight", "limit", "shed", "would shed", "last change"],
            entries: self.numbers.controllers.iter().map(entry).collect(),
            empty: "",
        }
    }

    /// The permits and reservations that callers hold.
    fn holds(&self) -> Panel {
        let held = |(name, held): (&String, &HoldCounts)| {
            PanelEntry::new([
                name.clone().into(),
                PanelField::count(grouped(held.open)),
                PanelField::count(grouped(held.expired)),
            ])
        };
        let reserved = |(limit, units): (&String, &u64)| {
            let units = PanelField::count(grouped(*units));
            PanelEntry::new([format!("units reserved of limit {limit}").into(), units, "".into()])
        };
        let reserved = self.numbers.reserved.iter().take(LIMITS_SHOWN).map(reserved);
        Panel {
            id: "holds",
            title: "Reservations and permits",
            note: "Expired reservations and permits were never settled or released: their units stayed charged. Of an expired \
                   report the outcome is missing."
                .to_owned(),
            columns: &["what", "open", "expired"],
            entries: self.numbers.holds.iter().map(held).chain(reserved).collect(),
            empty: "",
        }
    }

    /// The nodes of the fleet, by their heartbeats, and whether their numbers are here.
    fn nodes(&self) -> Panel {
        let roster = serde_json::to_value(&self.recorder.roster).unwrap_or_default();
        let entry = |node: &Value| {
            let text = |name: &str| node[name].as_str().unwrap_or("–").to_owned();
            let (name, is_ok) = (text("name"), node["state"] == "ok");
            let problem = self.recorder.others.problem_of(node["id"].as_str());
            let (name, numbers) = match (node["this"] == true, problem) {
                (true, _) => (format!("{name} (this one)"), PanelField::toned("included", Tone::Good)),
                (false, None) => (name, PanelField::toned("included", Tone::Good)),
                (false, Some(problem)) => (name, PanelField::toned(format!("missing: {problem}"), Tone::Bad)),
            };
            let state = PanelField::toned(text("state"), if is_ok { Tone::Good } else { Tone::Bad });
            let seen = [text("policy"), text("version"), text("last_seen")].map(PanelField::from);
            let clock = clock_field(node["clock_ms"].as_i64());
            PanelEntry::new([name.into(), state, numbers, clock].into_iter().chain(seen))
        };
        let problem =
            roster["problem"].as_str().map(|problem| format!(" This list is an old one: {problem}."));
        Panel {
            id: "nodes",
            title: "Nodes",
            note: format!(
                "Servers that share the store. The other panels are sums over those whose numbers are included; blocks and \
                 overrides hold on all of them.{}",
                problem.unwrap_or_default()
            ),
            columns: &["node", "state", "numbers", "clock", "policy", "version", "last seen"],
            entries: roster["nodes"]
                .as_array()
                .map_or_else(Vec::new, |nodes| nodes.iter().map(entry).collect()),
            empty: "Not looked at yet.",
        }
    }

    /// Changes of the policy since the start.
    fn changes(&self) -> Panel {
        let entry = |change: &super::recorder::PolicyChange| {
            let when = instant(change.at, self.wall);
            let texts = [&change.by, &change.version, &change.sentences.join("; ")].map(PanelField::from);
            PanelEntry::new([when.into()].into_iter().chain(texts))
        };
        Panel {
            id: "changes",
            title: "What changed in the policy",
            note: "Since this server started, newest first.".to_owned(),
            columns: &["when", "who", "version", "what"],
            entries: self.recorder.changes.iter().rev().map(entry).collect(),
            empty: "The policy has not changed since the start.",
        }
    }
}

/// The latest actions of operators on all nodes that answer, for the role admin.
pub(super) fn audit_panel(control: &ControlPlane) -> Panel {
    let entries = control.admin.audit.latest(AUDIT_SHOWN);
    let mut rows: Vec<[String; 6]> = entries
        .iter()
        .map(|entry| {
            let [at, who, did, about, outcome] = entry.fields();
            [at, "this one".to_owned(), who, did, about, outcome]
        })
        .collect();
    let recorder = control.web_console.recorder();
    let others = recorder.as_ref().into_iter().flat_map(|recorder| recorder.others.audit());
    rows.extend(others.map(|(node, entry)| {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let who = format!("{} ({})", text("who"), text("role"));
        [text("at"), node.to_owned(), who, text("verb"), text("about"), text("outcome")]
    }));
    // RFC 3339 in UTC sorts by time.
    rows.sort_by(|one, other| other[0].cmp(&one[0]));
    rows.truncate(AUDIT_SHOWN);
    Panel {
        id: "audit",
        title: "Who did what",
        note: "The actions of operators, newest first. Shown to the role admin.".to_owned(),
        columns: &["when", "node", "who", "did", "about", "outcome"],
        entries: rows.into_iter().map(|row| PanelEntry::new(row.map(PanelField::from))).collect(),
        empty: "No operator has done anything since the start.",
    }
}

/// How far a node's clock is from the store's.
fn clock_field(clock_ms: Option<i64>) -> PanelField {
    clock_ms.map_or_else(
        || "–".into(),
        |ms| match clock_text(ms) {
            None => PanelField::toned("in step", Tone::Good),
            Some(text) => PanelField::toned(text, Tone::Warn),
        },
    )
}

/// The meaning of a number of the memory store.
fn memory_fact(name: &str) -> Option<&'static str> {
    match name {
        "tollgate_store_keys" => Some("keys"),
        "tollgate_store_overflow_keys" => Some("keys that share a counter because memory is full"),
        "tollgate_store_bytes" => Some("bytes used"),
        "tollgate_store_capacity_bytes" => Some("bytes at most"),
        _ => None,
    }
}

fn store_facts(store: &StoreCounts, fact: &mut impl FnMut(&str, String, Tone)) {
    for (name, thousandths) in [("latency p50, last minute", 500), ("latency p99, last minute", 990)] {
        let text = match store.quantile(thousandths) {
            None => "no calls".to_owned(),
            Some(Ok(nanos)) => format!("at most {} µs", grouped(nanos / 1_000)),
            Some(Err(nanos)) => format!("more than {} µs", grouped(nanos / 1_000)),
        };
        fact(name, text, Tone::Plain);
    }
    let calls = format!("{} for {} requests", grouped(store.calls), grouped(store.requests));
    fact("calls, last minute", calls, Tone::Plain);
    let tone = if store.failures > 0 { Tone::Bad } else { Tone::Good };
    fact("failures, last minute", grouped(store.failures), tone);
    for (address, shard) in &store.shards {
        let state = |(state, nodes): (&String, &u64)| match shard.breakers.len() {
            1 => format!("breaker {state}"),
            _ => format!(
                "breaker {state} on {}",
                counted(usize::try_from(*nodes).unwrap_or(usize::MAX), "node")
            ),
        };
        let states: Vec<String> = shard.breakers.iter().map(state).collect();
        let text = format!("{}, {} in flight", states.join(", "), grouped(shard.in_flight));
        fact(address, text, if shard.is_closed() { Tone::Good } else { Tone::Bad });
    }
    if store.deferred > 0 {
        fact("counters with deferred charges", grouped(store.deferred), Tone::Warn);
    }
}

/// Tenths a second, with one digit after the point where the rate is small.
fn rate_text(tenths: u64) -> String {
    if tenths >= 100 || tenths.is_multiple_of(10) {
        return grouped(tenths / 10);
    }
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn share(part: u64, whole: u64) -> String {
    let percent = part.saturating_mul(100).checked_div(whole);
    percent.map_or_else(|| "–".to_owned(), |percent| format!("{percent} %"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are written for people.
    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([15, 20, 12_345].map(rate_text), ["1.5", "2", "1,234"]);
        assert_eq!((share(1, 3), share(1, 0)), ("33 %".to_owned(), "–".to_owned()));
    }
}
