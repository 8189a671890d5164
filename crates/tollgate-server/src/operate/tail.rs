//! `tail`: decisions of a running server as they are made. On a terminal q or Ctrl-C ends it. Without a terminal it
//! writes lines.

use std::collections::HashSet;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tollgate::CredentialDigest;
use tollgate::address::{Network, Prefixes};

use super::client::Client;
use super::screen::Screen;
use super::show::{list, pairs, seconds, text};
use super::table::cell;
use super::top::are_known;
use crate::SUCCESS;
use crate::cli::{GivenAttribute, TailArguments, TailVerdict};
use crate::console::{Console, Style};
use crate::disk::plain_cause;
use crate::text::{plain, shown, unknown_name};
use crate::time_text::duration;

/// How long `--once` watches.
const ONCE: Duration = Duration::from_secs(1);
/// Maximum length of a line.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Shows decisions until the user leaves or the server ends the stream.
pub(super) async fn tail(arguments: &TailArguments, console: &mut Console) -> Result<u8, String> {
    let client = Client::new(&arguments.server)?;
    if let Some(notice) = client.notice() {
        console.warning(notice);
    }
    if !arguments.limits.is_empty() || !arguments.attributes.is_empty() {
        let known = client.call("GET", "/admin/v1/limits", None).await.unwrap_or_default();
        are_known(&arguments.limits, &known)?;
        if !arguments.anyway {
            are_attributes(&arguments.attributes, &known)?;
        }
    }
    let filter = Filter::of(arguments);
    let is_denied = filter.verdict == Some(TailVerdict::Deny);
    let which = match (is_denied, arguments.would_deny) {
        (true, _) => "&denied=true",
        (false, true) => "&would_deny=true",
        (false, false) => "",
    };
    let since = since(arguments)?;
    let path = format!("/admin/v1/tail?{}{which}{since}", arguments.nodes.query());
    let mut lines = Lines { body: client.open(&path).await?, rest: Vec::new() };
    let mut screen = Screen::open();
    let mut totals = TailTotals::default();
    let deadline = tokio::time::sleep(if arguments.once { ONCE } else { Duration::MAX });
    let mut deadline = std::pin::pin!(deadline);
    loop {
        let line = tokio::select! {
            () = screen.left() => break,
            () = &mut deadline => break,
            line = lines.next() => line?,
        };
        let Some(line) = line else {
            return Err("the server has ended the view; it may have stopped, or an hour is over".to_owned());
        };
        if !filter.shows(&line) {
            continue;
        }
        if line["past"].is_u64() && !arguments.server.json {
            if let Some(notice) = totals.nothing_past(&line) {
                console.warning(notice);
            }
            continue;
        }
        totals.add(&line);
        if arguments.server.json {
            console.line(&line);
        } else {
            console.line(event_line(&line, console));
        }
        console.flush();
        if console.is_closed() {
            return Ok(SUCCESS);
        }
    }
    if let Some(notice) = nothing_seen(arguments, &totals).filter(|_| !arguments.server.json) {
        console.line(notice);
    }
    // A program that reads the lines counts them itself.
    if !arguments.server.json && console.width().is_some() {
        console.line(format_args!("{} allowed, {} denied", totals.allowed, totals.denied));
    }
    Ok(SUCCESS)
}

/// The notice of a look at denials that found none, and how to see those that were before.
fn nothing_seen(arguments: &TailArguments, totals: &TailTotals) -> Option<&'static str> {
    let is_about_denials = arguments.would_deny || Filter::of(arguments).verdict == Some(TailVerdict::Deny);
    let is_empty = totals.allowed + totals.denied == 0;
    (is_about_denials && is_empty && arguments.once && arguments.since.is_none())
        .then_some("no such denial within this second; --since 10m shows those that the server remembers")
}

/// The parameter of the query for denials that were made before.
fn since(arguments: &TailArguments) -> Result<String, String> {
    let Some(text) = &arguments.since else { return Ok(String::new()) };
    if !arguments.would_deny && Filter::of(arguments).verdict != Some(TailVerdict::Deny) {
        return Err(
            "--since: the server remembers denials only; accepted: --since with --denied or --would-deny"
                .to_owned(),
        );
    }
    match duration(text) {
        Ok(_) => Ok(format!("&since={text}")),
        Err(_) => Err("--since: not a duration; accepted: 90s, 10m or 1h30m".to_owned()),
    }
}

/// How many decisions `tail` has shown.
#[derive(Debug, Default)]
struct TailTotals {
    allowed: u64,
    denied: u64,
    /// The nodes of which it has shown decisions.
    nodes: HashSet<String>,
}

impl TailTotals {
    fn add(&mut self, event: &Value) {
        self.nodes.insert(text(event, "node").to_owned());
        match event["allowed"].as_bool() {
            Some(true) => self.allowed += 1,
            Some(false) => self.denied += 1,
            None => {}
        }
    }

