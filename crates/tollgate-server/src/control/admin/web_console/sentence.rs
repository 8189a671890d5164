//! Answers of the admin API as sentences: first the one that matters, then one for each limit.

use serde_json::Value;
use tollgate::time::WallOffset;
use tollgate::{LimitOverride, Ticks, Timestamp};

use super::super::route::Verb;
use super::intent::{Intent, Subject};
use super::panel::Tone;
use crate::text::{counted, grouped};
use crate::time_text::{people, rfc3339};

/// The answer to an operator.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sentences {
    pub(super) first: String,
    pub(super) tone: Tone,
    pub(super) more: Vec<String>,
}

/// An instant as people read it, to the second.
pub(super) fn instant(at: Timestamp, wall: WallOffset) -> String {
    to_the_second(&rfc3339(at, wall))
}

/// An instant in RFC 3339 without the parts of a second.
fn to_the_second(instant: &str) -> String {
    match instant.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => instant.to_owned(),
    }
}

/// The effect of an override, in words.
pub(super) fn override_text(kind: LimitOverride) -> String {
    match kind {
        LimitOverride::Off => "off".to_owned(),
        LimitOverride::Shadow => "in shadow".to_owned(),
        LimitOverride::Percent(percent) => format!("enforced for {percent} % of keys"),
    }
}

/// The moment of an answer.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) wall: WallOffset,
}

impl Moment {
    /// When so many milliseconds have passed, as an instant and as a duration.
    fn after(self, millis: u64) -> String {
        let at = instant(self.now + Ticks::from_millis(millis), self.wall);
        format!("at {at}, in {}", people(millis))
    }
}

