//! The tables of the overview, one function each.

use serde_json::Value;
use tollgate::policy::{Mode, Policy};
use tollgate::{ExpiringOverride, LimitOverride};
use tollgate_overload::{ControllerReport, Priority};
use tollgate_tower::shed::Shedder;

use super::super::view::mode_name;
use super::intent::Subject;
use super::overview::{OverviewSource, RATE_SECONDS};
use super::panel::{Panel, PanelEntry, PanelField, Tone};
use super::sentence::instant;
use crate::control::ControlPlane;
use crate::telemetry::history::{LIMITS_MAX, SECONDS};
use crate::telemetry::names::{ALLOWED, DENIED, SOURCES, VERDICTS, WOULD_DENY};
use crate::telemetry::{StoreMetrics, TOP_WINDOW_SECONDS, TopKey};
use crate::time_text::people;

/// Maximum number of limits, keys, blocks and entries of the audit log that are shown.
const LIMITS_SHOWN: usize = 50;
const KEYS_SHOWN: usize = 20;
const BLOCKS_SHOWN: usize = 50;
const AUDIT_SHOWN: usize = 30;
/// How many points a trend has, and of how many seconds each is the sum.
const TREND_POINTS: usize = 60;
const TREND_SECONDS: usize = SECONDS / TREND_POINTS;
/// Indexes in [`crate::telemetry::names::OUTCOMES`].
const WAITED: usize = 1;
const NEVER: usize = 3;