    /// The notice at the end of the denials that were made before, if none of them was shown.
    fn nothing_past(&self, line: &Value) -> Option<String> {
        if self.nodes.contains(text(line, "node")) {
            return None;
        }
        let of = line["node"].as_str().map_or_else(String::new, |node| format!(" by {}", plain(node)));
        let reach = line["forgotten_until"].as_str().map_or_else(
            || "and none is forgotten".to_owned(),
            |at| format!("and keys that were last denied before {} may be forgotten", plain(at)),
        );
        Some(format!("no such denial is remembered{of}, {reach}"))
    }
}

/// Which decisions `tail` shows.
#[derive(Debug, Default)]
struct Filter {
    verdict: Option<TailVerdict>,
    /// Empty for all.
    limits: Vec<String>,
    attributes: Vec<WantedAttribute>,
}

/// An attribute that requests must have.
#[derive(Debug)]
struct WantedAttribute {
    name: String,
    /// The texts that the server may show for its value.
    texts: [String; 2],
    /// The client that the value stands for, if it is an address: however requests spell it.
    client: Option<Network>,
}

impl WantedAttribute {
    fn of(GivenAttribute { name, value }: &GivenAttribute) -> Self {
        let value = tollgate::Value::from(value).to_string();
        // The server shortens long values, and shows credentials as digests.
        let texts = [shown(&value), CredentialDigest::of_value(&value).to_string()];
        Self { name: shown(name), texts, client: Prefixes::Default.network(&value) }
    }

    fn is_in(&self, event: &Value) -> bool {
        event["attributes"][&self.name].as_str().is_some_and(|value| {
            let is_client = || self.client.is_some() && Prefixes::Default.network(value) == self.client;
            self.texts.iter().any(|text| text == value) || is_client()
        })
    }
}

impl Filter {
    fn of(arguments: &TailArguments) -> Self {
        Self {
            verdict: arguments.verdict.or(arguments.denied.then_some(TailVerdict::Deny)),
            limits: arguments.limits.clone(),
            attributes: arguments.attributes.iter().map(WantedAttribute::of).collect(),
        }
    }

    /// Whether a line passes. A line about lost lines always does.
    fn shows(&self, event: &Value) -> bool {
        let Some(is_allowed) = event["allowed"].as_bool() else { return true };
        let is_verdict = self.verdict.is_none_or(|verdict| (verdict == TailVerdict::Allow) == is_allowed);
        let is_of = |limit: &String| {
            let mut would_deny = list(event, "would_deny").iter().filter_map(Value::as_str);
            limit == text(event, "limit") || would_deny.any(|name| name == limit)
        };
        is_verdict
            && (self.limits.is_empty() || self.limits.iter().any(is_of))
            && self.attributes.iter().all(|wanted| wanted.is_in(event))
    }
}

/// Lines of JSON from a streamed body.
struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line, or `None` when the server has ended the stream. Safe to cancel while it waits.
    async fn next(&mut self) -> Result<Option<Value>, String> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if line.len() > 1 {
                    let read = serde_json::from_slice(&line);
                    return read.map(Some).map_err(|_| "the server sent a line that is not JSON".to_owned());
                }
            }
            if self.rest.len() > LINE_BYTES_MAX {
                return Err("the server sent a line that does not end".to_owned());
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(format!("the view was cut off: {}; ask again", plain_cause(&error)));
                }
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.rest.extend_from_slice(bytes);
                    }
                }
            }
        }
    }
}

/// Checks that requests can have the attributes, with the nearest name for one that is not known: with a misspelt name the
/// view would stay empty.
fn are_attributes(given: &[GivenAttribute], answer: &Value) -> Result<(), String> {
    let names: Vec<&str> = list(answer, "attributes").iter().filter_map(Value::as_str).collect();
    // Rules of other programs have no list of attributes.
    let unknown = given.iter().find(|given| !names.is_empty() && !names.contains(&given.name.as_str()));
    let Some(GivenAttribute { name, .. }) = unknown else { return Ok(()) };
    let problem = plain(&unknown_name(&format!("no limit uses {}", shown(name)), name, &names));
    Err(format!("{problem}; or --anyway, if callers send it"))
}

