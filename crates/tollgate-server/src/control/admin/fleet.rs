//! Views of this node together with those of the others. A node that does not answer is named with the reason, and
//! never left out. Sums say over how many nodes they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::act::{Act, AdminAnswer, body};
use super::counters;
use super::form::{Query, TailChoice, ViewScope};
use super::guard::Sender;
use super::reply::AdminClient;
use super::route::Verb;
use super::tail::{self, EventBody, PastDenials, TailFilter, TailSource};
use super::traffic_view::TopView;
use super::view::Depth;
use crate::fleet::{
    ASKED_MAX, AnswerLimits, AskedNode, FleetMember, NodeAnswer, NodeView, PeerRequest, ask_each,
};
use crate::problem::{AdminProblem, Problem};

/// Default and maximum number of keys of `top`, and of entries of `audit`.
const LISTED: (usize, usize) = (20, 1_000);

/// Answers get, explain, top, tail and audit, for this node, another one, or all of them.
pub(super) async fn view(
    act: &Act<'_>,
    sender: &Sender<'_>,
    request: Request<Incoming>,
    asker: AdminClient,
) -> Result<AdminAnswer, Problem> {
    let uri = request.uri().clone();
    let own: &[&str] = match act.verb {
        Verb::Top | Verb::Audit => &["fleet", "node", "limit"],
        Verb::Tail => &["fleet", "node", "denied", "would_deny", "since"],
        _ => &["fleet", "node"],
    };
    let query = Query::read(uri.query(), own)?;
    let scope = query.scope()?;
    let is_posted = matches!(act.verb, Verb::Get | Verb::Explain);
    let body = if is_posted { body(request).await? } else { Bytes::new() };
    if sender.question.is_some_and(|question| !question.has_body(&body)) {
        return Err(Problem::of_admin(AdminProblem::NoToken, "the node that asks has signed another body"));
    }
    let forwarded = uri.query().unwrap_or_default().split('&').filter(|part| is_forwarded(part));
    let parameters = match act.verb {
        // A key that is busy in sum may be less busy on each node.
        Verb::Top if !matches!(scope, ViewScope::Node(_)) => format!("limit={}", LISTED.1),
        _ => forwarded.collect::<Vec<_>>().join("&"),
    };
    let path = format!("{}?{parameters}", uri.path());
    let method = if is_posted { "POST" } else { "GET" };
    let question = PeerRequest { method, path, body: body.clone(), key: sender.key.clone() };
    let nodes = meant(&act.control.fleet, &scope).await?;
    if act.verb == Verb::Tail {
        let shown = query.tail()?;
        return tail(act, shown, nodes, question, asker).await;
    }
    match nodes.as_slice() {
        [] => own_view(act, &body, query.number("limit", LISTED.0, LISTED.1)?).await,
        [one] if matches!(scope, ViewScope::Node(_)) => {
            let answered = act.control.fleet.ask(one, &question, AnswerLimits::VIEW).await;
            AdminAnswer::json(&answered.map_err(|problem| unanswered(one, &problem))?)
        }
        nodes => {
            let most = query.number("limit", LISTED.0, LISTED.1)?;
            let (own, others) = tokio::join!(
                own_view(act, &body, LISTED.1),
                ask_each(&act.control.fleet, nodes, &question, AnswerLimits::VIEW)
            );
            let AdminAnswer::Json(own) = own? else { return Err(Problem::invalid("no document")) };
            let own: Value = serde_json::from_slice(&own).unwrap_or_default();
            AdminAnswer::json(&merged(act.verb, own, others?, most))
        }
    }
}

/// The nodes that a view asks. None for a view of this node alone.
pub(super) async fn meant(fleet: &FleetMember, scope: &ViewScope) -> Result<Vec<NodeView>, Problem> {
    if *scope == ViewScope::This {
        return Ok(Vec::new());
    }
    let nodes = fleet.roster().await.nodes;
    let ViewScope::Node(name) = scope else {
        let is_alone = *scope == ViewScope::Auto && nodes.len() < 2;
        return Ok(if is_alone { Vec::new() } else { nodes });
    };
    let is_named = |node: &&NodeView| node.name == *name || node.id.as_ref() == Some(name);
    let mut named = nodes.iter().filter(is_named);
    match (named.next(), named.next()) {
        (Some(one), None) if one.is_this => Ok(Vec::new()),
        (Some(one), None) => Ok(vec![one.clone()]),
        (Some(_), Some(_)) => Err(Problem::of_admin(
            AdminProblem::Conflict,
            "several nodes have this name; name one by its id, which GET /admin/v1/fleet and `tollgate fleet` list",
        )),
        (None, _) => {
            let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            let detail = format!("there is no node {name:?}; accepted: this, {}", names.join(", "));
            Err(Problem::of_admin(AdminProblem::Unknown, detail))
        }
    }
}