/// The sentences of an answer.
pub(super) fn sentences(intent: &Intent, answer: &Value, moment: Moment) -> Sentences {
    let subject = intent.subject.title();
    let until = text(answer, "until");
    let (first, tone) = match intent.verb {
        Verb::Explain => {
            let meant = match &intent.subject {
                Subject::Key { limit, .. } => limit.as_deref(),
                _ => None,
            };
            return explained(answer, meant, moment);
        }
        Verb::Block => (format!("{subject} is blocked until {until}"), Tone::Warn),
        Verb::Unblock if answer["unblocked"] == true => {
            (format!("{subject} is no longer blocked"), Tone::Good)
        }
        Verb::Unblock => (format!("there was no block of {subject}"), Tone::Plain),
        Verb::Reset => (reset(answer), if answer["counters"] == 0 { Tone::Plain } else { Tone::Good }),
        Verb::Kill => (format!("{subject}: off until {until}"), Tone::Warn),
        Verb::Shadow => (format!("{subject}: in shadow until {until}"), Tone::Warn),
        Verb::Percent => {
            (format!("{subject}: enforced for {} % of keys until {until}", answer["percent"]), Tone::Warn)
        }
        _ if answer["restored"] == true => (format!("{subject}: restored"), Tone::Good),
        _ => (format!("{subject}: there was no override"), Tone::Plain),
    };
    let mut more = Vec::new();
    for other in list(answer, "milder").iter().chain(list(answer, "still_overridden")) {
        let name = other["limit"].as_str().unwrap_or("all limits");
        more.push(format!("{name}: {} until {} holds, too", text(other, "override"), text(other, "until")));
    }
    let [warning, notice] = ["warning", "notice"].map(|name| answer[name].as_str().map(str::to_owned));
    // A notice about anything but the whole fleet says what did not reach the other nodes.
    let is_partial = warning.is_some() || (notice.is_some() && answer["scope"] != "fleet");
    more.extend(warning.into_iter().chain(notice));
    let tone = if is_partial { Tone::Warn } else { tone };
    Sentences { first, tone, more }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn names(value: &Value, name: &str) -> String {
    list(value, name).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

fn reset(answer: &Value) -> String {
    match answer["counters"].as_u64() {
        Some(0) | None => "no counter existed, so nothing was reset".to_owned(),
        Some(1) => format!("1 counter was reset: {}", names(answer, "limits")),
        Some(counters) => format!("{counters} counters were reset: {}", names(answer, "limits")),
    }
}

/// Whether a request with these attributes is limited. `meant` is the limit of the row that was opened.
fn explained(answer: &Value, meant: Option<&str>, moment: Moment) -> Sentences {
    let limits = list(answer, "limits");
    let applying = limits.iter().filter(|limit| limit["applies"] == true);
    let denies = |state: &Value| state["allowed"] == false && state["mode"] == "enforce";
    let is_used_up = |limit: &Value| denies(counter_of(limit)) && counter_of(limit)["remaining"] == 0;
    let of_row = limits.iter().find(|limit| Some(text(limit, "name")) == meant && is_used_up(limit));
    let open = limits.iter().find(|limit| denies(&limit["counter"]));
    let denying = applying.clone().find(|limit| denies(&limit["state"]));
    let (first, tone) = if let Some(reason) = answer["blocked"].as_str() {
        (format!("Yes, it is denied: {reason}."), Tone::Bad)
    } else if let Some(limit) = of_row {
        (format!("Yes, {}.", denied_by(limit, moment)), Tone::Bad)
    } else if let Some(fault) = answer["fault"].as_str() {
        // The key of a counter has fewer attributes than the requests that it counts.
        (format!("A request with these attributes and no others is refused: {fault}."), Tone::Warn)
    } else if let Some(limit) = denying {
        (format!("Yes, {}.", denied_by(limit, moment)), Tone::Bad)
    } else if let Some(limit) = open {
        let names = missing(answer, text(limit, "name"));
        (format!("That depends on {names}: where it applies, {}.", denied_by(limit, moment)), Tone::Bad)
    } else if answer["allowed"] == true {
        all_clear(answer, meant)
    } else if answer["allowed"] == false {
        ("Yes, such a request is denied now.".to_owned(), Tone::Bad)
    } else {
        ("Whether it passes depends on the limit that the call brings.".to_owned(), Tone::Plain)
    };
    let mut more: Vec<String> = answer["doubt"].as_str().map(str::to_owned).into_iter().collect();
    more.extend(list(answer, "incomplete").iter().map(|limit| {
        format!(
            "incomplete: whether {} applies depends on {}",
            text(limit, "limit"),
            joined(limit, "depends_on")
        )
    }));
    more.extend(applying.map(|limit| applied(limit, &limit["state"], moment)));
    for limit in limits.iter().filter(|limit| limit["applies"] != true) {
        let counter = &limit["counter"];
        if counter.is_object() {
            more.push(format!("where it applies, {}", applied(limit, counter, moment)));
        }
        more.push(format!("limit {} does not apply: {}", text(limit, "name"), unapplied(limit)));
    }
    if answer["unknown_credential"] == true {
        more.push(
            "the callers file does not know this credential: such a request counts by its ip".to_owned(),
        );
    }
    if let Some(at) = answer["denials_forgotten_until"].as_str() {
        more.push(format!(
            "no denial of it is remembered; keys that were last denied before {} may be forgotten",
            to_the_second(at)
        ));
    }
    Sentences { first, tone, more }
}

/// The reason why a limit does not apply.
fn unapplied(limit: &Value) -> String {
    let unmet = Some(names(limit, "unmet")).filter(|unmet| !unmet.is_empty());
    let reason = unmet.or_else(|| overridden(limit)).unwrap_or_else(|| joined(limit, "what_would_change_it"));
    if reason.is_empty() { "it is off".to_owned() } else { reason }
}

/// The override by which a limit does not deny requests that it is about.
fn overridden(limit: &Value) -> Option<String> {
    let ruled = &limit["effective_override"];
    let is_meant = limit["applies"] == true || list(limit, "unmet").is_empty();
    let is_weak = ruled.is_object() && is_meant && limit["state"]["mode"] != "enforce";
    let effect = match text(ruled, "override") {
        "off" => "turned it off".to_owned(),
        "shadow" => "put it in shadow".to_owned(),
        _ => format!("had it enforced for {} % of keys, and not for this one,", ruled["percent"]),
    };
    is_weak.then(|| format!("an operator {effect} until {}", to_the_second(text(ruled, "until"))))
}

/// The sentence about a request that passes now. It is good news only if nothing is in doubt, no operator has weakened a
/// limit of it, and no such request was denied in the last two minutes.
fn all_clear(answer: &Value, meant: Option<&str>) -> (String, Tone) {
    let given = &answer["as_given"];
    let open = list(answer, "incomplete").iter().find(|limit| Some(text(limit, "limit")) != meant);
    let limits = list(answer, "limits").iter();
    let recent = limits.clone().find(|limit| limit["last_denied"]["denials"].is_u64());
    let tiers = limits.clone().find(|limit| !list(counter_of(limit), "open_tiers").is_empty());
    if let Some((limit, why)) = limits.clone().find_map(|limit| Some((limit, overridden(limit)?))) {
        let name = text(limit, "name");
        return (format!("Such a request passes now, and limit {name} does not deny it: {why}."), Tone::Warn);
    }
    if let Some(limit) = recent {
        let (name, last) = (text(limit, "name"), last_denied(limit).unwrap_or_default());
        return (format!("Such a request passes now, but limit {name} has denied some: {last}."), Tone::Warn);
    }
    if let Some(doubt) = answer["doubt"].as_str() {
        return (format!("Perhaps not: {doubt}. By the other attributes it passes now."), Tone::Warn);
    }
    if let Some(limit) = open {
        let (name, names) = (text(limit, "limit"), joined(limit, "depends_on"));
        let sentence = format!(
            "Perhaps not: with these attributes alone it passes now; whether limit {name} applies depends on {names}."
        );
        return (sentence, Tone::Warn);
    }
    if let Some(limit) = tiers {
        let (name, names) = (text(limit, "name"), joined(counter_of(limit), "open_tiers"));
        let sentence =
            format!("Perhaps not: without {names} it passes now, and with one limit {name} counts it apart.");
        return (sentence, Tone::Warn);
    }
    if given["allowed"] == false {
        let by = names(given, "limits");
        return (
            format!(
                "As the gateway reads it, it passes now; sent unchanged to /v1/check, RLS or RESP it is denied: {by}."
            ),
            Tone::Warn,
        );
    }
    let last = limits.clone().find_map(last_denied).map_or_else(String::new, |last| format!("; {last}"));
    let of_meant = limits.clone().find(|limit| Some(text(limit, "name")) == meant);
    let counter = of_meant.map(|limit| &limit["counter"]).filter(|counter| counter.is_object());
    let why = match counter {
        Some(counter) => format!(": limit {} has {}", meant.unwrap_or_default(), left(counter)),
        None if answer["no_limit_applies"] == true => ": no limit applies to it".to_owned(),
        None => String::new(),
    };
    (format!("No, such a request passes now{why}{last}."), Tone::Good)
}

/// The counter of a limit that applies, or may apply to a request with further attributes.
fn counter_of(limit: &Value) -> &Value {
    if limit["applies"] == true { &limit["state"] } else { &limit["counter"] }
}

/// Which limit denies, and until when.
fn denied_by(limit: &Value, moment: Moment) -> String {
    let state = counter_of(limit);
    let wait = state["retry_after_ms"].as_u64().or(state["next_unit_after_ms"].as_u64());
    let end = wait.map_or_else(String::new, |wait| format!("; it passes again {}", moment.after(wait)));
    format!("limit {} denies it: {}{end}", text(limit, "name"), left(state))
}

/// The attributes that decide whether a limit applies.
fn missing(answer: &Value, limit: &str) -> String {
    let found = list(answer, "incomplete").iter().find(|incomplete| text(incomplete, "limit") == limit);
    found.map_or_else(|| "the other attributes".to_owned(), |found| joined(found, "depends_on"))
}

fn joined(value: &Value, name: &str) -> String {
    list(value, name).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" and ")
}

/// The latest denial by a limit, if it is remembered.
fn last_denied(limit: &Value) -> Option<String> {
    let last = &limit["last_denied"];
    let (at, ago) =
        (to_the_second(last["at"].as_str()?), people(last["ago_ms"].as_u64().unwrap_or_default()));
    let recent = last["denials"].as_u64().zip(last["since"].as_str());
    let recent = recent.map_or_else(String::new, |(denials, since)| {
        let since = to_the_second(since);
        format!(", {} since {since}", counted(usize::try_from(denials).unwrap_or(usize::MAX), "denial"))
    });
    Some(format!("last denied at {at}, {ago} ago{recent}"))
}

fn left(state: &Value) -> String {
    match (state["remaining"].as_u64(), state["limit"].as_u64()) {
        (Some(remaining), Some(limit)) => format!("{} of {} left", grouped(remaining), grouped(limit)),
        _ if state["allowed"] == true => "it counts nothing".to_owned(),
        _ => "its rate is deny".to_owned(),
    }
}

fn applied(limit: &Value, state: &Value, moment: Moment) -> String {
    let back = match state["reset_after_ms"].as_u64() {
        Some(0) | None => String::new(),
        Some(wait) => format!(", all back {}", moment.after(wait)),
    };
    let mode = if state["mode"] == "enforce" { "" } else { ", in shadow" };
    let ruled = overridden(limit).map_or_else(String::new, |why| format!("; {why}"));
    let last = last_denied(limit).map_or_else(String::new, |last| format!("; {last}"));
    let (name, left, source) = (text(limit, "name"), left(state), text(state, "source"));
    format!("limit {name}: {left}{back}{mode} ({source}){ruled}{last}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::form::FormFields;
    use super::*;

    const NOW: Moment = Moment { now: Timestamp::from_unix_seconds(1_700_000_000), wall: WallOffset::NONE };

    fn first_sentence(form: &str, answer: &Value) -> String {
        let intent = Intent::read(&FormFields::read(form.as_bytes()).unwrap()).unwrap();
        sentences(&intent, answer, NOW).first
    }

    /// A denial names its limit and the instant at which it ends.
    #[test]
    fn a_denial_ends_at_an_instant() {
        let answer = json!({ "allowed": false, "limits": [{ "name": "per-key", "applies": true, "state": {
            "allowed": false, "mode": "enforce", "limit": 5, "remaining": 0, "next_unit_after_ms": 720_000,
            "reset_after_ms": 3_600_000, "source": "exact" } }] });
        let intent = Intent::read(&FormFields::read(b"verb=explain&key=api_key%3Dk").unwrap()).unwrap();
        let Sentences { first, tone, more } = sentences(&intent, &answer, NOW);
        assert_eq!(
            first,
            "Yes, limit per-key denies it: 0 of 5 left; it passes again at 2023-11-14T22:25:20Z, in 12 min."
        );
        assert_eq!(tone, Tone::Bad);
        assert_eq!(more, ["limit per-key: 0 of 5 left, all back at 2023-11-14T23:13:20Z, in 1 h (exact)"]);
    }

    /// The story: a key whose limit needs one more attribute for its cost was said to be limited, although none of its
    /// requests was refused.
    #[test]
    fn a_key_is_not_a_whole_request() {
        let answer = json!({ "allowed": false, "fault": "limit tokens: its cost cannot be computed" });
        let intent = Intent::read(&FormFields::read(b"verb=explain&key=tenant%3Dt").unwrap()).unwrap();
        let Sentences { first, tone, .. } = sentences(&intent, &answer, NOW);
        assert!(first.starts_with("A request with these attributes and no others is refused"), "{first}");
        assert_eq!(tone, Tone::Warn);
    }

    /// Good news is good only if nothing is in doubt, and no such request was denied a moment ago.
    #[test]
    fn an_all_clear_has_no_doubt() {
        let intent = Intent::read(&FormFields::read(b"verb=explain&key=ip%3Dx&limit=a").unwrap()).unwrap();
        let state =
            json!({ "allowed": true, "mode": "enforce", "limit": 5, "remaining": 4, "source": "exact" });
        let answer = json!({ "allowed": true, "limits": [{ "name": "a", "applies": true, "state": state }] });
        let with = |name: &str, value: Value| {
            let mut answer = answer.clone();
            answer[name] = value;
            answer
        };
        let of_limit = |name: &str, value: Value| {
            let mut answer = answer.clone();
            answer["limits"][0][name] = value;
            answer
        };
        let last = |denials: Value| {
            json!({ "at": "2023-11-14T22:08:20.000Z", "ago_ms": 300_000, "denials": denials,
                    "since": "2023-11-14T22:08:00.000Z" })
        };
        let mut open = state.clone();
        open["open_tiers"] = json!(["plan"]);
        for (answer, tone, words) in [
            (answer.clone(), Tone::Good, "No, such a request passes now."),
            (of_limit("last_denied", last(Value::Null)), Tone::Good, "; last denied at 2023-11-14T22:08:20Z"),
            (of_limit("last_denied", last(json!(14))), Tone::Warn, "limit a has denied some: last denied at"),
            (of_limit("state", open), Tone::Warn, "without plan it passes now"),
            (with("doubt", json!("no limit uses adress")), Tone::Warn, "Perhaps not: no limit uses adress."),
            (
                with("incomplete", json!([{ "limit": "b", "depends_on": ["method", "path"] }])),
                Tone::Warn,
                "whether limit b applies depends on method and path",
            ),
            (with("as_given", json!({ "allowed": false, "limits": ["b"] })), Tone::Warn, "it is denied: b."),
        ] {
            let given = sentences(&intent, &answer, NOW);
            assert_eq!(given.tone, tone, "{given:?}");
            assert!(given.first.contains(words), "{given:?}");
        }
    }

    /// The story: of a limit that an operator had turned off the answer was green, and it gave no reason: "limit a does not
    /// apply: ". An override is named with its end, and the answer is yellow.
    #[test]
    fn an_override_is_the_reason() {
        let intent = Intent::read(&FormFields::read(b"verb=explain&key=ip%3Dx&limit=a").unwrap()).unwrap();
        let until = "2023-11-14T22:23:20.757Z";
        let state =
            json!({ "allowed": true, "mode": "shadow", "limit": 5, "remaining": 4, "source": "exact" });
        let of = |limit: Value| sentences(&intent, &json!({ "allowed": true, "limits": [limit] }), NOW);
        let off = json!({ "name": "a", "applies": false, "unmet": [], "mode": "off",
            "effective_override": { "override": "off", "until": until } });
        let given = of(off.clone());
        let why = "an operator turned it off until 2023-11-14T22:23:20Z";
        let first = format!("Such a request passes now, and limit a does not deny it: {why}.");
        assert_eq!((given.first, given.tone), (first, Tone::Warn));
        assert_eq!(given.more, [format!("limit a does not apply: {why}")]);
        let shadow = json!({ "name": "a", "applies": true, "mode": "shadow", "state": state,
            "effective_override": { "override": "shadow", "until": until } });
        let given = of(shadow);
        assert_eq!(given.tone, Tone::Warn);
        let why = "an operator put it in shadow until 2023-11-14T22:23:20Z";
        assert!(given.more[0].ends_with(&format!("in shadow (exact); {why}")), "{given:?}");
        let mut half = json!({ "name": "a", "applies": true, "mode": "enforce", "percent": 50, "state": state,
            "effective_override": { "override": "percent", "percent": 50, "until": until } });
        assert!(
            of(half.clone()).first.contains("had it enforced for 50 % of keys, and not for this one, until")
        );
        half["state"]["mode"] = json!("enforce");
        assert_eq!(of(half).tone, Tone::Good);
        // An override of a limit that is not about the request changes nothing.
        let mut elsewhere = off;
        elsewhere["unmet"] = json!(["path is /b, not /a"]);
        let given = of(elsewhere);
        assert_eq!((given.tone, &*given.more[0]), (Tone::Good, "limit a does not apply: path is /b, not /a"));
        let planned = json!({ "name": "a", "applies": false, "unmet": [], "mode": "off",
            "what_would_change_it": ["its mode is off"] });
        assert_eq!(of(planned).more, ["limit a does not apply: its mode is off"]);
    }

    /// Each verb has its sentence, and none claims more than was done.
    #[test]
    fn answers_are_sentences() {
        let key = "key=api_key%3Dk";
        assert_eq!(
            first_sentence(&format!("verb=reset&{key}"), &json!({"counters": 0})),
            "no counter existed, so nothing was reset"
        );
        assert_eq!(
            first_sentence(&format!("verb=reset&{key}"), &json!({"counters": 1, "limits": ["a"]})),
            "1 counter was reset: a"
        );
        assert_eq!(
            first_sentence(&format!("verb=unblock&{key}"), &json!({"unblocked": false})),
            "there was no block of api_key=k"
        );
        assert_eq!(first_sentence("verb=kill&limit=a", &json!({"until": "T"})), "limit a: off until T");
        assert_eq!(
            first_sentence("verb=restore&all=true", &json!({"restored": true})),
            "all limits: restored"
        );
    }
}
