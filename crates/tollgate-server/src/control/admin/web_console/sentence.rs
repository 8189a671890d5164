//! Answers of the admin API as sentences: first the one that matters, then one for each limit.

use serde_json::Value;
use tollgate::time::WallOffset;
use tollgate::{Ticks, Timestamp};

use super::super::route::Verb;
use super::intent::Intent;
use super::panel::Tone;
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
    let text = rfc3339(at, wall);
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
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
        Verb::Explain => return explained(answer, moment),
        Verb::Block => (format!("{subject} is blocked until {until}"), Tone::Warn),
        Verb::Unblock if answer["unblocked"] == true => {
            (format!("{subject} is no longer blocked"), Tone::Good)
        }
        Verb::Unblock => (format!("there was no block of {subject}"), Tone::Plain),
        Verb::Reset => (reset(answer), Tone::Good),
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
    for name in ["warning", "notice"] {
        more.extend(answer[name].as_str().map(str::to_owned));
    }
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

fn explained(answer: &Value, moment: Moment) -> Sentences {
    let limits = list(answer, "limits");
    let applying = limits.iter().filter(|limit| limit["applies"] == true);
    let denies = |limit: &&Value| limit["state"]["allowed"] == false && limit["state"]["mode"] == "enforce";
    let (first, tone) = if let Some(reason) = answer["blocked"].as_str().or(answer["fault"].as_str()) {
        (format!("Yes, it is denied: {reason}."), Tone::Bad)
    } else if answer["allowed"] == true {
        let why = if answer["no_limit_applies"] == true { ": no limit applies to it" } else { "" };
        (format!("No, such a request passes now{why}."), Tone::Good)
    } else if let Some(limit) = applying.clone().find(denies) {
        let name = text(limit, "name");
        let state = &limit["state"];
        let wait = state["retry_after_ms"].as_u64().or(state["next_unit_after_ms"].as_u64());
        let end = wait.map_or_else(String::new, |wait| format!("; it passes again {}", moment.after(wait)));
        (format!("Yes, limit {name} denies it: {}{end}.", left(state)), Tone::Bad)
    } else if answer["allowed"] == false {
        ("Yes, such a request is denied now.".to_owned(), Tone::Bad)
    } else {
        ("Whether it passes depends on the limit that the call brings.".to_owned(), Tone::Plain)
    };
    let mut more: Vec<String> = applying.map(|limit| applied(limit, moment)).collect();
    for limit in limits.iter().filter(|limit| limit["applies"] != true) {
        more.push(format!("limit {} does not apply: {}", text(limit, "name"), names(limit, "unmet")));
    }
    if answer["unknown_credential"] == true {
        more.push(
            "the callers file does not know this credential: such a request counts by its ip".to_owned(),
        );
    }
    Sentences { first, tone, more }
}

fn left(state: &Value) -> String {
    match (state["remaining"].as_u64(), state["limit"].as_u64()) {
        (Some(remaining), Some(limit)) => format!("{remaining} of {limit} left"),
        _ if state["allowed"] == true => "it counts nothing".to_owned(),
        _ => "its rate is deny".to_owned(),
    }
}

fn applied(limit: &Value, moment: Moment) -> String {
    let state = &limit["state"];
    let back = match state["reset_after_ms"].as_u64() {
        Some(0) | None => String::new(),
        Some(wait) => format!(", all back {}", moment.after(wait)),
    };
    let mode = if state["mode"] == "enforce" { "" } else { ", in shadow" };
    format!("limit {}: {}{back}{mode} ({})", text(limit, "name"), left(state), text(state, "source"))
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
