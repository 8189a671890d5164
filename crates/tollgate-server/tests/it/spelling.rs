//! Every row of `tollgate_tower::spelling`, walked through a real gateway with raw bytes, and shown by the guide.

use hyper::Version;
use hyper::header::HeaderValue;
use tollgate_tower::spelling::{
    Check, ExampleRequest, FIELDS, Fields, NOT_PLAIN, Outcome, RULES, Rule, Treatment, Unless, Versions,
};

use crate::gateway_upstream::{Gateway, Seen, Upstream};
use crate::h2_conformance::talk::{Talk, block, headers};
use crate::proxy::Folder;

const GUIDE: &str = include_str!("../../../../docs/gateway-requests.md");
/// A value by which a field is known again.
const MARK: &str = "192.0.2.66";
/// Fields that the gateway writes itself, whatever a trusted proxy says in them.
const WRITTEN: [&str; 3] = ["forwarded", "x-real-ip", "x-forwarded-*"];
/// Fields that a request cannot have with any value at all.
const FRAMING: [&str; 3] = ["host", "content-length", "transfer-encoding"];

/// A limit looks at a parameter of the query, so that its spelling matters.
const POLICY: &str = "limits: [{name: version, by: [version], rate: 100000/s}]";

fn gateway(upstream: &Upstream, folder: &Folder, settings: &str) -> Gateway {
    let text = format!("attributes: {{version: {{query: v}}}}\n{settings}\n");
    let config = folder.write("config.yaml", &text).display().to_string();
    let address = format!("http://{}", upstream.address);
    Gateway::with(&["--upstream", &address, "--config", &config], POLICY)
}

/// A connection of HTTP/2 that sends one request after the other.
struct H2<'g> {
    gateway: &'g Gateway,
    talk: Talk,
    next: u32,
}

impl<'g> H2<'g> {
    fn new(gateway: &'g Gateway) -> Self {
        Self { gateway, talk: Talk::begin(gateway, true), next: 1 }
    }

    /// The status of a request, if it has one.
    fn ask(&mut self, sample: &ExampleRequest) -> Option<u16> {
        if self.talk.received.is_closed || self.talk.received.goaway.is_some() {
            *self = Self::new(self.gateway);
        }
        let stream = self.next;
        self.next += 2;
        let (scheme, target) = match sample.target.split_once("://") {
            Some((scheme, rest)) => (scheme, rest.find('/').map_or("/", |at| &rest[at..])),
            None => ("http", sample.target),
        };
        let mut fields = vec![
            (":method", sample.method),
            (":scheme", scheme),
            (":authority", sample.host),
            (":path", target),
        ];
        fields.extend(sample.fields);
        self.talk.send(&headers(stream, &block(&fields)));
        self.talk.hear(|received| {
            received.ended.contains(&stream) || received.resets.iter().any(|(reset, _)| *reset == stream)
        });
        self.talk.received.statuses.iter().find(|(of, _)| *of == stream).map(|(_, status)| *status)
    }
}

fn over_http1(gateway: &Gateway, sample: &ExampleRequest) -> crate::raw_http::Response {
    let ExampleRequest { method, target, host, fields } = sample;
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    gateway.exchange(&format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n"))
}

fn assert_outcome(rule: &Rule, sample: &ExampleRequest, status: Option<u16>, seen: &[Seen]) {
    let about = format!("{}: {sample:?}", rule.what);
    match rule.outcome {
        Outcome::Refused(expected) => {
            assert_eq!((status, seen.len()), (Some(expected), 0), "{about}");
        }
        Outcome::SentOn { line, host } => {
            let [one] = seen else { panic!("{about}: {status:?}, {seen:?}") };
            assert_eq!((one.line.as_str(), one.header("host").as_str()), (line, host), "{about}");
        }
    }
}

/// A refused request is not sent on, and every other is sent on in one spelling; over HTTP/1 and over HTTP/2.
#[test]
fn every_rule_holds() {
    let (upstream, folder) = (Upstream::start(), Folder::new("spelling"));
    let gateway = gateway(&upstream, &folder, "");
    for rule in RULES {
        assert!(!rule.examples.is_empty(), "{}", rule.what);
        for sample in rule.examples {
            let response = over_http1(&gateway, sample);
            if let (Outcome::Refused(status), Check::Head(_, reported)) = (rule.outcome, rule.check) {
                assert_eq!(response.problem(status), reported, "{}", rule.what);
            }
            assert_outcome(rule, sample, Some(response.status), &upstream.seen());
            if rule.versions == Versions::All {
                // On a connection of its own: a status that was sent before is sent as its index in a table.
                let status = H2::new(&gateway).ask(sample);
                assert_outcome(rule, sample, status, &upstream.seen());
            }
        }
    }
}

/// A setting lets pass what the table says that it lets pass, and nothing else.
#[test]
fn settings_let_pass() {
    let (upstream, folder) = (Upstream::start(), Folder::new("spelling-kept"));
    let gateway = gateway(&upstream, &folder, "method_override: keep\nheader_names: any");
    for rule in RULES.iter().filter(|rule| matches!(rule.outcome, Outcome::Refused(_))) {
        let is_let = rule.unless == Some(Unless::MethodOverrideKept);
        for sample in rule.examples {
            let status = over_http1(&gateway, sample).status;
            assert_eq!(
                (status == 200, upstream.seen().len() == 1),
                (is_let, is_let),
                "{}: {sample:?}",
                rule.what
            );
        }
    }
    let kept = "X-HTTP-Method-Override: PUT\r\nX_Kept: 1\r\nX_HTTP-Method_Override: PUT\r\nClient_IP: 1\r\n";
    assert_eq!(gateway.get("/", kept).status, 200);
    let seen = upstream.only();
    let reported = ["x-http-method-override", "x_kept", "x_http-method_override", "client_ip"]
        .map(|name| seen.header(name));
    assert_eq!(reported, ["PUT", "1", "", ""]);
}

/// A name, and every mix of signs in which a server may read it.
fn spellings(name: &str) -> Vec<String> {
    let mut all = vec![name.replace('-', "_"), name.replacen('-', "_", 1), name.replace('-', ".")];
    all.retain(|other| other != name);
    all
}

fn has_mark(seen: &[Seen]) -> bool {
    let has_it = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains(MARK));
    seen.iter().any(|seen| seen.headers.values().any(has_it))
}

