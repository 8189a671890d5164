//! The bodies and queries of the admin API, each with exactly its fields, and the bounds on durations.

use serde::Deserialize;
use tollgate::policy::source::quoted;
use tollgate::{Ticks, Timestamp};

use super::past_hour::LAST_MAX;
use super::tail::TailFilter;
use crate::json_error;
use crate::problem::Problem;
use crate::request_json::Named;
use crate::time_text::duration;

/// Default duration of an override, so that a forgotten one ends on its own.
const OVERRIDE_DEFAULT: Ticks = Ticks::from_secs(3_600);
/// Maximum time that a limit is off or in shadow. A longer change belongs in the policy.
const OPEN_MAX: Ticks = Ticks::from_secs(86_400);
/// Maximum time of an override by percentage, or of a block.
const LONG_MAX: Ticks = Ticks::from_secs(30 * 86_400);
/// Minimum duration of anything: less would be over before an operator sees it.
const SHORTEST: Ticks = Ticks::from_secs(1);
/// Minimum and maximum duration of a comparison of two policies.
const COMPARISON: (Ticks, Ticks) = (Ticks::from_secs(1), Ticks::from_secs(600));
/// Maximum length of a note, in characters.
const NOTE_CHARS_MAX: usize = 200;

/// A key, by the attributes of its requests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyForm<'b> {
    #[serde(borrow)]
    pub(super) attributes: Named<'b>,
}

/// The provider whose freezes to end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ThawForm {
    pub(super) provider: String,
}

/// The key whose counters to reset.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetForm<'b> {
    #[serde(borrow)]
    pub(super) attributes: Named<'b>,
    #[serde(default)]
    pub(super) limits: Vec<String>,
}

/// The requests to block, and for how long.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockForm<'b> {
    #[serde(borrow)]
    pub(super) attributes: Named<'b>,
    r#for: String,
    note: Option<String>,
    /// Also by attributes that no request is known to have.
    #[serde(default)]
    pub(super) anyway: bool,
}

/// The limit to override, how, and for how long.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideForm {
    pub(super) limit: Option<String>,
    #[serde(default)]
    pub(super) all: bool,
    /// An overload controller instead of a limit.
    overload: Option<String>,
    pub(super) percent: Option<u8>,
    r#for: Option<String>,
    note: Option<String>,
}

/// Whether to reload even a policy that the guard refuses.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadForm {
    #[serde(default)]
    pub(super) force: bool,
}

/// Reads a body.
///
/// # Errors
/// When it does not have exactly this form.
pub(super) fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let accepted = "a JSON object with the fields that GET /v1/openapi.json lists for this path";
        Problem::invalid(json_error::explained(&error, &accepted))
    })
}

fn during(text: &str, least: Ticks, most: Ticks) -> Result<Ticks, Problem> {
    let wrong = |why: &str| {
        let days = if most > OPEN_MAX { ", or 7d" } else { "" };
        let (least, most) = (written(least), written(most));
        Problem::invalid(format!(
            "for: {} {why}; accepted: {least} to {most}, written as 90s, 10m or 1h30m{days}",
            quoted(text)
        ))
    };
    let given = duration(text).map_err(|_| wrong("is not a duration"))?;
    Some(given).filter(|given| (least..=most).contains(given)).ok_or_else(|| wrong("is out of range"))
}

/// A whole number of seconds in the largest unit that divides it. A single day is written as 24 hours.
fn written(duration: Ticks) -> String {
    let seconds = duration.ceil_seconds();
    let units = [(2 * 86_400, 86_400, "d"), (3_600, 3_600, "h"), (60, 60, "m")];
    let unit = units.iter().find(|(least, length, _)| seconds >= *least && seconds.is_multiple_of(*length));
    unit.map_or_else(|| format!("{seconds}s"), |(_, length, name)| format!("{}{name}", seconds / length))
}

/// How far `tail` looks back.
pub(super) fn past(text: &str) -> Result<Ticks, Problem> {
    duration(text).map_err(|_| {
        Problem::invalid(format!("since: {} is not a duration; accepted: 10s, 10m or 10h", quoted(text)))
    })
}

fn remark(note: Option<&String>) -> Result<&str, Problem> {
    let note = note.map_or("", String::as_str);
    if note.chars().count() > NOTE_CHARS_MAX {
        return Err(Problem::invalid(format!("note: at most {NOTE_CHARS_MAX} characters")));
    }
    Ok(note)
}

impl BlockForm<'_> {
    pub(super) fn until(&self, now: Timestamp) -> Result<Timestamp, Problem> {
        Ok(now + during(&self.r#for, SHORTEST, LONG_MAX)?)
    }

    pub(super) fn note(&self) -> Result<&str, Problem> {
        remark(self.note.as_ref())
    }
}

/// How far an override opens a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverrideEffect {
    /// Off or in shadow.
    Open,
    /// A percentage of keys.
    Share,
}

impl OverrideForm {
    /// The overload controller that the form names, if any. Then it may name nothing else.
    pub(super) fn overload(&self) -> Result<Option<&str>, Problem> {
        if self.overload.is_some() && (self.limit.is_some() || self.all || self.percent.is_some()) {
            return Err(Problem::invalid("overload: names a controller, or all, and stands beside no limit"));
        }
        Ok(self.overload.as_deref())
    }

    pub(super) fn until(&self, effect: OverrideEffect, now: Timestamp) -> Result<Timestamp, Problem> {
        let most = match effect {
            OverrideEffect::Open => OPEN_MAX,
            OverrideEffect::Share => LONG_MAX,
        };
        let given = self.r#for.as_ref().map(|text| during(text, SHORTEST, most)).transpose()?;
        Ok(now + given.unwrap_or(OVERRIDE_DEFAULT))
    }

