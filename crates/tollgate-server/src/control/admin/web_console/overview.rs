//! The overview: everything that the console shows at one instant, as tables of text.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use tollgate::time::WallOffset;
use tollgate::{LimitOverride, Timestamp};

use super::super::overload;
use super::counts::{Counts, NodeCounts};
use super::panel::{Fact, Panel, Tone};
use super::recorder::Recorder;
use super::sentence::{instant, override_text};
use crate::control::ControlPlane;
use crate::fleet::NodeState;
use crate::readiness::Audience;
use crate::service::Service;
use crate::text::counted;
use crate::time_text::{clock_text, people};

/// How many seconds a rate is averaged over.
pub(super) const RATE_SECONDS: usize = 10;

/// Everything that is shown at one instant.
#[derive(Serialize)]
pub(super) struct Overview {
    pub(super) at: String,
    pub(super) strip: Vec<Fact>,
    /// Decisions of the last second by verdict.
    rates: Counts,
    /// Outcomes of the last second by limit, for those with a history.
    limits: BTreeMap<String, Counts>,
    pub(super) panels: Vec<Panel>,
}

/// The state that panels are built from.
pub(super) struct OverviewSource<'a> {
    pub(super) control: &'a ControlPlane,
    pub(super) recorder: &'a Recorder,
    /// The sums over this node and the others that answered.
    pub(super) numbers: NodeCounts,
    pub(super) now: Timestamp,
    pub(super) wall: WallOffset,
}

/// The overview of this instant. `None` before the first measurement.
pub(super) fn overview(control: &ControlPlane) -> Option<Overview> {
    let (now, wall) = (control.service.now(), control.service.engine.maintenance().wall());
    let recorder = control.web_console.recorder();
    let recorder = recorder.as_ref()?;
    let mut numbers = NodeCounts::of(control, recorder);
    let others = recorder.others.nodes.iter().filter_map(|node| node.numbers.as_ref().ok());
    others.cloned().for_each(|other| numbers.add(other));
    let source = OverviewSource { control, recorder, numbers, now, wall };
    Some(Overview {
        at: instant(now, wall),
        strip: source.strip(),
        rates: source.numbers.verdicts.iter().map(|(name, counts)| (name.clone(), counts.second)).collect(),
        limits: source
            .numbers
            .limits
            .iter()
            .map(|(name, limit)| (name.clone(), limit.second.clone()))
            .collect(),
        panels: source.panels(),
    })
}

/// The names of the limits that decide.
pub(super) fn limit_names(service: &Service) -> Vec<String> {
    match service.compat() {
        Some(compat) => compat.rules.metrics().into_iter().map(str::to_owned).collect(),
        None => service.engine.policy().limits().iter().map(|limit| limit.name().to_owned()).collect(),
    }
}