/// Whether the upstream gets to see a field of this name: over HTTP/1, and over HTTP/2.
fn passes(upstream: &Upstream, gateway: &Gateway, h2: &mut H2<'_>, name: &str) -> (bool, bool) {
    gateway.get("/", &format!("{name}: {MARK}\r\n"));
    let over_1 = has_mark(&upstream.seen());
    // A sample lives as long as the program: a name is a row of the table.
    let fields: &'static [(&'static str, &'static str)] =
        Box::leak(Box::new([(&*name.to_owned().leak(), MARK)]));
    h2.ask(&ExampleRequest { method: "GET", target: "/", host: "app.test", fields });
    (over_1, has_mark(&upstream.seen()))
}

/// The party at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Stranger,
    TrustedProxy,
}

/// Whether a field passes as the table says.
fn is_sent_on(fields: &Fields, peer: Peer) -> bool {
    match fields.treatment {
        Treatment::Keep => true,
        Treatment::TrustedOnly => peer == Peer::TrustedProxy,
        Treatment::Hop | Treatment::Drop | Treatment::MethodOverride => false,
    }
}

/// Each field goes as far as the table says, from a stranger and from a trusted proxy; and no other spelling of its name goes anywhere.
#[test]
fn every_field_is_treated_as_the_table_says() {
    let (upstream, folder) = (Upstream::start(), Folder::new("spelling-fields"));
    for (settings, peer) in [("", Peer::Stranger), ("trusted_proxies: [127.0.0.0/8]", Peer::TrustedProxy)] {
        let gateway = gateway(&upstream, &folder, settings);
        let mut h2 = H2::new(&gateway);
        for fields in FIELDS {
            for name in fields.names {
                let exact = name.replace('*', "x");
                let is_written = peer == Peer::TrustedProxy && WRITTEN.contains(name);
                if !is_written && !FRAMING.contains(name) {
                    let expected = is_sent_on(fields, peer);
                    // Fields of one connection end a request of HTTP/2, or are no field there.
                    let passed = passes(&upstream, &gateway, &mut h2, &exact);
                    assert_eq!(passed, (expected, expected), "{exact}, {peer:?}");
                }
                for other in spellings(&exact) {
                    let passed = passes(&upstream, &gateway, &mut h2, &other);
                    assert_eq!(passed, (false, false), "{other}, {peer:?}");
                }
            }
        }
        assert_eq!(passes(&upstream, &gateway, &mut h2, "x-of-my-own"), (true, true));
        assert_eq!(passes(&upstream, &gateway, &mut h2, "x_of_my_own"), (false, false));
        gateway.get("/", "");
        assert_eq!(upstream.only().version, Version::HTTP_11);
    }
}

/// The guide shows the table as it is.
#[test]
fn the_guide_shows_the_table() {
    let mut rows = vec!["| what arrives | what happens | why |".to_owned(), "|---|---|---|".to_owned()];
    let row = |what: &str, happens: &str, reason: &str| format!("| {what} | {happens} | {reason} |");
    for Rule { what, outcome, reason, unless, .. } in RULES {
        let happens = match outcome {
            Outcome::Refused(status) => format!("refused with {status}"),
            Outcome::SentOn { line, host } => format!("sent on in one spelling: `{line}`, `Host: {host}`"),
        };
        let unless = match unless {
            None => "",
            Some(Unless::MethodOverrideKept) => ", unless `method_override: keep`",
        };
        rows.push(row(what, &format!("{happens}{unless}"), reason));
    }
    for Fields { names, treatment, reason } in FIELDS {
        let happens = match treatment {
            Treatment::Hop | Treatment::Drop => "dropped",
            Treatment::TrustedOnly => "dropped, unless the peer is a trusted proxy",
            Treatment::MethodOverride => "dropped, unless `method_override: keep`",
            Treatment::Keep => "sent on",
        };
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        rows.push(row(&format!("fields {}", names.join(", ")), happens, reason));
    }
    let [what, happens, reason] = NOT_PLAIN;
    rows.push(row(what, happens, reason));
    let table = rows.join("\n");
    assert!(GUIDE.contains(&table), "docs/gateway-requests.md has another table than:\n\n{table}\n");
}