impl OverviewSource<'_> {
    pub(super) fn panels(&self) -> Vec<Panel> {
        let mut panels = vec![self.verdicts(), self.limits(), self.keys(), self.near(), self.overrides()];
        panels.push(self.store_panel());
        panels.extend(self.control.service.overload.as_deref().map(|shedder| self.overload(shedder)));
        panels.extend([self.holds(), self.nodes(), self.changes()]);
        panels
    }

    /// Decisions by verdict.
    fn verdicts(&self) -> Panel {
        let track = &self.recorder.history.all;
        let (second, minute, quarter) = (track.recent(1), track.recent(60), track.recent(SECONDS));
        let measured = track.measured(60).max(1) as u64;
        let entry = |(index, verdict): (usize, &str)| {
            let is_shown = quarter[index] > 0 || ["allow", "deny"].contains(&verdict);
            is_shown.then(|| {
                PanelEntry::new([
                    verdict.into(),
                    PanelField::count(second[index]),
                    PanelField::count(minute[index].div_ceil(measured)),
                    PanelField::count(quarter[index]),
                ])
            })
        };
        Panel {
            id: "verdicts",
            title: "Decisions by verdict",
            note: String::new(),
            columns: &["verdict", "last second", "a second, last minute", "in 15 min"],
            entries: VERDICTS.into_iter().enumerate().filter_map(entry).collect(),
            empty: "",
        }
    }

    /// The denials of each limit, and those in shadow.
    fn limits(&self) -> Panel {
        let policy = self.control.service.engine.policy();
        let names = self.limit_names();
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
        let mode = limit.map_or_else(
            || "as configured".into(),
            |limit| {
                let (mode, percent) = overrides.mode_of(limit);
                let is_share = mode == Mode::Enforce && percent < 100;
                let share = if is_share { format!(" for {percent} % of keys") } else { String::new() };
                let ends =
                    overrides.of(limit).map_or_else(String::new, |ruled| format!(", {}", self.ends(ruled)));
                let tone = if mode == Mode::Enforce && percent == 100 { Tone::Plain } else { Tone::Warn };
                PanelField::toned(format!("{}{share}{ends}", mode_name(mode)), tone)
            },
        );
        let mut fields = vec![name.into(), mode];
        let mut denied = 0;
        match self.recorder.history.limit(name) {
            None => fields.extend((0..6).map(|_| PanelField::count("–"))),
            Some(track) => {
                let (recent, quarter) = (track.recent(RATE_SECONDS), track.recent(SECONDS));
                let measured = track.measured(RATE_SECONDS).max(1) as u64;
                let rate = |count: u64| PanelField::count(rate_text(count, measured));
                denied = quarter[DENIED] + quarter[NEVER] + quarter[WOULD_DENY];
                fields.push(rate(recent[ALLOWED] + recent[WAITED]));
                fields.push(rate(recent[DENIED] + recent[NEVER]));
                fields.push(rate(recent[WOULD_DENY]));
                fields.push(PanelField::count(quarter[DENIED] + quarter[NEVER]));
                fields.push(PanelField::count(quarter[WOULD_DENY]));
                let trend = summed(&track.seconds(DENIED), &track.seconds(WOULD_DENY));
                fields.push(PanelField { trend, ..PanelField::default() });
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
        let entry = |key: TopKey| {
            let mark = "~".repeat(usize::from(key.is_estimated));
            let denied_tone = if key.denied > 0 { Tone::Bad } else { Tone::Plain };
            let mut fields: Vec<PanelField> = vec![key.limit.clone().into(), key.key.clone().into()];
            fields.push(PanelField::count(format!("{mark}{}", key.decisions)));
            fields.push(PanelField::count(format!("{mark}{}", key.denied)));
            fields.push(PanelField::toned(share(key.denied, key.decisions), denied_tone));
            fields.push(decided_by(&key).into());
            PanelEntry::new(fields).about(self.about_key(&key))
        };
        Panel {
            id: "keys",
            title: "Top keys",
            note: format!(
                "Of at most the last {TOP_WINDOW_SECONDS} s; ~ marks an estimate from sampled decisions. Open a key to \
                 explain, block or reset it."
            ),
            columns: &["limit", "key", "asked", "denied", "denied share", "decided by"],
            entries: self.control.service.meter.top(KEYS_SHOWN).into_iter().map(entry).collect(),
            empty: "No decision about a key was made in the last two minutes.",
        }
    }

    /// The query about a key. `None` if its values are too long to be known whole.
    fn about_key(&self, key: &TopKey) -> Option<String> {
        let limit = Some(key.limit.as_str()).filter(|_| self.control.service.compat().is_none());
        (!key.attributes.is_empty()).then(|| Subject::key(&key.attributes, limit).query())
    }

    /// Keys that have used most of their limit.
    fn near(&self) -> Panel {
        let entry = |near: &super::near::NearKey| {
            let used = near.limit.saturating_sub(near.remaining);
            let exhausted = match (near.remaining, near.exhausted_in) {
                (0, _) => PanelField::toned("now", Tone::Bad),
                (_, Some(time)) => PanelField::toned(people(time.ceil_millis()), Tone::Warn),
                (_, None) => "not at this pace".into(),
            };
            let fields = [
                near.key.limit.clone().into(),
                near.key.key.clone().into(),
                PanelField::count(share(used, near.limit)),
                PanelField::count(format!("{} of {}", near.remaining, near.limit)),
                exhausted,
            ];
            PanelEntry::new(fields).about(self.about_key(&near.key))
        };
        Panel {
            id: "near",
            title: "Near their limit",
            note: "Of the 20 busiest keys, those that have used 80 % or more; looked at every 5 s."
                .to_owned(),
            columns: &["limit", "key", "used", "left", "exhausted in"],
            entries: self.recorder.near.keys.iter().map(entry).collect(),
            empty: "None of the busiest keys has used 80 % of its limit.",
        }
    }

    /// Overrides and blocks, with the time until they end.
    fn overrides(&self) -> Panel {
        let operator = self.control.service.engine.operator();
        let (all, single) = operator.overrides(self.now).list();
        let mut entries = Vec::new();
        let overridden = |subject: Subject, ruled: ExpiringOverride| {
            let fields = [subject.title().into(), override_field(ruled.kind), self.ends(ruled).into()];
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
        match self.recorder.store(60) {
            None => {
                for (name, value) in self.control.service.meter.probed(self.now) {
                    if let Some(what) = memory_fact(name) {
                        fact(what, grouped(value), Tone::Plain);
                    }
                }
            }
            Some((before, now)) => store_facts(before, now, &mut fact),
        }
        let counts = self.recorder.sources(60);
        let saved: u64 = SOURCES
            .iter()
            .zip(counts)
            .filter(|(source, _)| ["lease", "deny-cache"].contains(&source.name()))
            .map(|(_, count)| count)
            .sum();
        if self.recorder.store(1).is_some() {
            fact("answers without a call, last minute", grouped(saved), Tone::Plain);
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
    fn overload(&self, shedder: &Shedder) -> Panel {
        let entry = |report: ControllerReport| {
            let number = |number: Option<u64>| PanelField::count(number.map_or("–".to_owned(), grouped));
            let shed = |priority: Priority| {
                let refused = shedder.refused(report.controller, priority);
                (refused > 0).then(|| format!("{} {}", priority.as_str(), grouped(refused)))
            };
            let shed: Vec<String> = Priority::ALL.into_iter().filter_map(shed).collect();
            let changed =
                report.changed_at.map_or_else(String::new, |at| format!(" at {}", instant(at, self.wall)));
            let tone = if report.mode == Mode::Enforce { Tone::Plain } else { Tone::Warn };
            let name = report.controller.as_str();
            let fields = [
                name.into(),
                PanelField::toned(mode_name(report.mode), tone),
                number(report.in_flight.map(u64::from)),
                number(report.limit),
                if shed.is_empty() {
                    "nothing".into()
                } else {
                    PanelField::toned(shed.join(", "), Tone::Warn)
                },
                PanelField::count(grouped(report.would_refuse)),
                format!("{}{changed}", report.reason.as_str()).into(),
            ];
            PanelEntry::new(fields).about(Some(Subject::Controller(name.to_owned()).query()))
        };
        Panel {
            id: "overload",
            title: "Overload",
            note: "Shed requests by priority, since the start.".to_owned(),
            columns: &["controller", "mode", "in flight", "limit", "shed", "would shed", "last change"],
            entries: shedder.reports().into_iter().map(entry).collect(),
            empty: "",
        }
    }

    /// The permits and reservations that callers hold.
    fn holds(&self) -> Panel {
        let service = &self.control.service;
        let held = [
            ("reservations", service.reservations.held(self.now)),
            ("permits of concurrency limits", service.permits.held(self.now)),
            ("reports awaited", service.reports.held(self.now)),
        ];
        let entry = |(name, (open, expired)): (&str, (usize, u64))| {
            PanelEntry::new([name.into(), PanelField::count(open), PanelField::count(expired)])
        };
        Panel {
            id: "holds",
            title: "Reservations and permits",
            note: "Expired ones were never settled or released: their units stayed charged.".to_owned(),
            columns: &["what", "open", "expired"],
            entries: held.into_iter().map(entry).collect(),
            empty: "",
        }
    }

    /// The nodes of the fleet, by their heartbeats.
    fn nodes(&self) -> Panel {
        let roster = &self.recorder.roster;
        let entry = |node: &Value| {
            let text = |name: &str| node[name].as_str().unwrap_or("–").to_owned();
            let (name, is_ok) = (text("name"), node["state"] == "ok");
            let name = if node["this"] == true { format!("{name} (this one)") } else { name };
            let state = PanelField::toned(text("state"), if is_ok { Tone::Good } else { Tone::Bad });
            PanelEntry::new([
                name.into(),
                state,
                text("policy").into(),
                text("version").into(),
                text("last_seen").into(),
            ])
        };
        let problem =
            roster["problem"].as_str().map(|problem| format!(" This list is an old one: {problem}."));
        Panel {
            id: "nodes",
            title: "Nodes",
            note: format!(
                "Servers that share the store. The other panels are of this one; blocks and overrides hold on all of \
                 them.{}",
                problem.unwrap_or_default()
            ),
            columns: &["node", "state", "policy", "version", "last seen"],
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
            PanelEntry::new([when.into(), change.version.clone().into(), change.sentences.join("; ").into()])
        };
        Panel {
            id: "changes",
            title: "What changed in the policy",
            note: "Since this server started, newest first.".to_owned(),
            columns: &["when", "version", "what"],
            entries: self.recorder.changes.iter().rev().map(entry).collect(),
            empty: "The policy has not changed since the start.",
        }
    }
}

impl ControlPlane {
    /// The latest actions of operators, for the role admin.
    pub(super) fn audit_panel(&self) -> Panel {
        let entries = self.admin.audit.latest(AUDIT_SHOWN);
        let entry =
            |entry: &super::super::audit::AuditEntry| PanelEntry::new(entry.fields().map(PanelField::from));
        Panel {
            id: "audit",
            title: "Who did what",
            note: "The actions of operators on this server, newest first. Shown to the role admin."
                .to_owned(),
            columns: &["when", "who", "did", "about", "outcome"],
            entries: entries.iter().map(entry).collect(),
            empty: "No operator has done anything since the start.",
        }
    }
}

fn override_field(kind: LimitOverride) -> PanelField {
    let text = match kind {
        LimitOverride::Off => "off".to_owned(),
        LimitOverride::Shadow => "in shadow".to_owned(),
        LimitOverride::Percent(percent) => format!("enforced for {percent} % of keys"),
    };
    PanelField::toned(text, Tone::Warn)
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

fn store_facts(before: &StoreMetrics, now: &StoreMetrics, fact: &mut impl FnMut(&str, String, Tone)) {
    let latency = |thousandths| {
        quantile(
            &before.latency.0,
            &now.latency.0,
            now.latency.1 - before.latency.1.min(now.latency.1),
            thousandths,
        )
    };
    for (name, thousandths) in
        [("half of the calls take at most", 500), ("99 % of the calls take at most", 990)]
    {
        fact(name, latency(thousandths), Tone::Plain);
    }
    let (calls, requests) =
        (now.calls - before.calls.min(now.calls), now.requests - before.requests.min(now.requests));
    fact("calls, last minute", format!("{} for {} requests", grouped(calls), grouped(requests)), Tone::Plain);
    let failed = |metrics: &StoreMetrics| metrics.failures.iter().map(|(_, count)| count).sum::<u64>();
    let failures = failed(now) - failed(before).min(failed(now));
    let tone = if failures > 0 { Tone::Bad } else { Tone::Good };
    fact("failures, last minute", grouped(failures), tone);
    for shard in now.shards.iter().take(16) {
        let is_closed = shard.state == crate::telemetry::ShardState::Closed;
        let text = format!("breaker {}, {} in flight", shard.state.name(), shard.in_flight);
        fact(&shard.address, text, if is_closed { Tone::Good } else { Tone::Bad });
    }
    if now.deferred > 0 {
        fact("counters with deferred charges", grouped(now.deferred), Tone::Warn);
    }
}

/// The upper bound of a quantile of the calls between two readings, as text.
fn quantile(before: &[(u64, u64)], now: &[(u64, u64)], calls: u64, thousandths: u64) -> String {
    if calls == 0 {
        return "no calls in the last minute".to_owned();
    }
    let wanted = (calls * thousandths).div_ceil(1_000);
    let since =
        |index: usize, count: u64| count.saturating_sub(before.get(index).map_or(0, |(_, count)| *count));
    let found = now.iter().enumerate().find(|(index, (_, count))| since(*index, *count) >= wanted);
    match (found, now.last()) {
        (Some((_, (nanos, _))), _) => format!("{} µs", grouped(nanos / 1_000)),
        (None, Some((nanos, _))) => format!("more than {} µs", grouped(nanos / 1_000)),
        (None, None) => String::new(),
    }
}

/// A rate with one digit after the point where it is small.
fn rate_text(count: u64, seconds: u64) -> String {
    let tenths = count * 10 / seconds.max(1);
    if tenths >= 100 || tenths.is_multiple_of(10) {
        return grouped(tenths / 10);
    }
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn share(part: u64, whole: u64) -> String {
    let percent = part.saturating_mul(100).checked_div(whole);
    percent.map_or_else(|| "–".to_owned(), |percent| format!("{percent} %"))
}

/// The most frequent source of a key's answers.
fn decided_by(key: &TopKey) -> String {
    let most = SOURCES.into_iter().zip(key.sources).max_by_key(|(_, count)| *count);
    most.filter(|(_, count)| *count > 0).map(|(source, _)| source.name().to_owned()).unwrap_or_default()
}

/// The sums of two counters over longer intervals, oldest first, as many as a trend has.
fn summed(one: &[u32], other: &[u32]) -> Vec<u32> {
    let both: Vec<u32> = one.iter().zip(other).map(|(one, other)| one.saturating_add(*other)).collect();
    let mut trend: Vec<u32> = both
        .rchunks(TREND_SECONDS)
        .map(|seconds| seconds.iter().fold(0_u32, |sum, count| sum.saturating_add(*count)))
        .collect();
    trend.resize(TREND_POINTS, 0);
    trend.reverse();
    trend
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are written for people.
    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            (rate_text(15, 10), rate_text(20, 10), rate_text(12_345, 10)),
            ("1.5".into(), "2".into(), "1,234".into())
        );
        assert_eq!((share(1, 3), share(1, 0)), ("33 %".to_owned(), "–".to_owned()));
    }

    /// A trend ends now, whatever was measured before.
    #[test]
    fn a_trend_ends_now() {
        let trend = summed(&[1; 20], &[1; 20]);
        assert_eq!((trend.len(), trend[59], trend[58], trend[57]), (60, 30, 10, 0));
        assert_eq!(summed(&[1; SECONDS], &[0; SECONDS]), vec![15; 60]);
    }

    /// A quantile is that of the calls between the readings, not of all calls.
    #[test]
    fn quantiles_are_of_the_last_minute() {
        let (before, now) = ([(1_000, 90), (2_000, 100)], [(1_000, 90), (2_000, 110)]);
        assert_eq!(quantile(&before, &now, 10, 500), "2 µs");
        assert_eq!(quantile(&before, &now, 20, 990), "more than 2 µs");
        assert_eq!(quantile(&before, &now, 0, 500), "no calls in the last minute");
    }
}