/// The view of this node, with at most so many keys or entries.
async fn own_view(act: &Act<'_>, body: &[u8], most: usize) -> Result<AdminAnswer, Problem> {
    match act.verb {
        Verb::Get => counters::explain(act, body, Depth::State).await,
        Verb::Explain => counters::explain(act, body, Depth::Reasons).await,
        Verb::Audit => AdminAnswer::json(&json!({ "entries": act.control.admin.audit.latest(most) })),
        _ => {
            let (keys, since) =
                (act.service().meter.top(most, act.now), act.service().meter.top_since(act.now));
            let since = if keys.is_empty() { act.now } else { since.min(act.now) };
            AdminAnswer::json(&TopView::new(&keys, since, act.policy_report(), act.now, act.wall))
        }
    }
}

/// Streams the decisions of this node.
///
/// # Errors
/// When as many views are open as may be.
fn own_tail(act: &Act<'_>, shown: TailChoice, asker: AdminClient) -> Result<EventBody, Problem> {
    let place = Arc::clone(&act.control.admin.watchers).try_acquire_owned().map_err(|_| {
        Problem::of_admin(
            AdminProblem::TooManyWatchers,
            "close one of the others, or try again when one has ended",
        )
    })?;
    let AdminClient { stop, answering, .. } = asker;
    let meter = &act.service().meter;
    let past = shown.since.map(|since| {
        let from = act.now - since;
        let (events, forgotten_until) = match shown.filter {
            TailFilter::WouldDeny => {
                (meter.shadow_denials_since(from), meter.shadow_denials_forgotten_until())
            }
            TailFilter::All | TailFilter::Denied => {
                (meter.denials_since(from), meter.denials_forgotten_until())
            }
        };
        PastDenials { events, forgotten_until: forgotten_until.filter(|at| *at >= from) }
    });
    let source = TailSource { past, events: meter.watch() };
    Ok(tail::lines(source, shown.filter, act.control.admin.clock.clone(), stop, place, answering))
}

/// Streams the decisions of this node, of another one, or of all of them.
pub(super) async fn tail(
    act: &Act<'_>,
    shown: TailChoice,
    nodes: Vec<NodeView>,
    question: PeerRequest,
    asker: AdminClient,
) -> Result<AdminAnswer, Problem> {
    let own = own_tail(act, shown, asker)?;
    if nodes.is_empty() {
        return Ok(AdminAnswer::Lines(own));
    }
    let shows_this = nodes.iter().find(|node| node.is_this).map(|node| node.name.clone());
    let others = nodes.into_iter().filter(|node| !node.is_this).take(ASKED_MAX).collect();
    let merged = tail::merged(own, shows_this, others, Arc::clone(&act.control.fleet), question);
    Ok(AdminAnswer::Lines(merged))
}

/// Whether a parameter is for the other nodes as well.
fn is_forwarded(part: &str) -> bool {
    ["limit=", "denied", "would_deny", "since="].iter().any(|name| part.starts_with(name))
}

fn unanswered(node: &NodeView, problem: &str) -> Problem {
    Problem::of_admin(AdminProblem::Conflict, format!("{}: {problem}", node.name))
}

/// One view of the answers of all nodes.
fn merged(verb: Verb, own: Value, mut answers: Vec<NodeAnswer>, most: usize) -> Value {
    for answer in answers.iter_mut().filter(|answer| answer.node.is_this) {
        answer.answer = Ok(own.clone());
    }
    let asked: Vec<AskedNode> = answers.iter().map(NodeAnswer::asked).collect();
    let answered = asked.iter().filter(|node| node.answered).count();
    let mut view = match verb {
        Verb::Top => json!({
            "at": own["at"], "window_seconds": own["window_seconds"], "since": earliest(&answers, "since"),
            "policy": own["policy"], "summed_over": answered,
            "keys": summed(&answers, most),
        }),
        Verb::Audit => json!({ "entries": entries(&answers, most) }),
        _ => {
            let mut view = own;
            view["answers"] = each_answer(&answers).into();
            view
        }
    };
    view["scope"] = "fleet".into();
    view["nodes"] = json!(asked);
    view
}