/// Formats a decision, or a notice about decisions that are missing.
fn event_line(event: &Value, console: &Console) -> String {
    let node = event["node"].as_str().map_or_else(String::new, |node| format!("{:<21}  ", cell(node)));
    if let Some(missed) = event["missed"].as_u64() {
        return format!("{node}{missed} decisions are not shown: they came too fast");
    }
    if let Some(problem) = event["problem"].as_str() {
        return format!("{node}is missing: {}", plain(problem));
    }
    let what = match (event["allowed"] == true, event["retry_after_ms"].as_u64()) {
        (true, _) => "allow".to_owned(),
        (false, Some(_)) => format!("DENY, retry in {}", seconds(event, "retry_after_ms")),
        (false, None) if text(event, "verdict") == "never" => "DENY, can never pass".to_owned(),
        (false, None) => "DENY".to_owned(),
    };
    let names: Vec<&str> = list(event, "would_deny").iter().filter_map(Value::as_str).collect();
    let also =
        if names.is_empty() { String::new() } else { format!(" ({} would deny)", plain(&names.join(", "))) };
    let what = format!("{what}{also}");
    let style = if event["allowed"] == true { Style::Good } else { Style::Bad };
    let what = console.painted(&format!("{what:<24}"), style);
    let reason = match text(event, "reason") {
        "" => String::new(),
        reason => format!("  ({})", plain(reason)),
    };
    format!(
        "{}  {node}{:<9}  {what}  {:<16}  {}{reason}",
        text(event, "at"),
        text(event, "wire"),
        cell(text(event, "limit")),
        pairs(&event["attributes"])
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn event(event: &Value) -> String {
        event_line(event, &Console::new(io::sink(), io::sink()))
    }

    /// Decisions are filtered by verdict, limit and attributes, and a name that requests cannot have is refused.
    #[test]
    fn decisions_are_filtered() {
        let event = serde_json::json!({ "allowed": false, "limit": "a" });
        let of = |verdict, limits: &[&str]| Filter {
            verdict,
            limits: limits.iter().map(|&limit| limit.to_owned()).collect(),
            attributes: Vec::new(),
        };
        let known = serde_json::json!({ "attributes": ["api_key", "ip"] });
        let given = |name: &str| {
            let value = crate::cli::GivenValue::Text("x".to_owned());
            are_attributes(&[GivenAttribute { name: name.to_owned(), value }], &known)
        };
        assert_eq!(given("ip"), Ok(()));
        let refused = given("apikey").unwrap_err();
        assert_eq!(
            refused,
            "no limit uses apikey; did you mean api_key? accepted: api_key, ip; or --anyway, if callers send it"
        );
        // An address is meant, however a request spells it.
        let wanted = |value: &str| {
            let value = crate::cli::GivenValue::Text(value.to_owned());
            WantedAttribute::of(&GivenAttribute { name: "ip".to_owned(), value })
        };
        let sent = |ip: &str| serde_json::json!({ "attributes": { "ip": ip } });
        for spelling in ["192.0.2.1", "192.0.2.1:49152", "::ffff:192.0.2.1"] {
            assert!(wanted("192.0.2.1").is_in(&sent(spelling)), "{spelling}");
            assert!(!wanted("192.0.2.2").is_in(&sent(spelling)), "{spelling}");
        }
        assert!(wanted("2001:db8::1").is_in(&sent("2001:db8::2")) && wanted("none").is_in(&sent("none")));
        assert!(of(Some(TailVerdict::Deny), &["a"]).shows(&event));
        assert!(!of(Some(TailVerdict::Allow), &[]).shows(&event));
        assert!(!of(None, &["b"]).shows(&event));
        let shadow = serde_json::json!({ "allowed": true, "limit": "a", "would_deny": ["b"] });
        assert!(of(None, &["b"]).shows(&shadow) && of(None, &["a"]).shows(&shadow));
    }

    /// A line of `tail` shows the decision and its attributes, and reports how many it left out.
    #[test]
    fn a_line_of_tail() {
        let denied = serde_json::json!({ "at": "T", "wire": "rls", "allowed": false, "limit": "per-key",
            "attributes": { "api_key": "k\r1", "n": 5 }, "retry_after_ms": 412, "source": "exact" });
        assert_eq!(
            event(&denied),
            "T  rls        DENY, retry in 412 ms     per-key           api_key=k\\r1 n:=5"
        );
        let shadow = serde_json::json!({ "at": "T", "wire": "rls", "allowed": true, "limit": "per-key",
            "would_deny": ["new", "newer"], "attributes": {} });
        assert!(event(&shadow).contains("allow (new, newer would deny)"), "{}", event(&shadow));
        // Regression: a denial hid what a limit in shadow would have done.
        let both = serde_json::json!({ "at": "T", "wire": "http", "allowed": false, "limit": "per-key",
            "would_deny": ["new"], "attributes": {}, "retry_after_ms": 412, "source": "exact" });
        assert!(event(&both).contains("DENY, retry in 412 ms (new would deny)  per-key"), "{}", event(&both));
        assert!(event(&serde_json::json!({ "missed": 7 })).contains("7 decisions"));
        // Regression: a request to which no limit applied looked like any other, and one that can never pass looked
        // like one to retry.
        let unmet = serde_json::json!({ "at": "T", "wire": "http", "allowed": true, "verdict": "allow", "limit": "",
            "attributes": { "foo": "solo" }, "reason": "no limit applies to these attributes", "source": "none" });
        assert!(event(&unmet).ends_with("foo=solo  (no limit applies to these attributes)"));
        let never = serde_json::json!({ "at": "T", "wire": "http", "allowed": false, "verdict": "never",
            "limit": "per-key", "attributes": {}, "reason": "a cost of 9", "source": "exact" });
        assert!(event(&never).contains("  DENY, can never pass  "), "{}", event(&never));
    }
}