impl OverviewSource<'_> {
    /// The facts that say whether anything is wrong.
    fn strip(&self) -> Vec<Fact> {
        let report = self.control.report(Audience::Admitted);
        let report = serde_json::to_value(&report).unwrap_or_default();
        let mut facts =
            vec![status(&report), self.store_fact(&report), self.source_fact(), self.policy_fact()];
        facts.push(self.operators_fact());
        let up = people(self.now.since(self.control.service.started_at).ceil_seconds() * 1_000);
        let text = format!("{}, up {up}", env!("CARGO_PKG_VERSION"));
        facts.push(Fact { name: "version", text, tone: Tone::Plain });
        facts.extend(self.nodes_fact());
        facts.extend(self.clocks_fact());
        facts
    }

    /// The changes of operators over the policy.
    fn operators_fact(&self) -> Fact {
        let operator = self.control.service.engine.operator();
        let (all, single) = operator.overrides(self.now).list();
        let mut parts: Vec<String> =
            all.iter().map(|ruled| format!("all limits {}", override_text(ruled.kind))).collect();
        let count = |is_meant: fn(LimitOverride) -> bool| {
            single.iter().filter(|(_, ruled)| is_meant(ruled.kind)).count()
        };
        let kinds = [
            (count(|kind| kind == LimitOverride::Off), "off"),
            (count(|kind| kind == LimitOverride::Shadow), "in shadow"),
            (count(|kind| matches!(kind, LimitOverride::Percent(_))), "for a share of keys"),
        ];
        let overridden = kinds.into_iter().filter(|(limits, _)| *limits > 0);
        parts.extend(overridden.map(|(limits, how)| format!("{} {how}", counted(limits, "limit"))));
        let controllers = overload::overridden(self.control.service.shedder(), self.now).len();
        parts.extend((controllers > 0).then(|| format!("{} overridden", counted(controllers, "controller"))));
        let tone = if parts.is_empty() { Tone::Plain } else { Tone::Warn };
        if parts.is_empty() {
            parts.push("no overrides".to_owned());
        }
        parts.push(counted(operator.blocks(self.now).len(), "block"));
        Fact { name: "operators", text: parts.join(", "), tone }
    }

    /// Whether the clocks of the nodes are in step, by which blocks and overrides end.
    fn clocks_fact(&self) -> Option<Fact> {
        let roster = self.recorder.roster.as_ref()?;
        let nodes = roster.nodes.iter().filter(|node| node.state != NodeState::Lost);
        let known = nodes.filter_map(|node| Some((node, node.clock_ms?)));
        let (node, ms) = known.max_by_key(|(_, ms)| ms.unsigned_abs())?;
        Some(match clock_text(ms) {
            None => Fact { name: "clocks", text: "in step".to_owned(), tone: Tone::Good },
            Some(text) => Fact {
                name: "clocks",
                text: format!("{} is {text} of the store's", node.name),
                tone: Tone::Warn,
            },
        })
    }

    /// How many nodes the numbers are of, where there are several.
    fn nodes_fact(&self) -> Option<Fact> {
        let others = &self.recorder.others;
        let all = others.nodes.len() + 1;
        let silent: Vec<&str> =
            others.nodes.iter().filter(|node| node.numbers.is_err()).map(|node| node.name.as_str()).collect();
        let without =
            if silent.is_empty() { String::new() } else { format!("; without {}", silent.join(", ")) };
        let text = format!("sums over {} of {all}{without}", others.answered() + 1);
        let tone = if silent.is_empty() { Tone::Good } else { Tone::Bad };
        (all > 1).then_some(Fact { name: "nodes", text, tone })
    }

    fn store_fact(&self, report: &Value) -> Fact {
        let store = &report["store"];
        let Some(place) = store["place"].as_str() else {
            let full = report["memory"]["error"]["text"].as_str();
            let text = full.map_or_else(|| "memory of this server".to_owned(), str::to_owned);
            return Fact { name: "store", text, tone: if full.is_some() { Tone::Bad } else { Tone::Good } };
        };
        let nodes = self.recorder.store(1).map_or(0, |(_, now)| now.nodes);
        let nodes = if nodes > 0 { format!(", {}", sharing(nodes)) } else { String::new() };
        match store["since"].as_str() {
            Some(since) => {
                Fact { name: "store", text: format!("{place} is away since {since}"), tone: Tone::Bad }
            }
            None => Fact { name: "store", text: format!("{place} answers{nodes}"), tone: Tone::Good },
        }
    }

    /// Where the answers of the last seconds came from.
    fn source_fact(&self) -> Fact {
        let counts = &self.numbers.sources;
        let total: u64 = counts.values().sum();
        let mut shares: Vec<(u64, &str)> =
            counts.iter().map(|(name, count)| (*count, name.as_str())).collect();
        shares.sort_by(|one, other| other.cmp(one));
        let share = |(count, name): (u64, &str)| match (count * 100).checked_div(total).unwrap_or(0) {
            0 => format!("{name} < 1 %"),
            percent => format!("{name} {percent} %"),
        };
        let there = shares.into_iter().filter(|(count, _)| *count > 0);
        let text: Vec<String> = there.map(share).take(3).collect();
        let text = if text.is_empty() { "no decisions in 10 s".to_owned() } else { text.join(", ") };
        let is_degraded = text.contains("local") || text.contains("open") || text.contains("closed");
        Fact { name: "decided by", text, tone: if is_degraded { Tone::Warn } else { Tone::Plain } }
    }

    fn policy_fact(&self) -> Fact {
        let status = self.control.reloader.status();
        let age = people(self.now.since(status.loaded_at).ceil_seconds() * 1_000);
        let version = status.version.map(|version| format!(" {}", version.short())).unwrap_or_default();
        let text = format!("{}{version}, active for {age}", status.name);
        match status.trouble() {
            None => match self.nodes_with_another_policy() {
                0 => Fact { name: "policy", text, tone: Tone::Plain },
                others => {
                    let text = format!("{text}; another one is active on {}", counted(others, "node"));
                    Fact { name: "policy", text, tone: Tone::Warn }
                }
            },
            Some(failure) => Fact {
                name: "policy",
                text: format!("the file is not active: {}", failure.text),
                tone: Tone::Bad,
            },
        }
    }

    /// How many living nodes decide by another policy than this one.
    fn nodes_with_another_policy(&self) -> usize {
        let nodes = self.recorder.roster.iter().flat_map(|roster| &roster.nodes);
        let living = || nodes.clone().filter(|node| node.state == NodeState::Ok);
        let own = living().find(|node| node.is_this).and_then(|node| node.policy.as_ref());
        living().filter(|node| node.policy.is_some() && node.policy.as_ref() != own).count()
    }
}

/// How many servers share the store.
fn sharing(nodes: u64) -> String {
    match nodes {
        1 => "1 server shares it".to_owned(),
        nodes => format!("{nodes} servers share it"),
    }
}

fn status(report: &Value) -> Fact {
    let text = report["status"].as_str().unwrap_or_default().to_owned();
    let tone = if text == "ok" { Tone::Good } else { Tone::Bad };
    Fact { name: "server", text, tone }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: the console said "1 servers share it".
    #[test]
    fn one_server_shares_its_store() {
        assert_eq!(sharing(1), "1 server shares it");
        assert_eq!(sharing(2), "2 servers share it");
    }
}