/// The earliest instant that a node says. RFC 3339 in UTC sorts by time.
fn earliest<'a>(answers: &'a [NodeAnswer], name: &str) -> Option<&'a str> {
    answers.iter().filter_map(|answer| answer.answer.as_ref().ok()?[name].as_str()).min()
}

/// The keys of all nodes, with the sums of their counts, the busiest first.
fn summed(answers: &[NodeAnswer], most: usize) -> Vec<Value> {
    let mut keys: BTreeMap<(String, String), Value> = BTreeMap::new();
    let all = answers.iter().filter_map(|answer| answer.answer.as_ref().ok());
    for key in all.flat_map(|answer| answer["keys"].as_array().into_iter().flatten()) {
        let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
        match keys.get_mut(&(text("limit"), text("key"))) {
            None => drop(keys.insert((text("limit"), text("key")), key.clone())),
            Some(sum) => {
                for name in ["decisions", "denied", "would_deny"] {
                    sum[name] = (count(&sum[name]) + count(&key[name])).into();
                }
                if key["last_denied"]["at"].as_str() > sum["last_denied"]["at"].as_str() {
                    sum["last_denied"] = key["last_denied"].clone();
                }
                for (source, counted) in key["sources"].as_object().into_iter().flatten() {
                    let before = count(&sum["sources"][source.as_str()]);
                    sum["sources"][source.as_str()] = (before + count(counted)).into();
                }
                if key["estimated"] == true {
                    sum["estimated"] = true.into();
                }
            }
        }
    }
    let mut keys: Vec<Value> = keys.into_values().collect();
    keys.sort_by_key(|key| std::cmp::Reverse(count(&key["decisions"])));
    keys.truncate(most);
    keys
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// The audit entries of all nodes, the newest first, each with its node.
fn entries(answers: &[NodeAnswer], most: usize) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    for NodeAnswer { node, answer } in answers {
        let own = answer.as_ref().ok().and_then(|answer| answer["entries"].as_array());
        entries.extend(own.into_iter().flatten().cloned().map(|mut entry| {
            entry["node"] = node.name.clone().into();
            entry
        }));
    }
    let at = |entry: &Value| entry["at"].as_str().unwrap_or_default().to_owned();
    entries.sort_by_key(|entry| std::cmp::Reverse(at(entry)));
    entries.truncate(most);
    entries
}

/// The explanation of a request by each node that answered.
fn each_answer(answers: &[NodeAnswer]) -> Vec<Value> {
    let each = answers.iter().filter_map(|NodeAnswer { node, answer }| {
        let answer = answer.as_ref().ok()?;
        Some(json!({ "node": node.name, "answer": answer }))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(name: &str, answer: Result<Value, &str>) -> NodeAnswer {
        NodeAnswer { node: NodeView::named(name), answer: answer.map_err(str::to_owned) }
    }

    /// Counts of a key are summed over the nodes that answered, and a node that did not is named.
    #[test]
    fn sums_say_over_which_nodes_they_are() {
        let key = |limit: &str, decisions: u64, lease: u64| json!({"limit": limit, "key": "k", "decisions": decisions, "denied": 1, "would_deny": 2, "sources": {"lease": lease}});
        let mut answers = vec![
            answer("one", Ok(Value::Null)),
            answer("two", Ok(json!({"keys": [key("a", 5, 2), key("b", 20, 0)]}))),
            answer("three", Err("it does not answer within a second")),
        ];
        answers[0].node.is_this = true;
        let own = json!({"at": "now", "window_seconds": 60, "keys": [key("a", 10, 3)]});
        let view = merged(Verb::Top, own, answers, 10);
        assert_eq!(view["summed_over"], 2);
        assert_eq!(view["keys"][0], key("b", 20, 0));
        assert_eq!(
            view["keys"][1],
            json!({"limit": "a", "key": "k", "decisions": 15, "denied": 2, "would_deny": 4, "sources": {"lease": 5}})
        );
        assert_eq!(view["nodes"][2]["answered"], false);
        assert_eq!(view["nodes"][2]["problem"], "it does not answer within a second");
    }

    /// Entries of all nodes are in the order of their time, and only the newest are kept.
    #[test]
    fn audits_are_merged_by_time() {
        let answers = vec![
            answer("one", Ok(json!({"entries": [{"at": "3"}, {"at": "1"}]}))),
            answer("two", Ok(json!({"entries": [{"at": "2"}]}))),
        ];
        let merged = entries(&answers, 2);
        assert_eq!(merged, [json!({"at": "3", "node": "one"}), json!({"at": "2", "node": "two"})]);
    }
}