    pub(super) fn note(&self) -> Result<&str, Problem> {
        remark(self.note.as_ref())
    }
}

/// Which decisions `tail` shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailChoice {
    pub(super) filter: TailFilter,
    /// How far it looks back, for denials.
    pub(super) since: Option<Ticks>,
}

/// Which nodes of a fleet a view is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ViewScope {
    /// The node that is asked.
    This,
    /// All nodes.
    Fleet,
    /// All nodes, if there is more than one.
    Auto,
    /// The node with this name or id.
    Node(String),
}

/// The parameters of a path, each at most once.
pub(super) struct Query<'q>(Vec<(&'q str, &'q str)>);

impl<'q> Query<'q> {
    /// Reads a query that may have these parameters.
    pub(super) fn read(text: Option<&'q str>, accepted: &[&str]) -> Result<Self, Problem> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for part in text.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if !accepted.contains(&name) || pairs.iter().any(|(known, _)| *known == name) {
                let detail = format!("the query accepts each of these once: {}", accepted.join(", "));
                return Err(Problem::invalid(detail));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    fn get(&self, name: &str) -> Option<&'q str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// A number from 1 to `most`.
    pub(super) fn number(&self, name: &str, default: usize, most: usize) -> Result<usize, Problem> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| Problem::invalid(format!("{name}: accepted: 1 to {most}")))
    }

    /// A parameter that is `true` or `false`.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(_) => Err(Problem::invalid(format!("{name}: accepted: true and false"))),
        }
    }

    /// Which nodes a view is about.
    pub(super) fn scope(&self) -> Result<ViewScope, Problem> {
        match (self.get("fleet"), self.get("node")) {
            (None | Some("false"), None) | (None, Some("this")) => Ok(ViewScope::This),
            (Some("true" | ""), None) => Ok(ViewScope::Fleet),
            (Some("auto"), None) => Ok(ViewScope::Auto),
            (None, Some(node)) => Ok(ViewScope::Node(node.to_owned())),
            (Some(_), None) => Err(Problem::invalid("fleet: accepted: true, false and auto")),
            (Some(_), Some(_)) => Err(Problem::invalid("node and fleet: give one of them")),
        }
    }

    /// Which decisions `tail` shows.
    pub(super) fn tail(&self) -> Result<TailChoice, Problem> {
        let filter = match (self.flag("denied")?, self.flag("would_deny")?) {
            (false, false) => TailFilter::All,
            (true, false) => TailFilter::Denied,
            (false, true) => TailFilter::WouldDeny,
            (true, true) => return Err(Problem::invalid("denied and would_deny: give one of them")),
        };
        let Some(text) = self.get("since") else { return Ok(TailChoice { filter, since: None }) };
        if filter == TailFilter::All {
            return Err(Problem::invalid(
                "since: only denials are remembered, and what a limit in shadow would have denied; give denied=true or \
                 would_deny=true with it",
            ));
        }
        Ok(TailChoice { filter, since: Some(past(text)?) })
    }

    /// How far to look back at requests, if at all.
    pub(super) fn last(&self) -> Result<Option<Ticks>, Problem> {
        let Some(text) = self.get("last") else { return Ok(None) };
        let given = duration(text).ok().filter(|given| (SHORTEST..=LAST_MAX).contains(given));
        given.map(Some).ok_or_else(|| Problem::invalid("last: accepted: 1s to 1h, written as 90s or 10m"))
    }

    /// How long to compare, if at all.
    pub(super) fn comparison(&self) -> Result<Option<Ticks>, Problem> {
        self.get("for").map(|text| during(text, COMPARISON.0, COMPARISON.1)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// An override that opens a limit lasts an hour by default and a day at most. No override lasts for ever.
    #[test]
    fn overrides_end() {
        let until = |text: &str, effect| {
            let form: OverrideForm = read(text.as_bytes()).unwrap();
            form.until(effect, T0).map(|until| until.since(T0).ceil_seconds())
        };
        assert_eq!(until(r#"{"limit":"a"}"#, OverrideEffect::Open), Ok(3_600));
        assert_eq!(until(r#"{"limit":"a","for":"24h"}"#, OverrideEffect::Open), Ok(86_400));
        assert!(until(r#"{"limit":"a","for":"25h"}"#, OverrideEffect::Open).is_err());
        assert_eq!(until(r#"{"limit":"a","for":"25h"}"#, OverrideEffect::Share), Ok(90_000));
        for wrong in ["0s", "-1m", "1", "soon", "999999h"] {
            let error =
                until(&format!(r#"{{"limit":"a","for":"{wrong}"}}"#), OverrideEffect::Share).unwrap_err();
            assert!(error.detail.contains("accepted"), "{wrong}: {error:?}");
        }
    }

    /// Unknown fields and parameters are refused, not ignored.
    #[test]
    fn nothing_unknown_is_ignored() {
        assert!(read::<OverrideForm>(br#"{"limit":"a","until":"x"}"#).is_err());
        assert!(read::<KeyForm<'_>>(br#"{"attributes":{"a":"1","a":"2"}}"#).is_err());
        assert!(Query::read(Some("limit=5&x=1"), &["limit"]).is_err());
        assert!(Query::read(Some("limit=5&limit=6"), &["limit"]).is_err());
        assert_eq!(Query::read(Some("limit=5"), &["limit"]).unwrap().number("limit", 9, 10), Ok(5));
    }
}
